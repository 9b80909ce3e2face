"""What the tables of Virtual KITTI 2 have in common: each cell is a mean over permutations of scenes."""

from collections.abc import Mapping
from typing import Any

from metadr.benchmarks import make_recipe
from metadr.benchmarks.vkitti2 import CONDITIONS, SCENES
from metadr.recipes.table import Row

PROTOCOLS = tuple(CONDITIONS)
METHODS = {"Naive": "naive", "Naive + DR": "dr", "Meta-DR": "meta-dr"}
SPREAD = "One seed; the spread is over permutations of scenes. A column is a condition, of another scene in each."


def over_scenes(
    title: str,
    method: str,
    protocol: str,
    *,
    tiny: bool,
    under: str = "",
    benchmark: str = "vkitti2",
    permutations: int = len(SCENES),
    fields: Mapping[str, Any] | None = None,
) -> Row:
    """A method over the first permutations of scenes of a protocol."""
    names = (f"{benchmark}/{protocol}/{number}" for number in range(1, permutations + 1))
    return Row(title, tuple(make_recipe(name, method, tiny=tiny, **(fields or {})) for name in names), under=under)


def by_beta(beta: float, *, tiny: bool, fields: Mapping[str, Any] | None = None, **scenes: Any) -> Row:
    """Meta-DR with recall alone on P3; with a weight of 0 it is Naive."""
    weights = {"recall": beta, "adapt": 0.0} if beta else {}
    method = "meta-dr" if beta else "naive"
    return over_scenes(f"beta = {beta}", method, "p3", tiny=tiny, fields={**(fields or {}), **weights}, **scenes)
