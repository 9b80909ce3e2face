"""U-Nets: a score for every class at every pixel, for images of any size."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Padded(nn.Module):
    """A network that halves the sides so often that they must be multiples of `multiple`, for any sides.

    Pixels are added below and to the right, and what the network says of them is cut off again: they are in no loss
    and in no score, and a transformation never sees them.
    """

    def __init__(self, inner: nn.Module, multiple: int) -> None:
        super().__init__()
        self.inner, self.multiple = inner, multiple

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        below, beside = -height % self.multiple, -width % self.multiple
        logits: Tensor = self.inner(F.pad(x, (0, beside, 0, below)) if below or beside else x)
        return logits[:, :, :height, :width]


def double(channels_in: int, channels: int) -> nn.Sequential:
    """Two 3x3 convolutions with batch norm."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
    )


class UNet(nn.Module):
    """Down by halves, up by nearest neighbours, each step up beside what the same size had on the way down.

    Nearest, because the gradient of a linear enlargement is not deterministic on CUDA.
    """

    def __init__(self, channels: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(channels))
        self.first = double(3, channels[0])
        self.down = nn.ModuleList(double(before, after) for before, after in pairs)
        self.up = nn.ModuleList(double(before + after, before) for before, after in reversed(pairs))
        self.head = nn.Conv2d(channels[0], num_classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.first(x)]
        for block in self.down:
            seen.append(block(F.avg_pool2d(seen[-1], 2)))
        x = seen.pop()
        for block in self.up:
            x = block(torch.cat((F.interpolate(x, scale_factor=2, mode="nearest"), seen.pop()), 1))
        logits: Tensor = self.head(x)
        return logits


def _unet(channels: tuple[int, ...], num_classes: int) -> nn.Module:
    return Padded(UNet(channels, num_classes), 2 ** (len(channels) - 1))


def small_unet(num_classes: int) -> nn.Module:
    """Four sizes of 8, 16, 32 and 48 channels: 0.1 million parameters, for minutes on a CPU."""
    return _unet((8, 16, 32, 48), num_classes)


def tiny_unet(num_classes: int) -> nn.Module:
    """Two sizes of 4 and 8 channels: for `--tiny` and for tests."""
    return _unet((4, 8), num_classes)
