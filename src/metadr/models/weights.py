"""Weights that training starts from: named in a setting, known by content, put into a network.

None       drawn at random
imagenet   those that the makers of the network publish
FILE       a safetensors file, whose content is part of a run's key; `file` stands for one where only the kind counts,
           and for weights/NETWORK.safetensors in the data root if that is there
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from metadr.errors import UserError
from metadr.files import data_root

Shape = tuple[int, ...]

IMAGENET = "imagenet"
FROM_A_FILE = "file"
CLASSES = "classes"  # what a file says of itself, if a run wrote it: names in the order of the outputs
MODEL = "model"  # and the network, which others may say too
PAST = "past/"  # before the names of what is not the network's, but what a run's method kept (past.py)
ALIKE = {"resnet50", "resnet50_v1"}  # by name and shape of their weights; by what these mean they are not
COUNTERS = "num_batches_tracked"  # of batch norm: files from other libraries have none, and nothing reads them
LENGTH_BYTES = 8  # of a safetensors file: the first, which say how long the header behind them is


def kind_of(weights: str | None) -> str | None:
    """What is known of weights without their file."""
    return weights if weights in (None, IMAGENET) else FROM_A_FILE


def file_of(weights: str, network: str) -> Path:
    """The file of weights: the one that is named, else the one that the data root has for a network."""
    path = place_of(weights, network)
    if weights == FROM_A_FILE and not path.exists():
        raise UserError(
            f"This starts from weights in a file. Name it with --weights FILE (safetensors), or put it in {path}; "
            "docs/calibration.md says which the published runs had."
        )
    return path


def place_of(weights: str, network: str) -> Path:
    """Where that file is, or would be."""
    if weights != FROM_A_FILE:
        return Path(weights).expanduser()
    return data_root() / "weights" / f"{network}.safetensors"


def content_of(weights: str | None, network: str) -> str:
    """The first digits of the SHA-256 of a file of weights; nothing for weights that have a name."""
    if kind_of(weights) != FROM_A_FILE or weights is None:
        return ""
    path = file_of(weights, network)
    try:
        stat = path.stat()
        if not path.is_file():
            raise UserError(f"{path} is a folder. Weights are one safetensors file: --weights FILE.")
        return _content(path, stat.st_size, stat.st_mtime_ns)
    except OSError as error:
        raise UserError(
            f"Cannot read the weights {path}: {error.strerror or error}. Give --weights a safetensors file"
            f"{'' if path.suffix else f', or {IMAGENET!r}'}."
        ) from error


@functools.lru_cache(maxsize=8)
def _content(path: Path, size: int, changed: int) -> str:
    _header(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _header(path: Path) -> None:
    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        missing = _missing_bytes(path)
        if missing:
            raise UserError(
                f"{path} is cut short: its last {missing} bytes are missing. Copy or download it again."
            ) from None
        raise UserError(
            f"{path} is no safetensors file ({error}). Write the network's state_dict() with "
            "safetensors.torch.save_file and give that."
        ) from None


def _missing_bytes(path: Path) -> int:
    """How much shorter a file is than its header says, if that can be read."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        room = path.stat().st_size - LENGTH_BYTES
        if length > room:
            return 0
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return max(0, max(ends, default=0) + length - room)
        except (ValueError, LookupError, TypeError, AttributeError):  # another kind of file
            return 0


def check_classes(weights: str, network: str, classes: tuple[str, ...]) -> None:
    """Refuse a run's network (packs/weights.py) that tells as many classes apart, but others."""
    with safe_open(file_of(weights, network), framework="pt") as file:
        known = listed((file.metadata() or {}).get(CLASSES, ""))
    if known and len(known) == len(classes) and known != classes:
        raise UserError(
            f"The weights {weights} tell {', '.join(known)} apart, and here the classes are {', '.join(classes)}. Name "
            "and order them alike, or start from other weights."
        )


def listed(text: str) -> tuple[str, ...]:
    """The names in a file's metadata, if a run wrote them: others may say there what they like."""
    try:
        names = json.loads(text)
    except ValueError:
        return ()
    return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


