"""What runs of a sweep have in common at their start, trained once.

Runs that differ only in what comes later, such as orders of the domains or later rates, are one run until then. The
first of them to end a domain that others begin with as well leaves its checkpoint, and the others go on from there: to
the same bits as if each had begun by itself, since that is what going on from a checkpoint is.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metadr.benchmarks import benchmark_of, training_of
from metadr.core import Recipe
from metadr.provenance import environment
from metadr.store import Checkpoint, RunDirectory, description, identity, read_checkpoint

FOLDER = ".beginnings"  # in that of the runs, while there are runs to be made
OF_LATER_DOMAINS = ("later_lr", "later_epochs")  # settings of the training that say nothing of the first
Run = tuple[Recipe, int]  # and its seed


class Beginning(NamedTuple):
    """What a run had learnt when it ended so many domains."""

    num_domains: int
    checkpoint: Checkpoint


class Beginnings:
    """The beginnings that several runs of a sweep share."""

    def __init__(self, runs: Collection[Run], out: str | Path, device: torch.device) -> None:
        self._out, self._folder = out, Path(out) / FOLDER
        ground = environment(device)  # what another machine or version left is another beginning
        self._keys = {run: [_hash([key, ground]) for key in keys_of(*run)] for run in runs}
        counts = Counter(key for keys in self._keys.values() for key in keys)
        self._shared = {key for key, count in counts.items() if count > 1}
        self._there = {path.name.partition("-")[0]: path for path in self._folder.glob("*-*.safetensors")}
        self._coming: dict[Run, set[str]] = {}  # what a run that was started will leave

    def start(self, recipe: Recipe, seed: int) -> None:
        """Call when a run starts: one that goes on leaves no beginning that it has passed."""
        afresh = not RunDirectory(self._out, recipe, seed).checkpoints()
        self._coming[recipe, seed] = self._shared.intersection(self._keys[recipe, seed]) if afresh else set()

    def waits(self, run: Run, running: Iterable[Run]) -> bool:
        """Whether it should wait for a run that is about to leave a longer beginning than those that are there."""
        keys = self._keys[run]
        coming = set[str]().union(*(self._coming.get(other, set()) for other in running))
        return any(key in coming for key in keys[self._longest(keys) :])

    def find(self, recipe: Recipe, seed: int) -> Beginning | None:
        """The longest that is there."""
        keys = self._keys[recipe, seed]
        for num_domains in range(self._longest(keys), 0, -1):
            with suppress(KeyError, OSError):  # it may be gone: another process has ended the same sweep
                if checkpoint := read_checkpoint(self._there[keys[num_domains - 1]]):
                    return Beginning(num_domains, checkpoint)
        return None

    def leaves(self, recipe: Recipe, seed: int, num_domains: int) -> Callable[[Path], None] | None:
        """What to do with the checkpoint that a run writes when so many domains have ended; none if nobody wants it."""
        key = next(iter(self._keys[recipe, seed][num_domains - 1 : num_domains]), None)
        return partial(self._keep, key) if key in self._shared and key not in self._there else None

    def clear(self) -> None:
        """Call when nothing is left to run."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _longest(self, keys: list[str]) -> int:
        return max((count for count, key in enumerate(keys, start=1) if key in self._there), default=0)

    def _keep(self, key: str, checkpoint: Path) -> None:
        """Called by whoever writes checkpoints. Where it cannot be kept, nobody waits for it."""
        kept = self._folder / f"{key}-{checkpoint.stem.split('-')[-1]}.safetensors"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _link(checkpoint, kept)
        except OSError:
            for coming in list(self._coming.values()):
                coming.discard(key)
        else:
            self._there[key] = kept


def keys_of(recipe: Recipe, seed: int) -> list[str]:
    """All that decides a run up to the end of its first domain, of its second, and so on before the last."""
    return _keys(recipe, identity(recipe, seed))


def _keys(recipe: Recipe, content: dict[str, Any]) -> list[str]:
    benchmark = benchmark_of(recipe)
    if recipe.access == "all" or training_of(recipe).kept_epoch == "best":
        return []  # what it sees first, or says of it, depends on all of its domains
    data = content["data"].split(", ")
    rest = {name: value for name, value in content.items() if name not in ("order", "tested", "data")}
    first = {name: value for name, value in content["training"].items() if name not in OF_LATER_DOMAINS}
    keys = []
    for count in range(1, len(recipe.order)):
        begins = recipe.order[:count]
        later = set(recipe.domains) - set(begins)
        read = [each for each in data if each.partition(" ")[0] not in later]
        # Tests on other domains can be made up for at the end of the first, and not of those after it.
        tested = sorted(recipe.domains) if count > 1 else []
        trained = {**rest, "training": first} if count == 1 else rest
        keys.append(_hash([trained, begins, read, tested, benchmark.classes, benchmark.task.num_classes]))
    return keys


def shared_domains(runs: Iterable[Run]) -> list[int]:
    """Of runs one after another, how many domains each begins with that were among those before it; without a look at
    the data."""
    seen, found = set[str](), []
    for recipe, seed in runs:
        keys = _keys(recipe, {**description(recipe), "data": "", "seed": seed})
        found.append(max((count for count, key in enumerate(keys, start=1) if key in seen), default=0))
        seen.update(keys)
    return found


def _link(path: Path, other: Path) -> None:
    """A second name for a file, which its run may remove; a copy where the disk has no such thing."""
    if not other.exists():
        try:
            os.link(path, other)
        except OSError:
            shutil.copyfile(path, other)


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
