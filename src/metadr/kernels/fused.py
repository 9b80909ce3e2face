"""The second derivative of batch norm as one kernel: its plain twin is `batch_norm.second_derivative`."""

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

MOST_VALUES = 1 << 16  # of a channel: beyond, one program a channel leaves most of the GPU idle


def fits(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and x.numel() // x.shape[1] <= MOST_VALUES and _has_triton()


def second_derivative(
    u: Tensor,
    a: Tensor,
    b: Tensor,
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    r: Tensor,
    s1: Tensor,
    s2: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    dg, dx, dw = torch.empty_like(x), torch.empty_like(x), torch.empty_like(weight)
    channels, area = x.shape[1], x[0, 0].numel()
    count = x.numel() // channels
    block = min(2048, max(128, 1 << (count - 1).bit_length()))
    _kernel()[(channels,)](
        u, a, b, g, x, weight, mean, r, s1, s2, dg, dx, dw, channels, area, count, BLOCK=block, num_warps=4
    )
    return dg, dx, dw


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernel() -> Any:
    """Compiled at its first call, and imported no earlier: a CPU needs no Triton."""
    from metadr.kernels.triton_batch_norm import second_derivative_kernel

    return second_derivative_kernel
