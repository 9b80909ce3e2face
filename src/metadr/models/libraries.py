"""The classifiers of torchvision and, where it is installed, of timm: by name, and with their ImageNet weights.

Both take a second or more to import, which most commands need not spend: nothing here does so before it must.
"""

import functools
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Literal, TypeVar
from urllib.error import URLError

import torch
from torch import Tensor, nn

from metadr.errors import UserError
from metadr.models.downloads import check_reached, check_whole, damaged, kept_by_timm, kept_by_torch

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
    by_timm, short = library_of(name) == "timm", name.removeprefix(TIMM)
    try:
        return _of_timm(short) if by_timm else _of_torchvision(name)
    except UserError:
        raise
    except Exception as error:  # a library's, its downloader's, or whatever the bytes of a damaged file lead to
        path = kept_by_timm(short) if by_timm else kept_by_torch(_published(name).url)
        if path is not None and path.is_file():
            raise damaged(path, name, error) from error
        raise UserError(
            f"The ImageNet weights of model '{name}' cannot be downloaded ({_reason(error)}). "
            f"{'Give' if path is None else f'Put {path.name} in {path.parent}, give'} a file with --weights FILE "
            "(safetensors), or start from random weights with --set weights=none."
        ) from error


def _reason(error: Exception) -> str:
    told = error.reason if type(error) is URLError else error
    return (str(told).strip() or type(told).__name__).splitlines()[0]


def _published(name: str) -> Any:
    from torchvision.models import get_model_weights

    published = get_model_weights(name)
    return published[PUBLISHED] if PUBLISHED in published.__members__ else published.DEFAULT


def _of_torchvision(name: str) -> Mapping[str, Tensor]:
    chosen = _published(name)
    check_whole(kept_by_torch(chosen.url), name)  # torch.hub compares what it downloads, and not what is there
    # Tensors alone are read of the file.
    state: Mapping[str, Tensor] = chosen.get_state_dict(progress=False, check_hash=True, weights_only=True)
    return state


def _of_timm(name: str) -> Mapping[str, Tensor]:
    import timm

    path = kept_by_timm(name)
    if path is None:
        check_reached(name)
    else:
        check_whole(path, name)
    with torch.random.fork_rng(devices=[]):  # it draws weights before it overwrites them
        state: Mapping[str, Tensor] = timm.create_model(name, pretrained=True).state_dict()
    return state
