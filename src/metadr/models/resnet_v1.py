"""ResNet-50 as it was first published."""

from typing import cast

from torch import nn


def resnet50_v1(num_classes: int) -> nn.Module:
    """torchvision's ResNet-50 with the stride of a stage on its first 1x1 convolution, not on the 3x3 after it.

    So it was in He et al., 2015, and in Keras: weights of these have the same names and shapes, and need this network.
    """
    from torchvision.models import resnet50  # it takes a second to import, which most commands need not spend

    network = resnet50(weights=None, num_classes=num_classes)
    for stage in (network.layer2, network.layer3, network.layer4):
        block = stage[0]
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    return cast(nn.Module, network)
