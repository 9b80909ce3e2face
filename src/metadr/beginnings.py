"""What runs of a sweep have in common at their start, trained once.

Runs that differ only in what comes later, such as orders of the domains, later rates, how strongly EWC pulls or whether
there is a memory, are one run until then. The first of them to end a domain that others begin with as well leaves its
checkpoint, and the others go on from there: to the same bits as if each had begun by itself, since that is what going
on from a checkpoint is. The first domain is shared by methods whose other parts need a past; each keeps its own of it.
"""

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metadr.benchmarks import benchmark_of, training_of
from metadr.core import Part, Recipe
from metadr.errors import UserError
from metadr.past import needs_a_past, past_of
from metadr.policies import others_kept
from metadr.promises import Promises
from metadr.provenance import environment
from metadr.store import (
    Checkpoint,
    RunDirectory,
    content_of,
    description,
    read_checkpoint,
    read_position,
    without_index,
)

FOLDER = ".beginnings"  # in that of the runs, while there are runs to be made; nothing but time is lost without it
LOOK_SECONDS = 0.25  # between looks at what other processes have left and are about to leave
OF_LATER_DOMAINS = ("later_lr", "later_epochs", "later_norm")  # settings of the training that say nothing of the first
Run = tuple[Recipe, int]  # and its seed


