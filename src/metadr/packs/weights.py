"""The network of a run as a file of its own: to use it elsewhere, or to go on from it on another domain."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from safetensors.torch import save as save_tensors
from torch import Tensor

from metadr import models
from metadr.benchmarks import benchmark_of, training_of
from metadr.core import Recipe
from metadr.errors import UserError
from metadr.files import write_file
from metadr.models.weights import PAST, file_of, listed
from metadr.past import Past, past_of
from metadr.store import (
    NETWORK,
    Checkpoint,
    RunDirectory,
    apart,
    key_of_identity,
    method_name_of,
    whole_training,
)

MEMORY_LABELS = re.compile(r"memory/[0-9]+/y")
SCALED = {"unit": "x / 255", "imagenet": "x / 255, less ImageNet's mean, by its deviation"}


class Written(NamedTuple):
    """What a file of weights is, and says of itself."""

    model: str
    learnt: tuple[str, ...]
    """The domains that the run had ended, after those of the runs that it goes on from."""
    order: tuple[str, ...]
    classes: tuple[str, ...]
    """In the order of the outputs; none if they have no names, or the run is too old to say."""
    images: str
    """Their size and how they are scaled."""


def write_weights(run: str | Path, file: str | Path, *, past: bool = False) -> Written:
    """Write the network of a run's newest checkpoint as a safetensors file of its `state_dict()`.

    Batch norm's statistics are those that tests went by, but for tested_by=batch, which has none. With `past` all that
    its method kept of its domains is in the file too, which another run then goes on from.
    """
    path = Path(run)
    try:
        identity = json.loads((path / "recipe.json").read_text())
    except (OSError, ValueError):
        raise UserError(f"No run in {path}. Give a run's directory, as 'metadr run' names it at its end.") from None
    directory = RunDirectory.at(path, identity)
    checkpoint = directory.load()
    if checkpoint is None:
        raise UserError(
            f"Run {path} has no checkpoint, and so no weights. Bring it along with "
            "'metadr results pack --checkpoints', or remove the run and run it again."
        )
    training, order, made = whole_training(identity), tuple(identity["order"]), directory.read("environment.json")
    before = checkpoint.position.get("past", {"learnt": ()})["learnt"]
    learnt = (*(name for name, _ in before), *order[: checkpoint.position["stage"]])
    images = _images(identity, made)
    written = Written(training["model"], learnt, order, tuple(made.get("classes", ())), images)
    told = {**{name: json.dumps(value) for name, value in written._asdict().items()}, "format": "pt"}
    tensors = checkpoint.network
    if past:
        kept = {name: value for name, value in checkpoint.tensors.items() if not name.startswith(NETWORK)}
        told |= _past(path, identity, checkpoint, kept, written.classes).metadata()
        tensors |= {PAST + name: value for name, value in kept.items()}
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    write_file(Path(file), _in_order(save_tensors(tensors, metadata=told)))
    return written


def _past(
    path: Path, identity: dict[str, Any], checkpoint: Checkpoint, kept: Mapping[str, Tensor], classes: Iterable[str]
) -> Past:
    """What its method kept of a run's domains, or one sentence on why there is nothing to go on from."""
    position, order = checkpoint.position, identity["order"]
    if position["stage"] < len(order):
        raise UserError(
            f"Run {path} has not ended: {position['stage']} of {len(order)} domains have. Let the same 'metadr run' go "
            "on to its end first."
        )
    if "num_classes" not in position or "stream/outer" not in kept:
        raise UserError(
            f"Run {path} kept its network alone, as those of a sweep and of earlier versions do. Make it by 'metadr "
            "run' in another --out, or go on from its network: leave --past out."
        )
    if identity["access"] != "current":
        raise UserError(
            f"Run {path} is an oracle's ('{method_name_of(identity)}'): it needs the data of its domains, and keeps "
            "nothing of them. Leave --past out."
        )
    averaged = kept.get("statistics/domains")
    just_learnt = [(row["on"], row["value"]) for row in position["rows"] if row["on"] == row["after"]]
    before = position.get("past", {"key": apart(identity["data"])[1], "learnt": ()})
    recipe = {**identity, "seed": None, "data": [apart(identity["data"])[0], before["key"]]}
    return Past(
        key=key_of_identity(recipe),
        learnt=(*before["learnt"], *just_learnt),
        method={part["part"]: part["revision"] for part in identity["method"]},
        num_classes=position["num_classes"],
        classes=tuple(classes),
        memory=sum(len(value) for name, value in kept.items() if MEMORY_LABELS.fullmatch(name)),
        averaged=0 if averaged is None else int(averaged),
        seed=identity["seed"],
        device=position["device"],
        num_tensors=len(kept),
    )


def beginning(recipe: Recipe, seed: int) -> str:
    """A sentence on what a run begins with, where that is another run's network; nothing else."""
    training = training_of(recipe)
    past = past_of(training)
    if past is not None:
        said = [f"It goes on from what '{past.method_name}' kept of {', '.join(past.domains)}, at later_lr."]
        if past.seed != seed:
            said.append(f"It draws anew, with seed {seed} instead of {past.seed}.")
        if again := [name for name in recipe.order if name in past.domains]:
            said.append(f"It learns {', '.join(again)} a second time.")
        if unseen := [name for name in past.domains if name not in recipe.domains]:
            said.append(f"It is not tested on {', '.join(unseen)} (--set tested=).")
        if past.memory and not recipe.memory_per_domain:
            said.append(f"The memory of {past.memory} images is dropped: '{recipe.method_name}' has no use for it.")
        return " ".join(said)
    if models.kind_of(training.weights) != models.FROM_A_FILE:
        return ""
    told = _metadata(str(training.weights), training.model)
    learnt, known = (listed(told.get(name, "")) for name in ("learnt", "classes"))
    if not learnt:
        return ""
    said = [
        f"It begins anew, at lr, with a network that learnt {', '.join(learnt)}, and nothing else is kept of these: "
        "'metadr results weights --past' would bring it."
    ]
    here = benchmark_of(recipe).classes
    if known and here and len(known) != len(here):
        said.append(f"Its last layer is drawn at random: it was for {len(known)} classes, and here are {len(here)}.")
    return " ".join(said)


def unlike_images(weights: str, identity: dict[str, Any], environment: dict[str, Any]) -> str:
    """A sentence where a run's images are of another size or scale than those that its weights were made with."""
    theirs = _metadata(weights, whole_training(identity)["model"]).get("images", "").strip('"')
    ours = _images(identity, environment)
    if not theirs or theirs == ours:
        return ""
    return f"Note: its weights were made with images of {theirs}, and here they are of {ours}."


def _metadata(weights: str, model: str) -> dict[str, str]:
    with safe_open(file_of(weights, models.architecture_of(model)), framework="pt") as file:
        return file.metadata() or {}


def _images(identity: dict[str, Any], environment: dict[str, Any]) -> str:
    """The size of a run's images and how they are scaled."""
    size = "x".join(str(side) for side in reversed(environment.get("images", ())))
    return f"{size} {SCALED[whole_training(identity)['scaling']]}".strip()


def _in_order(data: bytes) -> bytes:
    """The same file with its header in alphabetical order: its bytes are part of the key of runs that start from it."""
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[8 + size :]
