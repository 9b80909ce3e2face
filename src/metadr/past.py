"""What a run goes on from where the domains before its first are gone: all that another run's method kept of them.

It lies in the file of that run's network, behind names of its own (`metadr results weights --past`). A run that starts
from such weights begins with a later domain: at the later rate, with the memory, the anchors and the old network of
the run before. With that run's seed, on its kind of device, it is the run over all of their domains, to the same bits.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from torch import Tensor

from metadr import models
from metadr.core import Recipe, Task, Training
from metadr.errors import UserError
from metadr.models.weights import PAST

TOLD = "past"  # in the metadata of a file


class Past(NamedTuple):
    """What a file says of the run that it holds the past of."""

    domains: tuple[str, ...]  # that the run and those before it learnt
    method: Mapping[str, int]  # its parts, with their revisions
    num_classes: int
    seed: int
    device: str  # its kind: random streams belong to one

    def metadata(self) -> dict[str, str]:
        return {TOLD: json.dumps(self._asdict())}


def past_of(training: Training) -> Past | None:
    """The past that a run's weights come with; none if they come without one."""
    path = _path(training)
    if path is None or not path.is_file():  # whoever needs the weights will say so
        return None
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


def is_first(training: Training, stage: int) -> bool:
    """Whether a stage of a run is the first that its network learns."""
    return stage == 0 and past_of(training) is None


def kept_tensors(training: Training) -> dict[str, Tensor]:
    """What the method kept, by the names that a checkpoint has."""
    path = _path(training)
    assert path is not None
    with safe_open(path, framework="pt") as file:
        names = [name for name in file.keys() if name.startswith(PAST)]  # noqa: SIM118, it is no dict
        return {name.removeprefix(PAST): file.get_tensor(name) for name in names}


def check_past(recipe: Recipe, training: Training, task: Task) -> None:
    """Refuse to go on where a method builds on what was not kept."""
    past = past_of(training)
    if past is None:
        return
    before = "+".join(past.method) or "naive"
    if recipe.access != "current":
        raise UserError(
            f"An oracle sees the data of all domains, and those of {', '.join(past.domains)} are gone: "
            f"{training.weights} holds what '{before}' kept of them. Choose another method."
        )
    if past.num_classes != task.num_classes:
        raise UserError(
            f"The run that {training.weights} holds the past of tells {past.num_classes} classes apart, and here are "
            f"{task.num_classes}. Go on with the same classes, or start from its network alone: 'metadr results "
            "weights' without --past."
        )
    for part in recipe.method:
        there = past.method.get(part.name)
        if there is None and vars(type(part)).get("needs_a_past"):
            raise UserError(
                f"Part '{part.name}' builds on what it kept of {', '.join(past.domains)}, and {training.weights} is of "
                f"a run of '{before}', which kept nothing for it. Leave the part out, or start from the network alone: "
                "'metadr results weights' without --past."
            )
        if there is not None and there != part.revision:
            raise UserError(
                f"What part '{part.name}' kept in {training.weights} is of its revision {there}, and this is revision "
                f"{part.revision}, which may read it otherwise. Go on with the version that wrote it."
            )


def _path(training: Training) -> Path | None:
    named = models.kind_of(training.weights) == models.FROM_A_FILE
    return models.place_of(training.model, str(training.weights)) if named else None


@functools.lru_cache(maxsize=8)
def _read(path: Path, size: int, changed: int) -> Past | None:
    try:
        with safe_open(path, framework="pt") as file:
            told = (file.metadata() or {}).get(TOLD)
    except SafetensorError:  # whoever needs the weights will say so
        return None
    content: dict[str, Any] | None = told and json.loads(told)
    return Past(**{**content, "domains": tuple(content["domains"])}) if content else None
