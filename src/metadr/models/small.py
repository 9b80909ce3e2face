"""Small residual networks for small images, fast enough to train on a CPU while one watches."""

import itertools

from torch import Tensor, nn


class Block(nn.Module):
    """Two 3x3 convolutions with batch norm, added to a projection of the input; halves the side."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.skip = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride=2, bias=False), nn.BatchNorm2d(channels))
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.body(x) + self.skip(x))
        return out


def _resnet(channels: tuple[int, ...], num_classes: int) -> nn.Module:
    blocks = [Block(before, after) for before, after in itertools.pairwise((3, *channels))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], num_classes)]
    return nn.Sequential(*blocks, *head)


def small_resnet(num_classes: int) -> nn.Module:
    """Three residual blocks of 24, 48 and 96 channels: 0.2 million parameters."""
    return _resnet((24, 48, 96), num_classes)


def tiny_resnet(num_classes: int) -> nn.Module:
    """Two residual blocks of 4 and 8 channels: for `--tiny` and for tests."""
    return _resnet((4, 8), num_classes)
