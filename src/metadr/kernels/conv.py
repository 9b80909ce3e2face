"""Convolution without the taps of its kernel that only ever meet padding: on small images as a matrix product, on a CPU
as a linear layer where it is one, else by three operations that are each other's derivatives."""

import functools
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metadr.kernels import convolution, product
from metadr.kernels.convolution import Places
from metadr.kernels.product import Geometry, Pair


class Reach(NamedTuple):
    """The taps of a kernel that meet the image, as a range of rows and one of columns, and the padding that is left."""

    rows: Pair
    columns: Pair
    padding: Pair

    @property
    def taps(self) -> Pair:
        return self.rows[1] - self.rows[0], self.columns[1] - self.columns[0]

    def of(self, weight: Tensor) -> Tensor:
        return weight[:, :, slice(*self.rows), slice(*self.columns)]


def reach(size: Pair, taps: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Reach:
    (first_row, last_row, above), (first_column, last_column, beside) = map(
        _useful, size, taps, stride, padding, dilation
    )
    return Reach((first_row, last_row), (first_column, last_column), (above, beside))


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
    *,
    taps: Pair | None = None,
    products: int = product.MOST_PATCHES,
) -> Tensor:
    """torch's conv2d. On an image of one pixel a padded 3x3 kernel is its centre: an eighth of the work or less.

    Deep networks on small images are full of this: at 32x32 the last stage of a ResNet-18, with three quarters of its
    weights, sees images of one pixel. With `taps`, those of the whole kernel, the weight may be what is reached of it.
    `products` is how many values all patches may have for it to be a matrix product. For torch.func it is torch's own.
    """
    size, given = (x.shape[2], x.shape[3]), (weight.shape[2], weight.shape[3])
    reached = reach(size, taps or given, stride, padding, dilation)
    if given != reached.taps:
        weight = reached.of(weight)
    geometry = Geometry(size, reached.taps, stride, reached.padding, dilation)
    if torch._C._are_functorch_transforms_active():
        return F.conv2d(x, weight, bias, stride, reached.padding, dilation, groups)
    if product.fits(x, weight, geometry, groups, products):
        return product.conv2d(x, weight, bias, geometry)
    if geometry.sees_all_at_once and groups == 1 and not x.is_cuda:
        return product.in_one_place(x, weight, bias)
    if torch.is_grad_enabled():
        return convolution.conv2d(x, weight, bias, Places(stride, reached.padding, dilation, groups))
    return F.conv2d(x, weight, bias, stride, reached.padding, dilation, groups)


def patches(x: Tensor, given: Pair, stride: Pair, padding: Pair, dilation: Pair, *, taps: Pair | None = None) -> Tensor:
    """What the taps of a kernel meet at each place of the output: (image, (channel, tap), place).

    Args:
        x: images.
        given: taps of the weight: all of the kernel's, or those that are reached.
        stride, padding, dilation: of the convolution.
        taps: of the whole kernel, where the weight is what is reached of it.
    """
    size = (x.shape[2], x.shape[3])
    reached = reach(size, taps or given, stride, padding, dilation)
    left = reached.padding if given == reached.taps else padding
    geometry = Geometry(size, given, stride, left, dilation)
    if geometry.is_all_there_is:
        return x.flatten(2)
    padded = F.pad(x, (left[1], left[1], left[0], left[0])) if any(left) else x
    image, channel, row, column = padded.stride()
    steps = (dilation[0] * row, dilation[1] * column, stride[0] * row, stride[1] * column)
    seen = padded.as_strided((*x.shape[:2], *given, *geometry.out), (image, channel, *steps))
    return seen.reshape(len(x), -1, geometry.out[0] * geometry.out[1])


@functools.cache
def _useful(size: int, taps: int, stride: int, padding: int, dilation: int) -> tuple[int, int, int]:
    """The taps that meet the image, as a range, and the padding that is left; all where what is left is uneven."""
    outputs = (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
    starts = [out * stride - padding for out in range(outputs)]
    useful = [tap for tap in range(taps) if any(0 <= start + tap * dilation < size for start in starts)]
    if not useful:
        return 0, taps, padding
    first, last = useful[0], useful[-1] + 1
    before = padding - first * dilation
    after = max(0, starts[-1] + (last - 1) * dilation - (size - 1))
    # With even padding the trimmed kernel must still make as many outputs.
    made = (size + 2 * before - dilation * (last - first - 1) - 1) // stride + 1 if before >= 0 else 0
    return (first, last, before) if before >= after and made == outputs else (0, taps, padding)
