"""Convolution as a matrix product: the patches that its kernel sees are gathered, then multiplied by the weights.

On small images cuDNN's deterministic kernels leave most of a GPU idle, and its TF32 kernels first bring every weight
into another order. A product takes the weights as they are. Patches are many times the image, so this is for small
images. Gathering and its adjoint, scattering, are each other's derivative, so derivatives of any order are made of the
same three operations.
"""

import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from metadr.kernels.planes import empty_by_channel, from_rows, on_triton, planes, rows

Pair = tuple[int, int]
MOST_PATCHES = 1 << 23  # values in all patches, 32 MiB: beyond, cuDNN has enough to do
MOST_PASSING = 1 << 27  # where none of them is kept for a derivative: in large batches that are only tested


class Geometry(NamedTuple):
    """What a kernel sees of an image, and where."""

    size: Pair
    taps: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    @property
    def out(self) -> Pair:
        reach = [size + 2 * pad - dilation * (taps - 1) - 1 for size, taps, _, pad, dilation in zip(*self, strict=True)]
        return reach[0] // self.stride[0] + 1, reach[1] // self.stride[1] + 1

    @property
    def is_all_there_is(self) -> bool:
        """One tap that meets every pixel once: the image is its patches."""
        return self.taps == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)

    @property
    def sees_all_at_once(self) -> bool:
        """It meets a whole image, in one place: the convolution is a linear layer."""
        return self.taps == self.size and self.padding == (0, 0) and self.out == (1, 1)


def fits(x: Tensor, weight: Tensor, geometry: Geometry, groups: int, most: int = MOST_PATCHES) -> bool:
    height, width = geometry.out
    patches = weight[0].numel() * x.shape[0] * height * width
    return groups == 1 and on_triton(x) and weight.dtype == x.dtype and 0 < patches <= most


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    flat = weight.flatten(1)
    images = geometry.is_all_there_is and _image_by_image(x, weight)
    if images:
        y = torch.bmm(flat.expand(len(x), -1, -1), x.flatten(2))
    else:
        y = flat @ (rows(x) if geometry.is_all_there_is else _Gather.apply(x, geometry))
    if bias is not None:
        y = y + bias[:, None].to(y.dtype)
    return y.view(*y.shape[:2], *geometry.out) if images else from_rows(y, x.shape[0], *geometry.out)


def in_one_place(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution that sees a whole image at once: libraries for convolutions take up to five times as long."""
    flat = weight.flatten(1).contiguous()  # taps of a larger kernel lie apart, which rounds otherwise
    return F.linear(x.flatten(1), flat, bias)[:, :, None, None]


def _image_by_image(x: Tensor, weight: Tensor) -> bool:
    """Whether one product for each image is less work than one for all, of images that lie behind each other.

    For all of them a channel must be a row, so that x and what comes back would be brought into that order. One each
    makes as many derivatives by the weights, to be added up.
    """
    out, channels = weight.shape[:2]
    brought = 2 * (out + channels) * x.shape[2] * x.shape[3]
    return x.is_contiguous() and not x.transpose(0, 1).is_contiguous() and out * channels <= brought


class _Gather(torch.autograd.Function):
    """(image, channel, y, x) to ((channel, tap), (image, output))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, geometry: Geometry) -> Tensor:
        ctx.shape, ctx.geometry = x.shape, geometry
        return gather(x, geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Scatter.apply(grads[0], ctx.shape, ctx.geometry), None


class _Scatter(torch.autograd.Function):
    """The adjoint: every pixel gets the sum of the places that it was copied to."""

    @staticmethod
    def forward(ctx: Any, patches: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
        ctx.geometry = geometry
        return scatter(patches, shape, geometry)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Gather.apply(grads[0], ctx.geometry), None, None


def gather(x: Tensor, geometry: Geometry) -> Tensor:
    x = planes(x)
    taps, out = geometry.taps, geometry.out
    count = x.shape[0] * out[0] * out[1]
    patches = x.new_empty(x.shape[1] * taps[0] * taps[1], count)
    block = _block(count)
    grid = (patches.shape[0], -(-count // block))
    _kernels().gather_kernel[grid](
        x, x.stride(0), x.stride(1), patches, count, *geometry.size, **_constants(geometry), BLOCK=block
    )
    return patches


def scatter(patches: Tensor, shape: torch.Size, geometry: Geometry) -> Tensor:
    x = empty_by_channel(patches, *shape)
    count, (height, width) = shape[0] * shape[2] * shape[3], geometry.size
    block = _block(count)
    grid = (shape[1], -(-count // block))
    constants = _constants(geometry)
    _kernels().scatter_kernel[grid](
        patches.contiguous(), x, count, patches.shape[1], HEIGHT=height, WIDTH=width, **constants, BLOCK=block
    )
    return x


def _block(count: int) -> int:
    return min(1024, max(64, 1 << (count - 1).bit_length()))


def _constants(geometry: Geometry) -> Mapping[str, int]:
    pairs = {
        "TAPS": geometry.taps,
        "OUT": geometry.out,
        "STRIDE": geometry.stride,
        "PAD": geometry.padding,
        "DILATION": geometry.dilation,
    }
    return {f"{name}_{side}": value for name, pair in pairs.items() for side, value in zip("HW", pair, strict=True)}


@functools.cache
def _kernels() -> ModuleType | Any:
    """Imported no earlier than at the first call: a CPU needs no Triton."""
    from metadr.kernels import triton_patches

    return triton_patches
