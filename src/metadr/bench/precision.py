"""How far a gradient is off in each precision, against float64, along a real training run."""

import copy
import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from metadr import models
from metadr.benchmarks import benchmark_of, make_recipe, training_of
from metadr.core import Recipe, Split, Training
from metadr.domains import load_domains
from metadr.engine.ground import Ground, pick_device
from metadr.engine.learner import Learner
from metadr.engine.log import LOOK_EVERY
from metadr.engine.streams import stream_seed
from metadr.provenance import environment
from metadr.training import Precision

STOPS = (0, 3, 10, 30, 100, 300, 1000)


def bench_precision(
    benchmark: str = "embedded",
    method: str = "meta-dr",
    *,
    at: Sequence[int] = STOPS,
    batches: int = 5,
    device: str = "auto",
    fields: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Train on the first domain in fp32 and stop at some steps to take the same gradients in every precision.

    Args:
        benchmark: where the run is; its first domain is trained on.
        method: a sum of parts.
        at: the steps to stop at.
        batches: gradients at each stop, each with a batch and transformations of its own.
        device: where; TF32 needs a GPU.
        fields: settings, as in `make_recipe`.

    Returns:
        The setting and one row for each stop and precision: the median and the largest of |g - g64| / |g64|.
    """
    chosen = pick_device(device)
    recipe = make_recipe(benchmark, method, **(fields or {}))
    training = training_of(recipe)
    resident = load_domains(recipe, chosen)[0]
    train = resident.domain.train
    names: tuple[Precision, ...] = ("fp32", "tf32", "bf16") if chosen.type == "cuda" else ("fp32", "bf16")
    task = benchmark_of(recipe).task
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream_seed(0, "init"))
        module = models.build(training.model, task.num_classes)
    follower = _Follower(recipe, module, chosen, train)
    rows, taken = [], 0
    for stop in sorted(at):
        taken = follower.go_to(stop, taken)
        errors: dict[str, list[float]] = {name: [] for name in names}
        for batch in range(batches):
            exact = follower.gradient(training, batch, double=True)
            for name in names:
                wrong = follower.gradient(dataclasses.replace(training, precision=name), batch) - exact
                errors[name].append(float(wrong.norm() / exact.norm()))
        rows += [
            {"step": stop, "precision": name, "error": statistics.median(values), "largest": max(values)}
            for name, values in errors.items()
        ]
    setting = {"benchmark": recipe.benchmark, "domain": recipe.order[0], "method": method, "model": training.model}
    return {**setting, "n": batches, "environment": environment(chosen), "rows": rows}


class _Follower:
    """A learner that trains, and twins of it in other precisions that only look."""

    def __init__(self, recipe: Recipe, module: nn.Module, device: torch.device, train: Split) -> None:
        self.recipe, self.module, self.device, self.train = recipe, module, device, train
        self.training = training_of(recipe)
        self.ground = Ground(self.training, device)
        with self.ground.held():
            self.learner = self._learner(self.training, capture=True)

    def go_to(self, stop: int, taken: int) -> int:
        with self.ground.held():
            while taken < stop:
                num_steps = min(LOOK_EVERY, stop - taken)
                self.learner.steps(num_steps).read()
                taken += num_steps
        return taken

    def gradient(self, training: Training, batch: int, *, double: bool = False) -> Tensor:
        """The gradient at the learner's weights, of a batch that depends on its number alone."""
        with Ground(training, self.device).held():
            twin = self._learner(training, capture=False, double=double)
            twin.network.load(self.learner.network.state())
            for name, rng in twin.streams.items():
                rng.manual_seed(stream_seed(batch, "precision", name))
            grads = torch.cat([grad.flatten().double() for grad in twin.gradient()[1]])
            if self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()  # who compares it does so on another stream
            return grads

    def _learner(self, training: Training, *, capture: bool, double: bool = False) -> Learner:
        module = copy.deepcopy(self.module)
        task = benchmark_of(self.recipe).task
        learner = Learner(
            self.recipe,
            training,
            task,
            module.double() if double else module,
            seed=0,
            device=self.device,
            capture=capture,
        )
        learner.begin_domain(self.train, first=True)
        return learner
