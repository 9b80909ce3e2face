"""Batch norm and its two derivatives in torch's operations, for any device, type and size."""

from typing import NamedTuple

import torch
from torch import Tensor


class Layer(NamedTuple):
    """A layer of batch norm; it moves the running statistics, where it has any."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    momentum: float
    eps: float


class First(NamedTuple):
    """What the first derivative read (g the gradient of the output, r = 1 / deviation) and summed (s1, s2).

    With a bias g is of the output without its negative values, and passes only where it was positive.
    """

    g: Tensor
    x: Tensor
    weight: Tensor
    bias: Tensor | None
    mean: Tensor
    r: Tensor
    s1: Tensor
    s2: Tensor


def normalise(x: Tensor, layer: Layer, plus: Tensor | None, relu: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """The output, the batch's mean and 1 / deviation, and what cuDNN wants back."""
    weight, bias, running_mean, running_var, momentum, eps = layer
    arguments = (x.contiguous(), weight, bias, running_mean, running_var, True, momentum, eps)
    if _in_cudnn(x, eps):
        y, mean, r, reserve = torch.ops.aten.cudnn_batch_norm(*arguments)
    else:
        (y, mean, r), reserve = torch.native_batch_norm(*arguments), None
    if plus is not None:
        y += plus
    return torch.relu_(y) if relu else y, mean, r, reserve


def gradient(
    g: Tensor, x: Tensor, weight: Tensor, bias: None, mean: Tensor, r: Tensor, reserve: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    g, x = g.contiguous(), x.contiguous()
    grads: tuple[Tensor, Tensor, Tensor]
    if reserve is not None:
        grads = torch.ops.aten.cudnn_batch_norm_backward(x, g, weight, None, None, mean, r, eps, reserve)
    else:
        needed = [True, True, True]
        grads = torch.ops.aten.native_batch_norm_backward(g, x, weight, None, None, mean, r, True, eps, needed)
    return grads


def second_derivative(u: Tensor, a: Tensor, b: Tensor, first: First) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of g, x and the weight, from those of dx (u), dw (a) and db (b)."""
    g, x, weight, _, mean, r, s1, s2 = first
    others = [dim for dim in range(x.ndim) if dim != 1]
    n = x.numel() // x.shape[1]

    def wide(channel: Tensor) -> Tensor:
        return channel.view(-1, *[1] * (x.ndim - 2))

    xh = (x - wide(mean)) * wide(r)
    wr = weight * r
    a1, a2, a3 = u.sum(others), (u * xh).sum(others), (u * g).sum(others)
    q = a3 - (s1 * a1 + s2 * a2) / n
    e = a - wr * a2 / n
    sum_h = e * s1 - wr * s2 * a1 / n
    sum_hx = e * s2 - wr * s2 * a2 / n
    dg = torch.addcmul(wide(b - wr * a1 / n), u, wide(wr)).addcmul_(xh, wide(e))
    dx = torch.addcmul(wide(-r * sum_h / n), u, wide(-wr * r * s2 / n)).addcmul_(g, wide(r * e))
    dx.addcmul_(xh, wide(-r * (sum_hx + wr * q) / n))
    return dg, dx, r * q


def _in_cudnn(x: Tensor, eps: float) -> bool:
    """Where torch itself would call cuDNN."""
    return x.is_cuda and x.dtype == torch.float32 and x.ndim >= 4 and eps >= 1e-5 and torch.backends.cudnn.enabled
