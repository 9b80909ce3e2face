"""Timing several contenders in turn, and what every measurement has in common."""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def in_turn(contenders: Mapping[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, Any]:
    """Milliseconds of each contender's call: median and quartiles over the repeats, after one call to warm up.

    They take turns, so that whatever else the machine does meets all of them.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if repeat:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: {"ms": statistics.median(values), "quartiles_ms": quartiles(values)} for name, values in times.items()
    }


def quartiles(values: list[float]) -> list[float]:
    low, high = np.quantile(values, [0.25, 0.75]).tolist()
    return [low, high]
