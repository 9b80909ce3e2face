"""Time a whole sweep, with everything a run does besides training: in lanes, one after another, by others' loops."""

import dataclasses
import functools
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from metadr import models
from metadr.bench.peers import Peer, peers_of
from metadr.bench.work import Work
from metadr.benchmarks import benchmark_of, make_recipe, training_of, with_training
from metadr.core import Domain, Recipe
from metadr.domains import load_domains
from metadr.engine.ground import Ground, pick_device
from metadr.lanes import Lanes
from metadr.provenance import environment
from metadr.sweep import Job, sweep

IN_LANES = "in lanes"


def bench_sweep(
    method: str = "meta-dr",
    *,
    runs: int = 16,
    steps: int = 100,
    model: str = "resnet18",
    precision: str = "fp32",
    alone: int = 2,
    peers: int = 1,
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
        peers: seeds that each of the others runs: plain autograd, and `higher` where it is installed and has a use.
        device: where.
        so_far: given all that is known after each sweep.

    Returns:
        The setting and one row for each sweep: seconds in all, seconds a run, ms a step and run, and the ratio to ours
        in lanes. Others keep no checkpoints; they are tested as often.
    """
    chosen = pick_device(device)
    recipe = make_recipe("embedded", method, model=model, steps=steps, precision=precision)
    num_steps = steps * len(recipe.order)
    rows: list[dict[str, Any]] = []
    setting = {"method": method, "model": model, "steps": num_steps, "precision": precision}
    measured = {**setting, "environment": environment(chosen), "rows": rows}

    def note(name: str, count: int, call: Callable[[], None]) -> None:
        started = time.perf_counter()
        call()
        seconds = time.perf_counter() - started
        row = {"sweep": name, "runs": count, "seconds": seconds, "seconds_a_run": seconds / count}
        rows.append({**row, "ms_a_step": 1e3 * seconds / count / num_steps})
        lanes = next((each["seconds_a_run"] for each in rows if each["sweep"] == IN_LANES), None)
        for each in rows:
            each["ratio"] = each["seconds_a_run"] / lanes if lanes else None
        so_far(measured)

    def ours(count: int, width: Lanes) -> None:
        with tempfile.TemporaryDirectory() as out:
            jobs = [Job(recipe, seed) for seed in range(count)]
            outcome = sweep(jobs, out=out, device=device, lanes=width)
        if outcome.failed:
            raise RuntimeError(f"{outcome.failed[0][0].title} failed: {outcome.failed[0][1]}")

    # With what every process pays once: libraries, kernels, rendering the digits.
    note("first run", 1, functools.partial(ours, 1, 1))
    note(IN_LANES, runs, functools.partial(ours, runs, "auto"))
    note("one after another", alone, functools.partial(ours, alone, 1))
    for name, kind in (peers_of(recipe.method) if recipe.access == "current" else {}).items():
        _others(kind, with_training(recipe, steps=1), 1, chosen)  # what it pays once
        note(f"{name}, one after another", peers, functools.partial(_others, kind, recipe, peers, chosen))
    return measured


def _others(kind: type[Peer], recipe: Recipe, count: int, device: torch.device) -> None:
    """The same domains, steps and tests as ours, by someone else's loop."""
    training, task = training_of(recipe), benchmark_of(recipe).task
    ground = Ground(dataclasses.replace(training, deterministic=False), device)
    for _ in range(count):
        with ground.held():
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
