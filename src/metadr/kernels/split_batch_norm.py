"""Batch norm and its two derivatives for large images, as two kernels each: many programs share a channel.

One program a channel (fused_batch_norm.py, and libraries) leaves most of a GPU idle where channels are few and large.
"""

import functools
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metadr.kernels.fused_batch_norm import behind
from metadr.kernels.plain_batch_norm import First, Layer
from metadr.kernels.planes import alike, is_dense, on_triton

PROGRAMS = 1024  # wanted in all: some for each multiprocessor of a large GPU
LEAST, MOST_PIECES = 1 << 13, 64  # values of a piece; pieces of a channel, which every program adds up
BLOCK = 2048


def fits(x: Tensor) -> bool:
    return on_triton(x) and x.ndim > 2 and is_dense(x) and x.numel() <= 1 << 30  # places are counted in 32 bits


def normalise(x: Tensor, layer: Layer, plus: Tensor | None, relu: bool) -> tuple[Tensor, Tensor, Tensor, None]:
    weight, bias = layer.weight.contiguous(), layer.bias.contiguous()
    y, mean, r = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    tracked = layer.running_mean is not None
    kept = (layer.running_mean, layer.running_var) if tracked else (mean, r)  # where not tracked, left alone
    cut = _cut(x)
    parts = cut.parts(x, 2)
    _kernels().moments_kernel[cut.grid](*_at(x), parts, *cut.sizes, **cut.options)
    scalars = (*cut.sizes, layer.momentum, layer.eps)
    options = {**cut.options, "TRACKED": tracked, "PLUS": plus is not None, "RELU": relu, "PIECES": cut.room}
    added = alike(plus, x) if plus is not None else x
    _kernels().normalise_kernel[cut.grid](*_at(x), added, weight, bias, mean, r, *kept, y, parts, *scalars, **options)
    return y, mean, r, None


def gradient(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor, r: Tensor, reserve: None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    g, weight = alike(g, x), weight.contiguous()
    dx, dw, db = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    cut = _cut(x)
    parts = cut.parts(x, 2)
    shift, relu = behind(weight, bias)
    channel, options = (weight, shift, mean, r), {**cut.options, "RELU": relu}
    _kernels().gradient_sums_kernel[cut.grid](g, *_at(x), *channel, parts, *cut.sizes, **options)
    _kernels().gradient_kernel[cut.grid](
        g, *_at(x), *channel, dx, dw, db, parts, *cut.sizes, **options, PIECES=cut.room
    )
    return dx, dw, db


def second_derivative(u: Tensor, a: Tensor, b: Tensor, first: First) -> tuple[Tensor, Tensor, Tensor]:
    g, x, weight, bias, mean, r, s1, s2 = first
    u, g, a, b, weight = alike(u, x), alike(g, x), a.contiguous(), b.contiguous(), weight.contiguous()
    dg, dx, dw = torch.empty_like(x), torch.empty_like(x), torch.empty_like(weight)
    cut = _cut(x)
    parts = cut.parts(x, 3)
    shift, relu = behind(weight, bias)
    channel, options = (weight, shift, mean, r), {**cut.options, "RELU": relu}
    _kernels().second_sums_kernel[cut.grid](u, g, *_at(x), *channel, parts, *cut.sizes, **options)
    _kernels().second_derivative_kernel[cut.grid](
        u, g, *_at(x), a, b, *channel, s1, s2, dg, dx, dw, parts, *cut.sizes, **options, PIECES=cut.room
    )
    return dg, dx, dw


def _at(x: Tensor) -> tuple[Tensor, int, int]:
    return x, x.stride(0), x.stride(1)


class _Cut(NamedTuple):
    """How channels are cut into pieces."""

    grid: tuple[int, int]  # channels, pieces of each
    sizes: tuple[int, int]  # values of a channel, and of a piece
    options: dict[str, int]

    @property
    def room(self) -> int:
        """The power of two that holds the pieces."""
        return 1 << (self.grid[1] - 1).bit_length()

    def parts(self, x: Tensor, sums: int) -> Tensor:
        return x.new_empty(self.grid[0] * sums * self.grid[1])


def _cut(x: Tensor) -> _Cut:
    channels, area = x.shape[1], x[0, 0].numel()
    count = x.numel() // channels
    pieces = max(1, min(MOST_PIECES, -(-PROGRAMS // channels), count // LEAST))
    length = -(-count // pieces)
    length += -length % BLOCK  # whole blocks, so that memory is read from where it begins
    pieces = -(-count // length)
    return _Cut((channels, pieces), (count, length), {"AREA": area, "BLOCK": BLOCK, "num_warps": 8})


@functools.cache
def _kernels() -> ModuleType | Any:
    """Imported no earlier than at the first call: a CPU needs no Triton."""
    from metadr.kernels import triton_split_batch_norm

    return triton_split_batch_norm
