"""Batch norm over a batch's own statistics, with a second derivative in closed form.

torch's own second derivative is built from dozens of small operations a layer; in a Meta-DR step on a GPU they take
longer than all convolutions. With n values a channel, xh = (x - mean) r the normalised input, g the gradient of the
output and s1 = sum g, s2 = sum g xh, the first derivative is

    dx = w r (g - s1/n - xh s2/n),  dw = s2,  db = s1.

Differentiating <u, dx> + <a, dw> + <b, db> once more needs, beside s1 and s2, only A1 = sum u, A2 = sum u xh and
A3 = sum u g of each channel; the gradients of g and x are sums of u, g and xh with one coefficient a channel each.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from metadr.kernels import fused


def batch_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
) -> Tensor:
    """F.batch_norm(..., training=True), which moves the running statistics that it is given."""
    if x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    # Made contiguous out here, where autograd sees it: a copy that forward saved would be a constant to the second.
    y: Tensor = _Normalise.apply(x.contiguous(), weight, bias, running_mean, running_var, momentum, eps)
    return y


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
        running_mean, running_var, momentum, eps = rest
        if _in_cudnn(x, eps):
            y, mean, invstd, reserve = torch.ops.aten.cudnn_batch_norm(
                x, weight, bias, running_mean, running_var, True, momentum, eps
            )
        else:
            y, mean, invstd = torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
            reserve = None
        ctx.save_for_backward(x, weight, mean, invstd, reserve)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        dx, dw, db = _Gradient.apply(grads[0], *ctx.saved_tensors, ctx.eps)
        return dx, dw, db, None, None, None, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        mean, invstd, reserve, eps = rest
        g = g.contiguous()
        if reserve is not None:
            dx, dw, db = torch.ops.aten.cudnn_batch_norm_backward(x, g, weight, None, None, mean, invstd, eps, reserve)
        else:
            dx, dw, db = torch.ops.aten.native_batch_norm_backward(
                g, x, weight, None, None, mean, invstd, True, eps, [True, True, True]
            )
        ctx.save_for_backward(g, x, weight, mean, invstd, dw, db)
        return dx, dw, db

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor, a: Tensor, b: Tensor) -> Any:
        g, x, weight, mean, r, s2, s1 = ctx.saved_tensors
        second = fused.second_derivative if fused.fits(x) else second_derivative
        dg, dx, dw = second(u.contiguous(), a, b, g, x, weight, mean, r, s1, s2)
        return dg, dx, dw, None, None, None, None


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
    """The gradients of g, x and the weight, from those of dx (u), dw (a) and db (b)."""
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
