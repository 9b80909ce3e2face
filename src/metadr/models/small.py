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
    stem = [nn.Conv2d(3, channels[0], 3, padding=1, bias=False), nn.BatchNorm2d(channels[0]), nn.ReLU()]
    blocks = [Block(before, after) for before, after in itertools.pairwise(channels)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], num_classes)]
    return nn.Sequential(*stem, *blocks, *head)


def small_resnet(num_classes: int) -> nn.Module:
    """Three residual blocks, 16 to 128 channels: 0.3 million parameters."""
    return _resnet((16, 32, 64, 128), num_classes)


def tiny_resnet(num_classes: int) -> nn.Module:
    """Two residual blocks, 4 to 16 channels: for `--tiny` and for tests."""
    return _resnet((4, 8, 16), num_classes)
