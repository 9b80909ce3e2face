"""Convolution without the taps of its kernel that only ever meet padding, on small images as a matrix product."""

import functools

import torch.nn.functional as F
from torch import Tensor

from metadr.kernels import product
from metadr.kernels.product import Geometry, Pair


def conv2d(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    """torch's conv2d. On an image of one pixel a padded 3x3 kernel is its centre: an eighth of the work or less.

    Deep networks on small images are full of this: at 32x32 the last stage of a ResNet-18, with three quarters of its
    weights, sees images of one pixel.
    """
    rows = _useful(x.shape[2], weight.shape[2], stride[0], padding[0], dilation[0])
    columns = _useful(x.shape[3], weight.shape[3], stride[1], padding[1], dilation[1])
    if rows is not None or columns is not None:
        first_row, last_row, above = rows or (0, weight.shape[2], padding[0])
        first_column, last_column, beside = columns or (0, weight.shape[3], padding[1])
        weight, padding = weight[:, :, first_row:last_row, first_column:last_column], (above, beside)
    height, width, taps_y, taps_x = (*x.shape[2:], *weight.shape[2:])
    geometry = Geometry((height, width), (taps_y, taps_x), stride, padding, dilation)
    if product.fits(x, weight, geometry, groups):
        return product.conv2d(x, weight, bias, geometry)
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


@functools.cache
def _useful(size: int, taps: int, stride: int, padding: int, dilation: int) -> tuple[int, int, int] | None:
    """The taps that meet the image, as a range, and the padding that is left; none where all do or it is uneven."""
    outputs = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    reach = [out * stride - padding for out in range(outputs)]
    useful = [tap for tap in range(taps) if any(0 <= start + tap * dilation < size for start in reach)]
    if not useful or len(useful) == taps:
        return None
    first, last = useful[0], useful[-1] + 1
    before = padding - first * dilation
    after = max(0, reach[-1] + (last - 1) * dilation - (size - 1))
    # With even padding the trimmed kernel must still make as many outputs.
    made = (size + 2 * before - dilation * (last - first - 1) - 1) // stride + 1 if before >= 0 else 0
    return (first, last, before) if before >= after and made == outputs else None
