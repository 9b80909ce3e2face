"""Networks by name: the project's own, U-Nets around a ResNet, the classifiers of torchvision and timm; and weights."""

import functools
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import nn

from metadr.errors import UserError, unknown
from metadr.models import encoders, libraries
from metadr.models import weights as files
from metadr.models.resnet18 import resnet18_narrow, resnet18_no_pooling, resnet18_small_images
from metadr.models.resnet_v1 import resnet50_v1
from metadr.models.small import small_resnet, tiny_resnet
from metadr.models.unet import small_unet, tiny_unet
from metadr.models.weights import FROM_A_FILE, IMAGENET, fill, kind_of, last_layer

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "small_resnet": small_resnet,
    "tiny_resnet": tiny_resnet,
    "resnet18_small_images": resnet18_small_images,
    "resnet18_no_pooling": resnet18_no_pooling,
    "resnet18_narrow": resnet18_narrow,
    "resnet50_v1": resnet50_v1,
    "small_unet": small_unet,
    "tiny_unet": tiny_unet,
}

__all__ = [
    "FROM_A_FILE",
    "IMAGENET",
    "MODELS",
    "build",
    "check_model",
    "check_weights",
    "content_of",
    "kind_of",
    "model_names",
    "place_of",
    "prepare_weights",
    "register",
]


def register(name: str, build: Callable[[int], nn.Module]) -> None:
    """Make a network known by a name; `build(num_classes)` makes it."""
    if name in MODELS and MODELS[name] is not build:
        raise UserError(f"A model named '{name}' exists already. Give the new one another name.")
    MODELS[name] = build


def model_names() -> list[str]:
    """All but those of timm, which has a thousand."""
    return [*MODELS, *encoders.NAMES, *libraries.torchvision_names()]


def check_model(name: str) -> None:
    """Refuse a name that nothing can be built from."""
    if name not in MODELS and name not in encoders.NAMES and libraries.library_of(name) is None:
        known = [*model_names(), *libraries.timm_names()]
        more = "" if libraries.has_timm() else " With 'pip install metadr[timm]' those of timm can be had too."
        raise unknown("model", name, known, hint=f"List all with 'metadr list models'.{more}")


def architecture_of(name: str) -> str:
    """The network whose weights a network starts from: a U-Net's encoder, else itself."""
    return encoders.NAMES.get(name, name)


def content_of(name: str, weights: str | None) -> str:
    """The first digits of the SHA-256 of the file of weights that a network starts from; nothing without a file."""
    return files.content_of(weights, architecture_of(name))


def place_of(name: str, weights: str) -> Path:
    """Where the file of weights that a network starts from is, or would be."""
    return files.place_of(weights, architecture_of(name))


def check_weights(name: str, weights: str | None, classes: tuple[str, ...] = ()) -> None:
    """Refuse weights that a network cannot start from, as far as that can be seen without loading them."""
    architecture = architecture_of(name)
    if weights == IMAGENET and architecture in MODELS:
        raise UserError(
            f"No ImageNet weights are published for model '{architecture}'. Give a file with --weights FILE "
            "(safetensors), start from random weights with --set weights=none, or choose a model of torchvision or "
            "timm, or a U-Net around one."
        )
    if weights is not None and kind_of(weights) == FROM_A_FILE and weights != FROM_A_FILE:
        content = content_of(name, weights)
        files.check_network(weights, architecture)
        files.check_classes(weights, architecture, classes)
        _check_fits(name, weights, content)


def prepare_weights(name: str, weights: str | None) -> None:
    """Download what a network starts from, where that was not done before: once, before anything waits for it. A file
    must be there."""
    if weights == IMAGENET:
        libraries.imagenet_weights(architecture_of(name))
    content_of(name, weights)


def build(name: str, num_classes: int, weights: str | None = None) -> nn.Module:
    """A network with fresh weights, drawn from torch's global stream: seed that first.

    With `weights`, all but the last layer, or that too where it has as many classes, is then that of ImageNet or of a
    file; of a U-Net all of its encoder, unless the file has a decoder too.
    """
    check_model(name)
    network = _fresh(name, num_classes)
    if weights is not None:
        check_weights(name, weights)
        architecture = architecture_of(name)
        published = weights == IMAGENET
        state = libraries.imagenet_weights(architecture) if published else files.read_file(weights, architecture)
        state = libraries.without_auxiliary(name, state)
        part, head = _filled(name, network, state)
        fill(part, state, head=head, model=name, origin=weights)
    return network


@functools.lru_cache
def _check_fits(name: str, weights: str, content: str) -> None:
    """Refuse a file whose weights are not those of a network, by their names and shapes."""
    given = libraries.without_auxiliary(name, files.shapes_of(weights, architecture_of(name)))
    try:
        with torch.device("meta"):  # where numbers take neither memory nor time
            network = _fresh(name, num_classes=2)
    except Exception:  # a network of one's own may look at its numbers: they are compared when it is filled
        return
    part, head = _filled(name, network, given)
    files.fitting(part, given, head=head, model=name, origin=weights)


def _filled(name: str, network: nn.Module, state: Iterable[str]) -> tuple[nn.Module, str]:
    """What of a network starts from weights, and the layer that may be another."""
    whole = any("decoder." in each for each in state)  # a run's own network, not ImageNet's
    if name in encoders.NAMES and not whole:
        return encoders.encoder_of(network), encoders.HEAD
    return network, last_layer(network)


def _fresh(name: str, num_classes: int) -> nn.Module:
    if name in encoders.NAMES:
        return encoders.build(name, num_classes)
    return MODELS[name](num_classes) if name in MODELS else libraries.build(name, num_classes)
