"""ResNet-18 for images of 32x32, of which torchvision's own leaves 8x8 after two layers and a single pixel at its end.

What the paper calls the standard implementation of PyTorch is torchvision's. These are what else it may have been.
"""

from typing import Any

from torch import nn


def resnet18_no_pooling(num_classes: int) -> nn.Module:
    """torchvision's ResNet-18 without its pooling: of what comes first, only a layer of 7x7 halves the side."""
    from torchvision.models import resnet18  # takes a second: not before it must

    network: nn.Module = resnet18(num_classes=num_classes)
    network.maxpool = nn.Identity()
    return network


def resnet18_small_images(num_classes: int) -> nn.Module:
    """torchvision's ResNet-18 with the first layers that are usual for small images: 3x3, none halves the side."""
    network: Any = resnet18_no_pooling(num_classes)
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    return _drawn(network, [network.conv1])


def resnet18_narrow(num_classes: int) -> nn.Module:
    """The ResNet-18 of GEM's code: first layers for small images, 20 to 160 channels instead of 64 to 512."""
    from torchvision.models.resnet import BasicBlock

    network: Any = resnet18_no_pooling(num_classes)
    network.conv1 = nn.Conv2d(3, 20, 3, padding=1, bias=False)
    network.bn1 = nn.BatchNorm2d(20)
    network.inplanes = 20
    network.layer1 = network._make_layer(BasicBlock, 20, 2)
    network.layer2 = network._make_layer(BasicBlock, 40, 2, stride=2)
    network.layer3 = network._make_layer(BasicBlock, 80, 2, stride=2)
    network.layer4 = network._make_layer(BasicBlock, 160, 2, stride=2)
    network.fc = nn.Linear(160, num_classes)
    return _drawn(network, [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)])


def _drawn(network: nn.Module, layers: list[nn.Conv2d]) -> nn.Module:
    """The network with its new layers drawn as torchvision draws them."""
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return network
