"""Networks by name: the project's own, and the classifiers of torchvision and timm; and weights to start from."""

from collections.abc import Callable

from torch import nn

from metadr.errors import UserError, unknown
from metadr.models import libraries
from metadr.models.resnet_v1 import resnet50_v1
from metadr.models.small import small_resnet, tiny_resnet
from metadr.models.weights import FROM_A_FILE, IMAGENET, content_of, fill, kind_of, read_file

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "small_resnet": small_resnet,
    "tiny_resnet": tiny_resnet,
    "resnet50_v1": resnet50_v1,
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
    return [*MODELS, *libraries.torchvision_names()]


def check_model(name: str) -> None:
    """Refuse a name that nothing can be built from."""
    if name not in MODELS and libraries.library_of(name) is None:
        known = [*model_names(), *libraries.timm_names()]
        more = "" if libraries.has_timm() else " With 'pip install metadr[timm]' those of timm can be had too."
        raise unknown("model", name, known, hint=f"List all with 'metadr list models'.{more}")


def check_weights(name: str, weights: str | None) -> None:
    """Refuse weights that a network cannot start from, as far as that can be seen without loading them."""
    if weights == IMAGENET and name in MODELS:
        raise UserError(
            f"No ImageNet weights are published for model '{name}'. Give a file with --weights FILE (safetensors), "
            "start from random weights with --set weights=none, or choose a model of torchvision or timm."
        )
    if kind_of(weights) == FROM_A_FILE and weights != FROM_A_FILE:
        content_of(weights)


def prepare_weights(name: str, weights: str | None) -> None:
    """Download what a network starts from, where that was not done before: once, before anything waits for it."""
    if weights == IMAGENET:
        libraries.imagenet_weights(name)


def build(name: str, num_classes: int, weights: str | None = None) -> nn.Module:
    """A network with fresh weights, drawn from torch's global stream: seed that first.

    With `weights`, all but the last layer, or that too where it has as many classes, is then that of ImageNet or of a
    file.
    """
    check_model(name)
    network = MODELS[name](num_classes) if name in MODELS else libraries.build(name, num_classes)
    if weights is not None:
        check_weights(name, weights)
        state = libraries.imagenet_weights(name) if weights == IMAGENET else read_file(weights)
        fill(network, state, model=name, origin=weights)
    return network
