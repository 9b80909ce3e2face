"""U-Nets around a ResNet encoder, by segmentation-models-pytorch, an optional extra."""

from torch import nn

from metadr.errors import UserError
from metadr.models.resnet_v1 import with_first_strides
from metadr.models.unet import Padded

ENCODERS = {"resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50", "resnet50_v1": "resnet50"}
HALVINGS = 5  # from the image to the deepest layer
NAMES = {f"unet_{encoder}": encoder for encoder in ENCODERS}
HEAD = "fc"  # what a classifier has and its encoder has not


def build(name: str, num_classes: int) -> nn.Module:
    """A U-Net with fresh weights."""
    try:
        import segmentation_models_pytorch as smp
    except ModuleNotFoundError:
        raise UserError(
            f"Model '{name}' needs segmentation-models-pytorch, which is not installed. Run "
            "pip install 'metadr[seg]', or use --model small_unet."
        ) from None
    encoder = NAMES[name]
    network: nn.Module = smp.Unet(ENCODERS[encoder], encoder_weights=None, in_channels=3, classes=num_classes)
    if encoder == "resnet50_v1":
        with_first_strides(network.get_submodule("encoder"))
    return Padded(network, 2**HALVINGS)


def encoder_of(network: nn.Module) -> nn.Module:
    """The part of a U-Net that has the names and shapes of a classifier."""
    return network.get_submodule("inner.encoder")
