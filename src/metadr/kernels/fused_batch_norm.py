"""Batch norm and its two derivatives as one kernel each: their plain twins are in plain_batch_norm.py."""

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from metadr.kernels.plain_batch_norm import First, Layer
from metadr.kernels.planes import empty_by_channel, on_triton, planes

MOST_VALUES = 1 << 16  # of a channel: beyond, one program a channel leaves most of the GPU idle


def fits(x: Tensor) -> bool:
    return on_triton(x) and x.numel() // x.shape[1] <= MOST_VALUES


def normalise(x: Tensor, layer: Layer) -> tuple[Tensor, Tensor, Tensor, None]:
    x, weight, bias = planes(x), layer.weight.contiguous(), layer.bias.contiguous()
    y, mean, r = empty_by_channel(x, *x.shape), torch.empty_like(weight), torch.empty_like(weight)
    tracked = layer.running_mean is not None
    kept = (layer.running_mean, layer.running_var) if tracked else (mean, r)  # where not tracked, left alone
    grid, count, options = _launch(x)
    _kernels().normalise_kernel[grid](
        *_read(x), weight, bias, mean, r, *kept, y, count, layer.momentum, layer.eps, TRACKED=tracked, **options
    )
    return y, mean, r, None


def gradient(
    g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, r: Tensor, reserve: None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    weight = weight.contiguous()
    dx, dw, db = empty_by_channel(x, *x.shape), torch.empty_like(weight), torch.empty_like(weight)
    grid, count, options = _launch(x)
    _kernels().gradient_kernel[grid](*_read(g), *_read(x), weight, mean, r, dx, dw, db, count, **options)
    return dx, dw, db


def second_derivative(u: Tensor, a: Tensor, b: Tensor, first: First) -> tuple[Tensor, Tensor, Tensor]:
    g, x, weight, mean, r, s1, s2 = first
    # The gradient of a sum is one number seen many times: kernels read memory as it lies.
    a, b, weight = a.contiguous(), b.contiguous(), weight.contiguous()
    dg, dx, dw = empty_by_channel(x, *x.shape), empty_by_channel(x, *x.shape), torch.empty_like(weight)
    channel = (a, b, weight, mean, r, s1, s2)
    grid, count, options = _launch(x)
    _kernels().second_derivative_kernel[grid](*_read(u), *_read(g), *_read(x), *channel, dg, dx, dw, count, **options)
    return dg, dx, dw


def _read(x: Tensor) -> tuple[Tensor, int, int]:
    """What a kernel needs to read x: its memory, and how far images and channels lie apart."""
    x = planes(x)
    return x, x.stride(0), x.stride(1)


def _launch(x: Tensor) -> tuple[tuple[int], int, dict[str, int]]:
    """The programs, the values of each, and how they are divided."""
    channels, area = x.shape[1], x[0, 0].numel()
    count = x.numel() // channels
    block = min(4096, max(128, 1 << (count - 1).bit_length()))
    return (channels,), count, {"AREA": area, "BLOCK": block, "num_warps": 8 if block > 1024 else 4}


@functools.cache
def _kernels() -> ModuleType | Any:
    """Imported no earlier than at the first call: a CPU needs no Triton."""
    from metadr.kernels import triton_batch_norm

    return triton_batch_norm
