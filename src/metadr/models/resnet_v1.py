"""ResNet-50 as it was first published."""

from typing import cast

from torch import nn


def resnet50_v1(num_classes: int) -> nn.Module:
    """torchvision's ResNet-50 with the stride of a stage on its first 1x1 convolution, not on the 3x3 after it.

    So it was in He et al., 2015, and in Keras: weights of these have the same names and shapes, and need this network.
    """
    from torchvision.models import resnet50  # it takes a second to import, which most commands need not spend

    return with_first_strides(resnet50(weights=None, num_classes=num_classes))


def with_first_strides(network: nn.Module) -> nn.Module:
    """A ResNet-50, or the encoder that is left of one, with its strides moved."""
    for stage in (2, 3, 4):
        for layer, stride in (("conv1", (2, 2)), ("conv2", (1, 1))):
            cast(nn.Conv2d, network.get_submodule(f"layer{stage}.0.{layer}")).stride = stride
    return network
