"""The network of a run as a file of its own: to use it elsewhere, or to go on from it on another domain."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from safetensors.torch import save as save_tensors

from metadr import models
from metadr.errors import UserError
from metadr.files import write_file
from metadr.models.weights import file_of
from metadr.store import RunDirectory, whole_training

SCALED = {"unit": "x / 255", "imagenet": "x / 255, less ImageNet's mean, by its deviation"}


class Written(NamedTuple):
    """What a file of weights is, and says of itself."""

    model: str
    learnt: tuple[str, ...]
    """The domains that the run had ended."""
    order: tuple[str, ...]
    classes: tuple[str, ...]
    """In the order of the outputs; none if they have no names, or the run is too old to say."""
    images: str
    """Their size and how they are scaled."""


def write_weights(run: str | Path, file: str | Path) -> Written:
    """Write the network of a run's newest checkpoint as a safetensors file of its `state_dict()`.

    Batch norm's statistics are those that tests went by, but for tested_by=batch, which has none.
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
    learnt = order[: checkpoint.position["stage"]]
    images = _images(identity, made)
    written = Written(training["model"], learnt, order, tuple(made.get("classes", ())), images)
    told = {**{name: json.dumps(value) for name, value in written._asdict().items()}, "format": "pt"}
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    write_file(Path(file), _in_order(save_tensors(checkpoint.network, metadata=told)))
    return written


def unlike_images(weights: str, identity: dict[str, Any], environment: dict[str, Any]) -> str:
    """A sentence where a run's images are of another size or scale than those that its weights were made with."""
    model = models.architecture_of(whole_training(identity)["model"])
    with safe_open(file_of(weights, model), framework="pt") as file:
        theirs = json.loads((file.metadata() or {}).get("images", '""'))
    ours = _images(identity, environment)
    if not theirs or theirs == ours:
        return ""
    return f"Note: its weights were made with images of {theirs}, and here they are of {ours}."


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
