"""The classifiers of torchvision and, where it is installed, of timm: by name, and with their ImageNet weights.

Both take a second or more to import, which most commands need not spend: nothing here does so before it must.
"""

import functools
import pickle
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from metadr.errors import UserError

Value = TypeVar("Value")

TIMM = "timm/"  # before the name of a model of timm that torchvision has too
PUBLISHED = "IMAGENET1K_V1"  # of several weights of torchvision those that have been there from the beginning
# Of torchvision's networks that say several things of an image while they are trained: the layers that say the others.
AUXILIARY = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}


def torchvision_names() -> list[str]:
    import torchvision

    listed: list[str] = torchvision.models.list_models(module=torchvision.models)
    return listed


def has_timm() -> bool:
    return find_spec("timm") is not None


def timm_names() -> list[str]:
    """Without torchvision's; none where timm is not installed."""
    if not has_timm():
        return []
    import timm

    listed: list[str] = timm.list_models()
    return sorted(set(listed) - set(torchvision_names()))


def library_of(name: str) -> Literal["torchvision", "timm"] | None:
    """Whose model a name means: torchvision's where both have one, `timm/NAME` timm's in any case."""
    if name in torchvision_names():
        return "torchvision"
    if not has_timm():
        return None
    import timm

    return "timm" if timm.is_model(name.removeprefix(TIMM)) else None


def build(name: str, num_classes: int) -> nn.Module:
    """A network with fresh weights."""
    network: nn.Module
    if library_of(name) == "timm":
        import timm

        network = timm.create_model(name.removeprefix(TIMM), num_classes=num_classes)
    else:
        from torchvision.models import get_model

        alone = {"aux_logits": False, "init_weights": True} if name in AUXILIARY else {}
        network = get_model(name, weights=None, num_classes=num_classes, **alone)
    return network


def without_auxiliary(name: str, state: Mapping[str, Value]) -> Mapping[str, Value]:
    """What weights say of a network as it is built here."""
    left_out = AUXILIARY.get(name, ())
    return {key: value for key, value in state.items() if not key.startswith(left_out)}


@functools.lru_cache(maxsize=2)
def imagenet_weights(name: str) -> Mapping[str, Tensor]:
    """What the library publishes for a network, downloaded once into the library's own folder."""
    try:
        return _of_timm(name.removeprefix(TIMM)) if library_of(name) == "timm" else _of_torchvision(name)
    except (OSError, RuntimeError, ValueError, LookupError, pickle.UnpicklingError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"The ImageNet weights of model '{name}' cannot be downloaded ({reason}). Give a file with --weights FILE "
            "(safetensors), or start from random weights with --set weights=none."
        ) from error


def _of_torchvision(name: str) -> Mapping[str, Tensor]:
    from torchvision.models import get_model_weights

    published = get_model_weights(name)
    chosen = published[PUBLISHED] if PUBLISHED in published.__members__ else published.DEFAULT
    # Tensors alone are read of the file, and only if it has the checksum that is part of its name.
    state: Mapping[str, Tensor] = chosen.get_state_dict(progress=False, check_hash=True, weights_only=True)
    return state


def _of_timm(name: str) -> Mapping[str, Tensor]:
    import timm

    with torch.random.fork_rng(devices=[]):  # it draws weights before it overwrites them
        state: Mapping[str, Tensor] = timm.create_model(name, pretrained=True).state_dict()
    return state
