"""The network of a run as a file of its own: to use it elsewhere, or to go on from it on another domain."""

import json
from pathlib import Path
from typing import NamedTuple

from safetensors.torch import save as save_tensors

from metadr.errors import UserError
from metadr.files import write_file
from metadr.store import RunDirectory, whole_training


class Written(NamedTuple):
    """What a file of weights is."""

    model: str
    scaling: str
    learnt: tuple[str, ...]
    """The domains that the run had ended."""
    order: tuple[str, ...]


def write_weights(run: str | Path, file: str | Path) -> Written:
    """Write the network of a run's newest checkpoint as a safetensors file of its `state_dict()`.

    Batch norm's statistics are those that tests went by, but for tested_by=batch, which has none.
    """
    path = Path(run)
    try:
        identity = json.loads((path / "recipe.json").read_text())
    except (OSError, ValueError):
        raise UserError(f"No run in {path}. Give a run's directory, as 'metadr run' names it at its end.") from None
    checkpoint = RunDirectory.at(path, identity).load()
    if checkpoint is None:
        raise UserError(
            f"Run {path} has no checkpoint, and so no weights. Bring it along with "
            "'metadr results pack --checkpoints', or remove the run and run it again."
        )
    training, order = whole_training(identity), tuple(identity["order"])
    written = Written(training["model"], training["scaling"], order[: checkpoint.position["stage"]], order)
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    # One entry: of several the order is random, and the bytes of the file are part of the key of runs that start from it.
    write_file(Path(file), save_tensors(checkpoint.network, metadata={"format": "pt"}))
    return written
