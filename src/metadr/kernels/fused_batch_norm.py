"""Batch norm and its two derivatives as one kernel each: their plain twins are in plain_batch_norm.py."""

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from metadr.kernels.plain_batch_norm import First, Layer
from metadr.kernels.planes import empty_alike, on_triton, planes

MOST_VALUES = 1 << 16  # of a channel: beyond, one program a channel leaves most of the GPU idle


def fits(x: Tensor) -> bool:
    return on_triton(x) and x.numel() // x.shape[1] <= MOST_VALUES


def normalise(x: Tensor, layer: Layer, plus: Tensor | None, relu: bool) -> tuple[Tensor, Tensor, Tensor, None]:
    x, weight, bias = planes(x), layer.weight.contiguous(), layer.bias.contiguous()
    y, mean, r = empty_alike(x), torch.empty_like(weight), torch.empty_like(weight)
    tracked = layer.running_mean is not None
    kept = (layer.running_mean, layer.running_var) if tracked else (mean, r)  # where not tracked, left alone
    added = planes(plus) if plus is not None else x
    grid, count, options = _launch(y)
    options |= {"TRACKED": tracked, "PLUS": plus is not None, "RELU": relu}
    channel = (weight, bias, mean, r, *kept)
    _kernels().normalise_kernel[grid](
        *_at(x), *_at(added), *channel, *_at(y), count, layer.momentum, layer.eps, **options
    )
    return y, mean, r, None


def gradient(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, mean: Tensor, r: Tensor, reserve: None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    g, x, weight = planes(g), planes(x), weight.contiguous()
    dx, dw, db = empty_alike(x), torch.empty_like(weight), torch.empty_like(weight)
    grid, count, options = _launch(dx)
    shift, relu = behind(weight, bias)
    channel = (weight, shift, mean, r)
    _kernels().gradient_kernel[grid](*_at(g), *_at(x), *channel, *_at(dx), dw, db, count, RELU=relu, **options)
    return dx, dw, db


def second_derivative(u: Tensor, a: Tensor, b: Tensor, first: First) -> tuple[Tensor, Tensor, Tensor]:
    g, x, weight, bias, mean, r, s1, s2 = first
    # The gradient of a sum is one number seen many times: kernels read memory as it lies.
    u, g, x, a, b, weight = planes(u), planes(g), planes(x), a.contiguous(), b.contiguous(), weight.contiguous()
    dg, dx, dw = empty_alike(x), empty_alike(x), torch.empty_like(weight)
    shift, relu = behind(weight, bias)
    channel = (a, b, weight, shift, mean, r, s1, s2)
    grid, count, options = _launch(dx)
    _kernels().second_derivative_kernel[grid](
        *_at(u), *_at(g), *_at(x), *channel, dg, *_at(dx), dw, count, RELU=relu, **options
    )
    return dg, dx, dw


def behind(weight: Tensor, bias: Tensor | None) -> tuple[Tensor, bool]:
    """What a kernel needs of a ReLU behind the layer, and whether there is one."""
    return (weight, False) if bias is None else (bias.contiguous(), True)


def _at(x: Tensor) -> tuple[Tensor, int, int]:
    """Where planes are: their memory, and how far images and channels lie apart."""
    return x, x.stride(0), x.stride(1)


def _launch(written: Tensor) -> tuple[tuple[int], int, dict[str, int]]:
    """The programs, the values of each, and how they are divided."""
    channels, area = written.shape[1], written[0, 0].numel()
    count = written.numel() // channels
    block = min(4096, max(128, 1 << (count - 1).bit_length()))
    options = {"AREA": area, "BLOCK": block, "num_warps": 8 if block > 1024 else 4}
    return (channels,), count, {"ROWS": written.stride()[:2] == (area, count), **options}


@functools.cache
def _kernels() -> ModuleType | Any:
    """Imported no earlier than at the first call: a CPU needs no Triton."""
    from metadr.kernels import triton_batch_norm

    return triton_batch_norm
