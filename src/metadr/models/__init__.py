"""Networks by name: the project's small ones, U-Nets around a ResNet, and the classifiers of torchvision."""

from collections.abc import Callable

from torch import nn

from metadr.errors import UserError, unknown
from metadr.models.encoders import NAMES as ENCODED
from metadr.models.encoders import build_unet
from metadr.models.small import small_resnet, tiny_resnet
from metadr.models.unet import small_unet, tiny_unet
from metadr.models.weights import DRAWN, fingerprint

MODELS: dict[str, Callable[[int], nn.Module]] = {
    "small_resnet": small_resnet,
    "tiny_resnet": tiny_resnet,
    "small_unet": small_unet,
    "tiny_unet": tiny_unet,
}


def register(name: str, build: Callable[[int], nn.Module]) -> None:
    """Make a network known by a name; `build(num_classes)` makes it."""
    if name in MODELS and MODELS[name] is not build:
        raise UserError(f"A model named '{name}' exists already. Give the new one another name.")
    MODELS[name] = build


def model_names() -> list[str]:
    return [*MODELS, *ENCODED, *_torchvision_names()]


def check_model(name: str) -> None:
    """Refuse a name that nothing can be built from."""
    if name not in MODELS and name not in ENCODED and name not in _torchvision_names():
        raise unknown("model", name, model_names(), hint="List all with 'metadr list models'.")


def build(name: str, num_classes: int, weights: str = DRAWN) -> nn.Module:
    """A network with fresh weights, drawn from torch's global stream: seed that first. An encoder may be given some."""
    check_model(name)
    if name in ENCODED:
        return build_unet(name, num_classes, weights)
    if weights != DRAWN:
        raise UserError(f"Model '{name}' takes no weights. Use --set weights=none, or one of {', '.join(ENCODED)}.")
    if name in MODELS:
        return MODELS[name](num_classes)
    from torchvision.models import get_model

    network: nn.Module = get_model(name, weights=None, num_classes=num_classes)
    return network


def weights_of(name: str, weights: str) -> str:
    """What tells the weights that a network begins with from others; nothing where they are drawn."""
    return "" if weights == DRAWN else f"weights {fingerprint(weights, ENCODED.get(name, name))}"


def _torchvision_names() -> list[str]:
    import torchvision  # it takes a second to import, which most commands need not spend

    listed: list[str] = torchvision.models.list_models(module=torchvision.models)
    return listed
