"""Weights that a network begins with: a file of one's own, or ImageNet's."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from metadr.errors import UserError
from metadr.files import data_root

DRAWN, IMAGENET = "none", "imagenet"


def initial_weights(weights: str, architecture: str) -> dict[str, Tensor] | None:
    """The weights by the names that torchvision gives them; none where they are to be drawn."""
    if weights == DRAWN:
        return None
    path = weights_file(weights, architecture)
    return _read(path) if path is not None else _download(architecture)


def weights_file(weights: str, architecture: str) -> Path | None:
    """The file of given weights: one's own, or that of ImageNet's under the data root, if somebody put it there."""
    if weights == DRAWN:
        return None
    if weights != IMAGENET:
        return Path(weights).expanduser()
    path = data_root() / "weights" / f"{architecture}.safetensors"
    return path if path.exists() else None


def fingerprint(weights: str, architecture: str) -> str:
    """What tells these weights from others: a file by its content, wherever it lies."""
    path = weights_file(weights, architecture)
    if path is None:
        return weights
    if not path.is_file():
        raise _unreadable(path, "there is no such file")
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def load_into(module: nn.Module, state: Mapping[str, Tensor], *, what: str, unused: tuple[str, ...] = ()) -> None:
    """Fill a module; `unused` begins the names of what the weights may have and the module has not."""
    given = {name: value for name, value in state.items() if not name.startswith(unused)}
    # Counters of batches are no weights, and files may leave them out.
    wanted = {name: value for name, value in module.state_dict().items() if not name.endswith("num_batches_tracked")}
    given = {name: value for name, value in given.items() if not name.endswith("num_batches_tracked")}
    missing, extra = sorted(set(wanted) - set(given)), sorted(set(given) - set(wanted))
    shapes = [name for name in wanted if name in given and wanted[name].shape != given[name].shape]
    if missing or extra or shapes:
        kind = "lack" if missing else "have too much of" if extra else "have another shape of"
        example = (missing or extra or shapes)[0]
        raise UserError(
            f"The given weights {kind} '{example}', so they are not of {what}. Give a file of its architecture, by "
            "torchvision's names."
        )
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(given[name])


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except FileNotFoundError:
        raise _unreadable(path, "there is no such file") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, str(error)) from None


def _unreadable(path: Path, reason: str) -> UserError:
    return UserError(
        f"Cannot read the weights {path} ({reason}). --set weights= takes a .safetensors file, 'imagenet' or 'none'."
    )


def _download(architecture: str) -> dict[str, Tensor]:
    """ImageNet's weights from torchvision's publisher, checked by their hash and read without running anything."""
    from torchvision.models import get_model_weights

    place = data_root() / "weights" / f"{architecture}.safetensors"
    way_out = (
        f"Put them in {place}, give a file with --set weights=FILE, or begin from scratch with --set weights=none."
    )
    try:
        published = get_model_weights(architecture)
    except ValueError:
        raise UserError(f"No ImageNet weights are published for '{architecture}'. {way_out}") from None
    try:
        first = next(iter(published))
        state: dict[str, Tensor] = first.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except (OSError, RuntimeError) as error:  # no network, or a file that is not what its hash says
        raise UserError(f"ImageNet's weights of '{architecture}' cannot be downloaded ({error}). {way_out}") from None
    return state