class Beginning(NamedTuple):
    """What a run had learnt when it ended so many domains."""

    num_domains: int
    checkpoint: Checkpoint

    def state_of(self, recipe: Recipe, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of a learner that goes on from it; `own` is that learner's, before its next domain's first step."""
        acting = {"outer", "shuffle", *(part.name for part in recipe.method if not needs_a_past(part))}

        def is_own(name: str) -> bool:
            kind, _, rest = name.partition("/")
            # Another method may have left the first domain: what parts keep of it is each run's own.
            kept = self.num_domains == 1 and kind in ("stream", "part", "memory") and rest.split("/")[0] not in acting
            return kept or name == "turns/order"  # and the turns of images are those of the next domain

        left = self.checkpoint.tensors
        return {name: left[name] for name in left if not is_own(name)} | {
            name: own[name] for name in own if is_own(name)
        }


class Beginnings:
    """The beginnings that several runs of a sweep share, also with other processes that sweep into the same folder."""

    def __init__(self, runs: Collection[Run], out: str | Path, device: torch.device) -> None:
        self._out, self._folder = out, Path(out) / FOLDER
        ground = without_index(environment(device))  # what another machine or version left is another beginning
        self._keys = {run: [_hash([key, ground]) for key in keys_of(*run)] for run in runs}
        self._wanted: dict[str, set[Run]] = {}  # by runs that have not ended
        for run, keys in self._keys.items():
            for key in keys:
                self._wanted.setdefault(key, set()).add(run)
        self._shared = {key for key, those in self._wanted.items() if len(those) > 1}
        self._there: dict[str, Path] = {}
        self._theirs: Set[str] = frozenset()  # what other processes will leave
        self._looked = float("-inf")
        self._coming: dict[Run, set[str]] = {}  # what a run that was started will leave
        self._promises = Promises(self._folder)  # the same for other processes
        ended = {run: _num_ended(out, *run) for run in runs}
        self._begun = {run: count for run, count in ended.items() if count is not None}

    def close(self) -> None:
        """Call when no run goes on any more: nobody need wait for any of them."""
        self._promises.close()
        with suppress(OSError):  # not there, or not empty
            self._folder.rmdir()

    def start(self, recipe: Recipe, seed: int) -> None:
        """Call when a run starts: it will leave the beginnings that it has not passed."""
        self._begun[recipe, seed] = _num_ended(self._out, recipe, seed) or 0
        self._promise((recipe, seed), self._begun[recipe, seed])

    def put_back(self, recipe: Recipe, seed: int) -> None:
        """Call when a run that was started does not go on: it will leave nothing."""
        self._looked = float("-inf")  # whoever has it promised before what it will leave
        self.leaves_nothing(recipe, seed)
        if _num_ended(self._out, recipe, seed) is None:
            self._begun.pop((recipe, seed), None)

    def leaves_nothing(self, recipe: Recipe, seed: int) -> None:
        """Call when a run will leave nothing more, so that nobody waits for it."""
        self._coming.pop((recipe, seed), None)
        self._tell()

    def end(self, recipe: Recipe, seed: int) -> None:
        """Call when a run is finished: what nobody wants any more is removed."""
        self.leaves_nothing(recipe, seed)
        for key in self._keys[recipe, seed]:
            self._wanted[key].discard((recipe, seed))
            if not self._wanted[key]:
                self._there.pop(key, None)
                for path in self._folder.glob(f"{key}-*"):  # more than one if others left it at the same time
                    path.unlink(missing_ok=True)

    def num_ended(self, recipe: Recipe, seed: int) -> int:
        """How many domains it need not train on if it starts now: by its own checkpoint, else by what others left."""
        own = self._begun.get((recipe, seed))
        return self._longest(self._keys[recipe, seed]) if own is None else own

    def waits(self, run: Run, running: Iterable[Run]) -> bool:
        """Whether it should wait for a run that is about to leave a longer beginning than those that are there."""
        if run in self._begun:  # it has a checkpoint of its own
            return False
        keys = self._keys[run]
        missing = set(keys[self._longest(keys) :])
        coming = (self._theirs, *(self._coming.get(other, set()) for other in running))
        return not all(map(missing.isdisjoint, coming))

    def find(self, recipe: Recipe, seed: int, usable: Callable[[Beginning], bool]) -> Beginning | None:
        """The longest that is there and can be used."""
        keys = self._keys[recipe, seed]
        for num_domains in range(self._longest(keys), 0, -1):
            begun = self._read(keys[num_domains - 1], num_domains)
            if begun and usable(begun):
                self._promise((recipe, seed), num_domains)
                return begun
        return None

    def leaves(self, recipe: Recipe, seed: int, num_domains: int) -> Callable[[Path], None] | None:
        """What to do with the checkpoint that a run writes when so many domains have ended; none if nobody wants it."""
        key = next(iter(self._keys[recipe, seed][num_domains - 1 : num_domains]), None)
        return partial(self._keep, key) if key in self._shared and key not in self._there else None

    def _promise(self, run: Run, num_domains: int) -> None:
        """What a run that has ended so many domains will leave."""
        self._coming[run] = self._shared.intersection(self._keys[run][num_domains:])
        self._tell()

    def _tell(self) -> None:
        self._promises.hold(set[str]().union(*list(self._coming.values())))

    def _longest(self, keys: list[str]) -> int:
        self._look()
        return max((count for count, key in enumerate(keys, start=1) if key in self._there), default=0)

    def _look(self) -> None:
        """See what others promise, and only then what is there: it is left before it is promised no more."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            self._theirs = self._promises.of_others()
            self._there |= {path.name.partition("-")[0]: path for path in self._folder.glob("*-*.safetensors")}

    def _read(self, key: str, num_domains: int) -> Beginning | None:
        """One that is damaged or gone is forgotten, so that another run may leave it again."""
        path = self._there.get(key)
        if path is None:
            return None
        with suppress(OSError):  # another process may have ended the same sweep
            if checkpoint := read_checkpoint(path):
                return Beginning(num_domains, checkpoint)
            path.unlink()
        self._there.pop(key, None)
        return None

    def _keep(self, key: str, checkpoint: Path) -> None:
        """Called by whoever writes checkpoints. Where it cannot be kept, nobody waits for it."""
        kept = self._folder / f"{key}-{checkpoint.stem.split('-')[-1]}.safetensors"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            _link(checkpoint, kept)
        except OSError:
            for coming in list(self._coming.values()):
                coming.discard(key)
            self._tell()
        else:
            self._there[key] = kept


def keys_of(recipe: Recipe, seed: int) -> list[str]:
    """All that decides a run up to the end of its first domain, of its second, and so on before the last."""
    return _keys(recipe, seed, content_of)


def shared_domains(runs: Iterable[Run]) -> list[int]:
    """Of runs one after another, how many domains each begins with that were among those before it; without a look at
    the data."""
    seen, found = set[str](), []
    for recipe, seed in runs:
        keys = _keys(recipe, seed, lambda _: "")
        found.append(max((count for count, key in enumerate(keys, start=1) if key in seen), default=0))
        seen.update(keys)
    return found


def _keys(recipe: Recipe, seed: int, data_of: Callable[[Recipe], str]) -> list[str]:
    benchmark, training = benchmark_of(recipe), training_of(recipe)
    if recipe.access == "all" or training.kept_epoch == "best" or past_of(training):
        return []  # what it sees first, or says of it, depends on all of its domains, or on those before
    made_for = [seed, benchmark.classes, benchmark.task.num_classes]
    rest = {name: value for name, value in description(recipe).items() if name not in ("order", "tested")}
    contents: list[list[Any]] = [[_of_first_domain(recipe), data_of(_first_domain(recipe))]]
    for count in range(2, len(recipe.order)):
        contents += [[rest, recipe.order[:count], sorted(recipe.domains), data_of(recipe)]]
    return [_hash([*content, made_for]) for content in contents[: len(recipe.order) - 1]]


def _first_domain(recipe: Recipe) -> Recipe:
    """What a run is on its first domain; tests on others can still be made up for."""
    acting = tuple(part for part in recipe.method if not needs_a_past(part))
    fields: dict[str, Any] = {"order": recipe.order[:1], "tested": (), "method": acting, "access": "current"}
    if not any(part.uses_memory for part in acting):
        fields |= {"memory_per_domain": 0, "memory_choice": "random"}
    return dataclasses.replace(recipe, **fields)


def _of_first_domain(recipe: Recipe) -> dict[str, Any]:
    """What decides a run until its first domain has ended."""
    first = _first_domain(recipe)
    content = description(first)
    training = {name: value for name, value in content["training"].items() if name not in OF_LATER_DOMAINS}
    kept = others_kept(training_of(recipe), recipe.method)  # a run of its own keeps these
    return {**content, "method": [_at_first(part) for part in first.method], "training": training, "kept": kept}


def _at_first(part: Part) -> dict[str, Any]:
    """A part says of itself what does nothing yet: what is made from it may use such a setting earlier."""
    later = vars(type(part)).get("of_later_domains", ())
    return {name: value for name, value in part.content().items() if name not in later}


def _num_ended(out: str | Path, recipe: Recipe, seed: int) -> int | None:
    """How many domains a run had ended at its newest checkpoint; none without one."""
    checkpoints = RunDirectory(out, recipe, seed).checkpoints()
    if not checkpoints:
        return None
    try:
        ended: int = read_position(checkpoints[0])["stage"]
    except (UserError, ValueError, KeyError, TypeError):  # damaged: the run will see to it, and nobody waits
        return len(recipe.order)
    return ended


def _link(path: Path, other: Path) -> None:
    """A second name for a file, which its run may remove; a copy where the disk has no such thing."""
    if other.exists():
        return
    try:
        os.link(path, other)
    except OSError:
        part = other.with_suffix(".part")
        try:
            shutil.copyfile(path, part)
            part.replace(other)
        finally:
            part.unlink(missing_ok=True)


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
