"""What a run would find and need, without running it: images, duplicates, memory, time."""

import dataclasses
import hashlib
import resource
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch

from metadr import models
from metadr.benchmarks import benchmark_of, steps_of, training_of
from metadr.core import Benchmark, Domain, Found, Recipe
from metadr.domains import read_domains
from metadr.engine.fit import check_fit
from metadr.engine.ground import Ground, pick_device
from metadr.engine.learner import Learner
from metadr.engine.network import Network
from metadr.evaluate import confusion

TIMED_STEPS = 3  # at each domain, after one that is not counted
SLOW = 2.0  # seconds: on a CPU such a step is timed by itself, since what it does only once is little beside it
TIMED_IMAGES = 256  # of a test and of a domain's end, which are then taken to grow with the number of images


class Twins(NamedTuple):
    """Images of one split that another has too, pixel for pixel."""

    here: str  # "fog/test"
    there: str  # "day/train"
    num_images: int
    example: tuple[str, str] | None  # the files of the first, where they are known


class Cost(NamedTuple):
    """What a run takes on a device, from a few of its steps."""

    device: str
    image_bytes: int
    """All domains as they lie on the device."""
    peak_bytes: int
    """Of the device while it trained; of the whole process, where that is a CPU."""
    step_seconds: tuple[float, ...]
    """A step at each domain."""
    end_seconds: float
    """What parts do at the ends of domains."""
    test_seconds: float
    steps: tuple[int, ...]
    """So many of them at each."""

    @property
    def seconds(self) -> float:
        steps = sum(count * seconds for count, seconds in zip(self.steps, self.step_seconds, strict=True))
        return steps + self.end_seconds + self.test_seconds


class Survey(NamedTuple):
    """All that `--dry-run` tells."""

    benchmark: Benchmark
    counts: Mapping[str, list[tuple[int, ...]]]
    """By domain: training and test images of each class, and those that are held out where there are any."""
    twins: list[Twins]
    cost: Cost


def survey(recipe: Recipe, found: Mapping[str, Found], seed: int = 0, *, device: str = "auto") -> Survey:
    """Look through the images of a recipe that `prepare` found, and time a few steps."""
    chosen, benchmark = pick_device(device), benchmark_of(recipe)
    whole = read_domains(dataclasses.replace(recipe, overrides=(*recipe.overrides, ("limit", None))))
    counts = {}
    for domain in () if benchmark.task.on_masks else whole:
        splits = [split for split in (domain.train, domain.test, domain.val) if split is not None]
        by_class = (split.y.bincount(minlength=benchmark.task.num_classes).tolist() for split in splits)
        counts[domain.name] = list(zip(*by_class, strict=True))
    with Ground(training_of(recipe), chosen).held():
        cost = _cost(recipe, benchmark, whole, seed, chosen)
    return Survey(benchmark, counts, twins(whole, found), cost)


def seconds_a_step(recipe: Recipe, device: torch.device) -> float:
    """By a few steps on each domain: what a whole run takes, by its number of steps."""
    with Ground(training_of(recipe), device).held():
        cost = _cost(recipe, benchmark_of(recipe), read_domains(recipe), 0, device)
    return cost.seconds / sum(cost.steps)


def twins(domains: list[Domain], found: Mapping[str, Found]) -> list[Twins]:
    """Equal images in different splits, the trained ones first: those of a test set were seen in training."""
    first: dict[str, dict[bytes, int]] = {}
    rows: dict[str, list[bytes]] = {}
    for part in ("train", "test"):
        for domain in domains:
            split = domain.train if part == "train" else domain.test
            place = f"{domain.name}/{part}"
            rows[place] = [hashlib.sha256(image.numpy().tobytes()).digest() for image in split.x.cpu()]
            first[place] = {digest: row for row, digest in reversed(list(enumerate(rows[place])))}
    pairs = []
    places = list(rows)
    for number, here in enumerate(places):
        for there in places[:number]:
            equal = [(row, first[there][digest]) for row, digest in enumerate(rows[here]) if digest in first[there]]
            if equal:
                names = _file(here, equal[0][0], found), _file(there, equal[0][1], found)
                pairs.append(Twins(here, there, len(equal), (names[0], names[1]) if all(names) else None))
    return pairs


def _file(place: str, row: int, found: Mapping[str, Found]) -> str:
    domain, _, part = place.rpartition("/")
    if domain not in found:
        return ""
    return (found[domain].train if part == "train" else found[domain].test)[row]


def _cost(recipe: Recipe, benchmark: Benchmark, whole: list[Domain], seed: int, device: torch.device) -> Cost:
    """Go through the sequence with a few steps a domain: with memories and anchors steps take longer than without."""
    training = training_of(recipe)
    with torch.random.fork_rng(devices=[]):
        module = models.build(training.model, benchmark.task.num_classes)
    used = [
        domain._replace(train=domain.train.first(training.limit), test=domain.test.first(training.limit))
        for domain in whole
    ]
    check_fit(training, Network(module, benchmark.task), used)
    learner = Learner(recipe, training, benchmark.task, module, seed=seed, device=device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    steps, ends, tests = [], 0.0, 0.0
    for number, domain in enumerate(used):
        place = "cpu" if training.stream else device
        train, test = (split.first(TIMED_IMAGES).to(place) for split in (domain.train, domain.test))
        if number < len(recipe.order):  # the others are only tested on
            learner.begin_domain(train, first=number == 0)
            first = _seconds(partial(learner.steps, 1), device)
            enough = device.type == "cpu" and first > SLOW
            steps.append(first if enough else _seconds(partial(learner.steps, TIMED_STEPS), device) / TIMED_STEPS)
            end = _seconds(partial(learner.end_domain, domain._replace(train=train, test=test)), device)
            ends += end * domain.train.num_images / train.num_images
        tests += _seconds(partial(confusion, learner.network, test), device) * domain.test.num_images / test.num_images
    image_bytes = sum(tensor.nbytes for domain in used for split in domain[1:3] for tensor in split)
    return Cost(
        device=str(device),
        image_bytes=image_bytes,
        peak_bytes=_peak(device) + (image_bytes if device.type == "cuda" else 0),
        step_seconds=tuple(steps),
        end_seconds=ends,
        test_seconds=tests * (len(steps) + 1),
        steps=steps_of(recipe),
    )


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    def synchronised() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    started = synchronised()
    work()
    return synchronised() - started


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
