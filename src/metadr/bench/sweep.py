"""Time a whole sweep, with everything a run does besides training: one run after another, and in lanes."""

import tempfile
import time
from collections.abc import Callable
from typing import Any

from metadr.benchmarks import make_recipe
from metadr.lanes import Lanes
from metadr.provenance import environment
from metadr.run import pick_device
from metadr.sweep import Job, sweep


def bench_sweep(
    method: str = "meta-dr",
    *,
    runs: int = 16,
    steps: int = 100,
    model: str = "resnet18",
    precision: str = "fp32",
    alone: int = 2,
    eager: int = 1,
    device: str = "auto",
    so_far: Callable[[dict[str, Any]], None] = lambda measured: None,
) -> dict[str, Any]:
    """Run seeds of one method on the embedded digits, from loading to the last test, into a folder that is thrown away.

    Args:
        method: a sum of parts.
        runs: seeds of the sweep in lanes.
        steps: a domain; there are four.
        model: a network by name.
        precision: fp32, tf32 or bf16.
        alone: seeds that are run one after another.
        eager: seeds that are run one after another without capture.
        device: where.
        so_far: given all that is known after each sweep.

    Returns:
        The setting and one row for each sweep: seconds in all, seconds a run, ms a step and run.
    """
    chosen = pick_device(device)
    recipe = make_recipe("embedded", method, model=model, steps=steps, precision=precision)
    num_steps = steps * len(recipe.order)
    rows: list[dict[str, Any]] = []
    setting = {"method": method, "model": model, "steps": num_steps, "precision": precision}
    measured = {**setting, "environment": environment(chosen), "rows": rows}

    def measure(name: str, count: int, width: Lanes, capture: bool) -> None:
        with tempfile.TemporaryDirectory() as out:
            jobs = [Job(recipe, seed) for seed in range(count)]
            started = time.perf_counter()
            outcome = sweep(jobs, out=out, device=device, lanes=width, capture=capture)
            seconds = time.perf_counter() - started
        if outcome.failed:
            raise RuntimeError(f"{outcome.failed[0][0].title} failed: {outcome.failed[0][1]}")
        row = {"sweep": name, "runs": count, "seconds": seconds, "seconds_a_run": seconds / count}
        rows.append({**row, "ms_a_step": 1e3 * seconds / count / num_steps})
        so_far(measured)

    measure("first run", 1, 1, True)  # with what every process pays once: libraries, kernels, rendering the digits
    measure("in lanes", runs, "auto", True)
    measure("one after another", alone, 1, True)
    measure("one after another, eager", eager, 1, False)
    return measured
