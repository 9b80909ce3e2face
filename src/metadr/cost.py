"""What a sweep will take, before it starts: from finished runs of the same kind, else from steps measured on such a
GPU, else from a few steps taken here."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metadr.beginnings import shared_domains
from metadr.benchmarks import BENCHMARKS, benchmark_of, steps_of, training_of
from metadr.core import Recipe
from metadr.display import duration
from metadr.errors import UserError
from metadr.lanes import Lanes
from metadr.provenance import published_files
from metadr.store import RunDirectory, finished_runs, method_name_of, whole_training
from metadr.sweep import Job

IMAGE_SIDE = {"digits": 32, "pacs": 224}  # of benchmarks whose images have one size; those of others are looked at
# The settings of Training that decide how long a step takes, by and large.
DECIDING = ("model", "batch_size", "precision", "deterministic", "recompute")
Rates = dict[str, float]  # kind of run -> seconds a step
WORTH_TIMING = 1000  # steps to take of a kind: those of a smaller one are taken as soon


class Cost(NamedTuple):
    """Steps to take, and the time of those runs of which anything is known."""

    steps: int
    seconds: float
    unknown: Counter[str]
    """Runs by method of which nothing is known."""

    def __str__(self) -> str:
        text = f"{self.steps:,} steps to take"
        if self.seconds:
            text += f"; about {duration(self.seconds)}"
        elif self.unknown:
            return f"{text}; how long they take is unknown: no run of these methods was finished or measured."
        if self.unknown:
            runs = ", ".join(f"{count} of {method}" for method, count in self.unknown.items())
            text += f", without runs of which the time is unknown: {runs}"
        return text + "."


def estimate(
    jobs: Sequence[Job],
    out: str | Path,
    device: torch.device,
    *,
    lanes: Lanes = "auto",
    timed: Callable[[Recipe, torch.device], float] | None = None,
) -> Cost:
    """What these runs take on a device, by what is known of their methods.

    Args:
        jobs: the runs.
        out: the folder of runs.
        device: where they will run.
        lanes: how many side by side.
        timed: the seconds a step of a recipe takes, for kinds of runs of which nothing is known and much is to be run.
    """
    # Runs of one's own have tests and a beginning in them.
    rates = _measured(device, side_by_side=len(jobs) > 1 and lanes != 1) | _finished(out, device)
    shared = zip(jobs, shared_domains(jobs), strict=True)
    left = [(job, _kind(job.recipe), _steps_left(job, out, count)) for job, count in shared]
    of_kind = Counter[str]()
    for _, kind, steps in left:
        of_kind[kind] += steps
    for job, kind, _ in left:
        if timed and kind not in rates and of_kind[kind] >= WORTH_TIMING:
            rates[kind] = timed(job.recipe, device)
    seconds = sum(steps * rates.get(kind, 0.0) for _, kind, steps in left)
    unknown = Counter(job.recipe.method_name for job, kind, _ in left if kind not in rates)
    return Cost(sum(steps for _, _, steps in left), seconds, unknown)


def _steps_left(job: Job, out: str | Path, shared: int) -> int:
    """Of the domains that a run has not ended yet, and does not take over from a run before it."""
    steps = steps_of(job.recipe)
    try:
        ended = {row["after"] for row in RunDirectory(out, job.recipe, job.seed).read("rows.json")}
    except (KeyError, TypeError, UserError):
        ended = set()
    named = list(zip(job.recipe.order, steps, strict=True))[shared:]
    return sum(each for name, each in named if name not in ended)


def _kind(recipe: Recipe) -> str:
    """What decides how long a step takes, by and large."""
    training, benchmark = training_of(recipe), benchmark_of(recipe)
    images = benchmark.size_of(recipe.order[0]) if benchmark.size_of else None
    size = tuple(getattr(training, name) for name in DECIDING)
    return _named(recipe.benchmark, images, recipe.method_name, size)


def _named(benchmark: str, images: str | None, method: str, size: tuple[Any, ...]) -> str:
    return json.dumps([benchmark, images, method, *size])


def _has_sizes(name: str) -> bool:
    """Whether a benchmark's images may be of another size in another copy of its data."""
    return name in BENCHMARKS and BENCHMARKS[name].size_of is not None


def _finished(out: str | Path, device: torch.device) -> Rates:
    """From the runs of a folder on such a device: the median of each kind, of the time of their own turns."""
    rates: dict[str, list[float]] = {}
    for folder in finished_runs(out) if Path(out).exists() else ():
        try:
            identity, made, done = (
                json.loads((folder / name).read_text()) for name in ("recipe.json", "environment.json", "done.json")
            )
            training = whole_training(identity)
            size = tuple(training[name] for name in DECIDING)
            images = "{1}x{0}".format(*made["images"]) if _has_sizes(identity["benchmark"]) else None
            kind = _named(identity["benchmark"], images, method_name_of(identity), size)
            steps = done.get("steps", training["steps"] * len(identity["order"]))  # older runs do not say
            if torch.device(made["device"]).type == "cpu":  # one at a time, on all cores
                done.setdefault("own_seconds", done["seconds"])
            if (torch.device(made["device"]).type, made.get("gpu")) == (device.type, _gpu(device)):
                rate = done["own_seconds"] / steps  # before there is a list of none
                rates.setdefault(kind, []).append(rate)
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a report will say what is wrong with it
    return {kind: statistics.median(values) for kind, values in rates.items()}


def _measured(device: torch.device, *, side_by_side: bool) -> Rates:
    """From what `metadr bench step` measured on a GPU of this name and results/bench keeps; the quickest way to run."""
    rates: Rates = {}
    for path in published_files("bench/step*.json") if device.type == "cuda" else ():
        try:
            measured = json.loads(path.read_text())
            if measured["environment"]["gpu"] == _gpu(device):
                found = _measured_in(measured, side_by_side=side_by_side)
                rates |= {kind: min(rate, rates.get(kind, rate)) for kind, rate in found.items()}
        except (OSError, ValueError, KeyError, TypeError):
            continue  # another program's, or of another version
    return rates


def _gpu(device: torch.device) -> str | None:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def _measured_in(measured: dict[str, Any], *, side_by_side: bool) -> Rates:
    rates: Rates = {}
    fixed = [(name, None) for name, side in IMAGE_SIDE.items() if side == measured["size"]]
    for benchmark, images in (*fixed, *((name, measured["size"]) for name in filter(_has_sizes, BENCHMARKS))):
        for row in measured["rows"]:
            ours = re.fullmatch(r"metadr(, \d+ lanes)?", row["contender"])  # deterministic, nothing computed again
            if ours and (side_by_side or not ours[1]):
                size = (measured["model"], measured["batch"], row["precision"], True, False)
                kind = _named(benchmark, images, row["method"], size)
                rates[kind] = min(row["ms"] / 1000, rates.get(kind, float("inf")))
    return rates