def check_network(weights: str, network: str) -> None:
    """Refuse weights of the other network of two that names and shapes cannot tell apart, as far as they say so.

    A file says it in its metadata, or by its name, which is its network's in the data root.
    """
    path = file_of(weights, network)
    with safe_open(path, framework="pt") as file:
        said = (file.metadata() or {}).get(MODEL, "").strip('"').removeprefix("unet_")
    if not said and path.stem in ALIKE - {"resnet50"}:  # that may be the name of a file of either
        said = path.stem
    if {said, network} == ALIKE:
        raise UserError(
            f"The weights {weights} are those of '{said}', whose strides are others than those of '{network}': they "
            f"would fit and mean something else. Use a model of '{said}', or weights of '{network}'."
        )


def read_file(weights: str, network: str) -> Mapping[str, Tensor]:
    content_of(weights, network)  # or one sentence on what is wrong with it
    check_network(weights, network)
    with safe_open(file_of(weights, network), framework="pt") as file:
        return {name: file.get_tensor(name) for name in _of_network(file)}


def last_layer(network: nn.Module) -> str:
    return [name for name, _ in network.named_parameters()][-1].rpartition(".")[0]


def shapes_of(weights: str, network: str) -> dict[str, Shape]:
    """The names and shapes of what a file holds; of its numbers nothing is read."""
    with safe_open(file_of(weights, network), framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in _of_network(file)}


def _of_network(file: Any) -> list[str]:
    return [name for name in file.keys() if not name.startswith(PAST)]  # noqa: SIM118, it is no dict


def fill(network: nn.Module, state: Mapping[str, Tensor], *, head: str, model: str, origin: str) -> None:
    """Put weights into a network. Only the layer `head` may be another on one side, or missing: it is left as it is."""
    given = {name: tuple(value.shape) for name, value in state.items()}
    own = network.state_dict()
    with torch.no_grad():
        for name in fitting(network, given, head=head, model=model, origin=origin):
            if own[name].is_floating_point() and not state[name].is_floating_point():
                kind = str(state[name].dtype).removeprefix("torch.")
                raise UserError(
                    f"'{name}' of the weights {origin} is of type {kind}, as in a quantised network, and here it is a "
                    "fraction. Give the weights in float32."
                )
            if not state[name].isfinite().all():
                raise UserError(
                    f"'{name}' of the weights {origin} has numbers that are not finite, as large ones in half "
                    "precision are not. Give the weights in float32."
                )
            own[name].copy_(state[name])


def fitting(network: nn.Module, given: Mapping[str, Shape], *, head: str, model: str, origin: str) -> list[str]:
    """The names of what a network takes from weights of these shapes, or one sentence on why it cannot."""
    own = {name: tuple(value.shape) for name, value in network.state_dict().items()}
    heads = {head, *_other_heads(own, given, head)}

    def free(name: str) -> bool:
        return name.rpartition(".")[0] in heads or name.endswith(COUNTERS)

    strange = next((name for name in given if name not in own and not free(name)), None)
    if strange is not None:
        raise _misfit(origin, model, f"it has '{strange}', which the network has not")
    for name, shape in own.items():
        if given.get(name) != shape and not free(name):
            what = "is missing" if name not in given else f"is {_size(given[name])} instead of {_size(shape)}"
            raise _misfit(origin, model, f"'{name}' {what}")
    return [name for name, shape in own.items() if given.get(name) == shape]


def _other_heads(own: Mapping[str, Shape], given: Mapping[str, Shape], head: str) -> list[str]:
    """Layers that differ from a file's in the number of classes alone, as the last one does: some networks have two."""
    layers: dict[str, set[Shape]] = {}
    for name, shape in own.items():
        other = given.get(name, ())
        alike = shape and other and shape[1:] == other[1:]
        layers.setdefault(name.rpartition(".")[0], set()).add((shape[0], other[0]) if alike else ())
    of_head = layers.get(head, set())
    return [] if () in of_head else [layer for layer, classes in layers.items() if classes == of_head]


def _misfit(origin: str, model: str, what: str) -> UserError:
    return UserError(f"The weights {origin} do not fit model '{model}': {what}. Choose the network they were made for.")


def _size(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "a number"
