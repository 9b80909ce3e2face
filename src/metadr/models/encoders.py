"""U-Nets around a ResNet encoder, by segmentation-models-pytorch, an optional extra."""

from typing import cast

from torch import nn

from metadr.errors import UserError
from metadr.models.unet import Padded
from metadr.models.weights import initial_weights, load_into

# `resnet50_v1` halves a stage in its first 1x1 convolution, as the first ResNet-50 did; torchvision's in the 3x3 one.
ENCODERS = {"resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50", "resnet50_v1": "resnet50"}
HALVINGS = 5  # from the image to the deepest layer
NAMES = {f"unet_{encoder}": encoder for encoder in ENCODERS}


def build_unet(name: str, num_classes: int, weights: str) -> nn.Module:
    """A U-Net whose encoder begins with `weights`; everything else is drawn from torch's global stream."""
    encoder = NAMES[name]
    try:
        import segmentation_models_pytorch as smp
    except ModuleNotFoundError:
        raise UserError(
            f"Model '{name}' needs segmentation-models-pytorch, which is not installed. Run "
            "pip install 'metadr[seg]', or use --model small_unet."
        ) from None
    network: nn.Module = smp.Unet(ENCODERS[encoder], encoder_weights=None, in_channels=3, classes=num_classes)
    inside = network.get_submodule("encoder")
    if encoder == "resnet50_v1":
        for stage in ("layer2", "layer3", "layer4"):
            for layer, stride in (("conv1", (2, 2)), ("conv2", (1, 1))):
                cast(nn.Conv2d, inside.get_submodule(f"{stage}.0.{layer}")).stride = stride
    state = initial_weights(weights, encoder)
    if state is not None:
        load_into(inside, state, what=f"the encoder of '{name}'", unused=("fc.",))
    return Padded(network, 2**HALVINGS)
