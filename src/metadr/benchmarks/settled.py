"""How T is drawn on the paper's benchmarks, as the digits settled it: docs/calibration.md."""

from collections.abc import Mapping
from typing import Any


def part_defaults(transforms: str, **meta_dr: float) -> Mapping[str, Mapping[str, Any]]:
    """The settings of DR and Meta-DR on a benchmark: its set, and what it sets of Meta-DR beside beta = gamma = 1."""
    return {
        "dr": {"transforms": transforms, "pick": "pair"},
        "meta-dr": {"transforms": transforms, "pick": "pair", "recall": 1.0, "adapt": 1.0, **meta_dr},
    }
