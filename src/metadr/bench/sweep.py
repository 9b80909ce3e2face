"""Time a whole sweep, with everything a run does besides training: in lanes, one after another, by others' loops."""

import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from metadr import models
from metadr.bench.peers import Peer, peers_of
from metadr.bench.timing import quartiles
from metadr.bench.work import Work
from metadr.benchmarks import benchmark_of, make_recipe, training_of, with_settings
from metadr.core import Domain, Recipe
from metadr.domains import load_domains
from metadr.engine.ground import Ground, pick_device
from metadr.errors import UserError
from metadr.provenance import environment
from metadr.sweep import Job, sweep


def bench_sweep(
    method: str = "meta-dr",
    *,
    runs: int = 16,
    steps: int = 100,
    model: str = "resnet18",
    precision: str = "fp32",
    lanes: int = 16,
    repeats: int = 2,
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
        lanes: how many of them run side by side.
        repeats: measurements of each sweep, but for the first run of a process.
        device: where.
        so_far: given all that is known after each sweep.

    Returns:
        The setting and one row for each sweep: in lanes, one run after another, and the same by others (plain autograd,
        and `higher` where it is installed and has a use). Seconds in all (median and quartiles), seconds a run, ms a
        step and run, and the ratio to ours in lanes. Others keep no checkpoints; they are tested as often.
    """
    chosen = pick_device(device)
    recipe = make_recipe("embedded", method, model=model, steps=steps, precision=precision)
    num_steps = steps * len(recipe.order)
    rows: list[dict[str, Any]] = []
    setting = {"method": method, "model": model, "steps": num_steps, "precision": precision}
    left_out: dict[str, str] = {}
    measured = {**setting, "environment": environment(chosen), "rows": rows, "left_out": left_out}

    def note(name: str, count: int, call: Callable[[], None], n: int = repeats) -> None:
        times = [_seconds(call) for _ in range(n)]
        median = statistics.median(times)
        row = {"sweep": name, "runs": count, "n": n, "seconds": median, "quartiles_s": quartiles(times)}
        rows.append({**row, "seconds_a_run": median / count, "ms_a_step": 1e3 * median / count / num_steps})
        in_lanes = next((each["seconds_a_run"] for each in rows if each["sweep"] == f"{lanes} lanes"), None)
        for each in rows:
            each["ratio"] = each["seconds_a_run"] / in_lanes if in_lanes else None
        so_far(measured)

    def ours(count: int, width: int) -> None:
        with tempfile.TemporaryDirectory() as out:
            jobs = [Job(recipe, seed) for seed in range(count)]
            outcome = sweep(jobs, out=out, device=device, lanes=width)
        if outcome.failed:
            job, reason = outcome.failed[0]
            raise UserError(f"{job.title} failed, so there is nothing to measure. {reason}")

    # With what every process pays once: libraries, kernels, rendering the digits.
    note("first run", 1, functools.partial(ours, 1, 1), n=1)
    note(f"{lanes} lanes", runs, functools.partial(ours, runs, lanes))
    note("one after another", 1, functools.partial(ours, 1, 1))
    for name, kind in (peers_of(recipe.method) if recipe.access == "current" else {}).items():
        try:
            _others(kind, with_settings(recipe, steps=1), chosen)  # what it pays once
        except UserError as error:
            left_out[name] = str(error)
            continue
        note(f"{name}, one after another", 1, functools.partial(_others, kind, recipe, chosen))
    return measured


def _seconds(call: Callable[[], None]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _others(kind: type[Peer], recipe: Recipe, device: torch.device) -> None:
    """The same domains, steps and tests as a run of ours, by someone else's loop."""
    training, task = training_of(recipe), benchmark_of(recipe).task
    with Ground(dataclasses.replace(training, deterministic=False), device).held():
        domains = [resident.domain for resident in load_domains(recipe, device)]
        module = models.build(training.model, task.num_classes).to(device)
        peer = kind(module, Work(recipe.method, training, task, domains[0].train))
        _test(peer, domains)
        for place, domain in enumerate(domains):
            peer.begin(domain.train, training.later_lr if place else training.lr)
            peer.steps(training.steps_on(domain.train.num_images, first=not place))
            _test(peer, domains)


def _test(peer: Peer, domains: list[Domain]) -> None:
    for domain in domains:
        peer.test(domain.test)
