"""The transformations that move pixels, each with a twin that moves segmentation masks alike."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from metadr.transforms.registry import check_level, check_masks, transform


def rotate_masks(masks: Tensor, level: Tensor, fill: int = 255) -> Tensor:
    """Rotate masks (B, H, W) as `rotate` does images; `fill`, the ignored label, enters at the corners."""
    check_masks(masks, "rotate_masks")
    check_level(masks, level, "rotate_masks")
    return rotated(masks.unsqueeze(1), level, fill).squeeze(1)


@transform(low=-60, high=60, levels=30, masks=rotate_masks)
def rotate(images: Tensor, level: Tensor) -> Tensor:
    """Rotate by `level` degrees counter-clockwise, as PIL.Image.rotate does: nearest neighbour, black corners."""
    return rotated(images, level, 0)


def headings(degrees: Tensor) -> Tensor:
    """Cosine and sine of a rotation, (2, ...) float64, rounded as PIL does to 15 digits.

    That also hides who computed them, so that a rotation is the same on every device.
    """
    angle = degrees.double().remainder(360.0) * -(math.pi / 180.0)
    return torch.stack((angle.cos(), angle.sin())).mul_(1e15).round_().div_(1e15)


def rotated(planes: Tensor, degrees: Tensor, fill: int) -> Tensor:
    """Rotate planes (B, C, H, W) about their centre in PIL's 16.16 fixed-point coordinates."""
    height, width = planes.shape[2:]
    # A frame of one pixel catches whatever comes from outside, so no pixel needs a comparison.
    framed = functional.pad(planes, (1, 1, 1, 1), value=fill)
    column, row = sources(degrees, height, width)
    index = (row.clamp_(0, height + 1) * (width + 2)).add_(column.clamp_(0, width + 1)).long()
    flat = index.flatten(1).unsqueeze(1).expand(-1, planes.shape[1], -1)
    return framed.flatten(2).gather(2, flat).view(planes.shape)


def sources(degrees: Tensor, height: int, width: int) -> Tensor:
    """For each pixel of the result, column and row of its source, counted from a frame one pixel wide: (2, B, H, W)."""
    # No coordinate reaches height + width, so 32 bits hold it; on larger images PIL calculates otherwise.
    dtype = torch.int32 if height + width < 32_767 else torch.int64
    start, per_column, per_row = _in_fixed_point(degrees, height, width, dtype).unsqueeze(3)
    down = torch.arange(height, device=degrees.device, dtype=dtype)
    across = torch.arange(width, device=degrees.device, dtype=dtype)
    rows = start + 65536 + per_row * down
    columns = per_column * across
    return torch.add(rows.unsqueeze(3), columns.unsqueeze(2)).bitwise_right_shift_(16)


def _in_fixed_point(degrees: Tensor, height: int, width: int, dtype: torch.dtype) -> Tensor:
    """The source of the first pixel, and how far it moves with a column and with a row, each as column and row in 16.16
    fixed point: (3, 2, B). The float64 operations are PIL's, in its order.
    """
    cos, sin = headings(degrees)
    x, y = width / 2, height / 2
    offset = torch.stack((cos * -x + sin * -y + x, -sin * -x + cos * -y + y))
    per_column, per_row = torch.stack((cos, -sin)), torch.stack((sin, cos))
    steps = torch.stack((offset + per_column * 0.5 + per_row * 0.5, per_column, per_row))
    return (steps * 65536.0 + 0.5).floor_().to(dtype)
