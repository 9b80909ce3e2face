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

from metadr.kernels import fused_batch_norm as fused
from metadr.kernels import plain_batch_norm as plain
from metadr.kernels import split_batch_norm as split
from metadr.kernels.plain_batch_norm import First, Layer


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
    y: Tensor = _Normalise.apply(x, weight, bias, running_mean, running_var, momentum, eps)
    return y


def _kernels_for(x: Tensor) -> Any:
    """A program a channel, several, or torch's own; the same for a layer's output and both of its derivatives."""
    return fused if fused.fits(x) else split if split.fits(x) else plain


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
        kernels = _kernels_for(x)
        y, mean, r, reserve = kernels.normalise(x, Layer(weight, bias, *rest))
        # x as it came: a copy made here would be a constant to the second derivative.
        ctx.save_for_backward(x, weight, mean, r, reserve)
        ctx.eps = rest[-1]
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        dx, dw, db = _Gradient.apply(grads[0], *ctx.saved_tensors, ctx.eps)
        return dx, dw, db, None, None, None, None


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        mean, r, reserve, eps = rest
        kernels = _kernels_for(x)
        dx, dw, db = kernels.gradient(g, x, weight, mean, r, reserve, eps)
        ctx.save_for_backward(g, x, weight, mean, r, dw, db)
        return dx, dw, db

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor, a: Tensor, b: Tensor) -> Any:
        g, x, weight, mean, r, s2, s1 = ctx.saved_tensors
        kernels = _kernels_for(x)
        dg, dx, dw = kernels.second_derivative(u, a, b, First(g, x, weight, mean, r, s1, s2))
        return dg, dx, dw, None, None, None, None
