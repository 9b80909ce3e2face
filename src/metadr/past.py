"""What a run goes on from where the domains before its first are gone: all that another run's method kept of them.

It lies in the file of that run's network, behind names of its own (`metadr results weights --past`). A run that names
such a file as its weights begins with a later domain: at the later rate, with the memory, the anchors and the old
network of the run before. With that run's seed, on its kind of device, it is the run over all of their domains, to the
same bits.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from metadr import models
from metadr.core import Part, Recipe, Task, Training
from metadr.errors import UserError
from metadr.models.weights import PAST

TOLD = "past"  # in the metadata of a file


class Past(NamedTuple):
    """What a file says of the run that it holds the past of."""

    key: str  # of the run but for its seed, and of those before it
    learnt: tuple[tuple[str, float], ...]  # the domains of all these, one after another, with their scores just then
    method: Mapping[str, int]  # its parts, with their revisions
    num_classes: int
    classes: tuple[str, ...]  # their names, where they have any
    memory: int  # images
    averaged: int  # domains in the mean of batch norm's statistics, where tests went by that
    seed: int
    device: str  # its kind: random streams belong to one
    num_tensors: int

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.learnt)

    @property
    def words(self) -> str:
        return f"after {self.method_name} on {', '.join(self.domains)}"

    @property
    def method_name(self) -> str:
        return "+".join(self.method) or "naive"

    def metadata(self) -> dict[str, str]:
        return {TOLD: json.dumps(self._asdict())}


def past_of(training: Training) -> Past | None:
    """The past that comes with the file of weights that a run names; none if it comes without one."""
    path = _path(training)
    if path is None or not path.is_file():  # whoever needs the weights will say so
        return None
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


def kept_tensors(training: Training) -> dict[str, Tensor]:
    """What the method kept, by the names that a checkpoint has."""
    path = _path(training)
    assert path is not None
    with safe_open(path, framework="pt") as file:
        kept = {name.removeprefix(PAST): file.get_tensor(name) for name in _names(file)}
    for name, value in kept.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise UserError(
                f"'{name}' of what {path} holds of a run's past has numbers that are not finite. Restore it."
            )
    return kept


def check_past(recipe: Recipe, training: Training, task: Task, classes: tuple[str, ...]) -> None:
    """Refuse to go on where a method builds on what was not kept."""
    past = past_of(training)
    if past is None:
        return
    domains, alone = ", ".join(past.domains), "'metadr results weights' without --past"
    if recipe.access != "current":
        raise UserError(
            f"An oracle sees the data of all domains, and those of {domains} are gone: {training.weights} holds what "
            f"'{past.method_name}' kept of them. Choose another method."
        )
    if past.num_classes != task.num_classes:
        missing, new = (
            [*set(one).difference(other)] for one, other in ((past.classes, classes), (classes, past.classes))
        )
        which = "; ".join(
            f"{what}: {', '.join(sorted(names))}" for what, names in (("missing here", missing), ("new", new)) if names
        )
        raise UserError(
            f"The run that {training.weights} holds the past of tells {past.num_classes} classes apart, and here are "
            f"{task.num_classes}{f' ({which})' if past.classes and which else ''}. A run goes on with the same "
            "classes; of your own images, --set classes=A,B,C names those that none here may be of."
        )
    for part in recipe.method:
        revision = past.method.get(part.name)
        keeps = type(part).end_domain is not Part.end_domain
        there = past.memory if part.uses_memory else revision is not None or not keeps
        if not there and not keeps_weights(part):
            raise UserError(
                f"Part '{part.name}' builds on what it keeps of every domain, and {training.weights} is of a run of "
                f"'{past.method_name}', which kept nothing for it of {domains}. Leave the part out, or start from the "
                f"network alone: {alone}."
            )
        if revision not in (None, part.revision):
            raise UserError(
                f"What part '{part.name}' kept in {training.weights} is of its revision {revision}, and this is "
                f"revision {part.revision}, which may read it otherwise. Go on with the version that wrote it."
            )
    if training.tested_by == "domains" and past.averaged < len(past.domains):
        raise UserError(
            f"With tested_by=domains a test goes by the mean over all domains, and of {domains} {training.weights} has "
            f"{past.averaged} in its mean. Use tested_by=running, or have it from the first domain on."
        )


def needs_a_past(part: Part) -> bool:
    """A part says this of itself: what is made from one may act earlier."""
    return bool(vars(type(part)).get("needs_a_past"))


def keeps_weights(part: Part) -> bool:
    """A part says this of itself: what is made from it may keep more."""
    return bool(vars(type(part)).get("keeps_weights"))


def _path(training: Training) -> Path | None:
    """The file that is named; not one that happens to lie in the data root."""
    kind = models.kind_of(training.weights)
    named = kind == models.FROM_A_FILE != training.weights
    return models.place_of(training.model, str(training.weights)) if named else None


def _names(file: Any) -> list[str]:
    return [name for name in file.keys() if name.startswith(PAST)]  # noqa: SIM118, it is no dict


@functools.lru_cache(maxsize=8)
def _read(path: Path, size: int, changed: int) -> Past | None:
    try:
        with safe_open(path, framework="pt") as file:
            num_tensors, told = len(_names(file)), (file.metadata() or {}).get(TOLD, "")
    except SafetensorError:  # whoever needs the weights will say so
        return None
    if not num_tensors:
        return None
    try:
        past = Past(**json.loads(told))
        learnt = tuple((str(name), float(score)) for name, score in past.learnt)
        past = past._replace(learnt=learnt, classes=tuple(past.classes))
    except (ValueError, TypeError):
        past = None
    if past is None or past.num_tensors != num_tensors:
        raise UserError(
            f"{path} holds something of a run's past, and does not say what, or not all of it: other software or "
            "another version wrote it. Write it again with 'metadr results weights --past'."
        )
    return past
