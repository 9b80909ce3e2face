"""Batch norm over a batch's own statistics, with a second derivative in closed form.

torch's own second derivative is built from dozens of small operations a layer; in a Meta-DR step on a GPU they take
longer than all convolutions. With n values a channel, xh = (x - mean) r the normalised input, g the gradient of the
output and s1 = sum g, s2 = sum g xh, the first derivative is

    dx = w r (g - s1/n - xh s2/n),  dw = s2,  db = s1.

Differentiating <u, dx> + <a, dw> + <b, db> once more needs, beside s1 and s2, only A1 = sum u, A2 = sum u xh and
A3 = sum u g of each channel; the gradients of g and x are sums of u, g and xh with one coefficient a channel each.

A ReLU behind it, and what a residual block adds before that, are done in the same kernel: by themselves each would read
and write all images again. Without an addition the derivatives find out from x what the ReLU has let through.
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
    *,
    plus: Tensor | None = None,
    relu: bool = False,
) -> Tensor:
    """F.batch_norm(..., training=True), which moves the running statistics that it is given.

    What comes out has `plus` added, if there is any, and then no negative values, if `relu` says so.
    """
    if x.numel() == x.shape[1]:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}")
    plus = None if plus is None else plus.expand_as(x)
    y: Tensor = _Normalise.apply(x, weight, bias, plus, relu, running_mean, running_var, momentum, eps)
    return y


def _kernels_for(x: Tensor) -> Any:
    """A program a channel, several, or torch's own; the same for a layer's output and both of its derivatives."""
    return fused if fused.fits(x) else split if split.fits(x) else plain


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Any:
        plus, relu, *layer = rest
        kernels = _kernels_for(x)
        y, mean, r, reserve = kernels.normalise(x, Layer(weight, bias, *layer), plus, relu)
        ctx.added = plus is not None
        ctx.eps = layer[-1]
        known = relu and not ctx.added and kernels is not plain  # what was let through
        # x as it came: a copy made here would be a constant to the second derivative. As such y is wanted: torch would
        # follow an output with zeros, and hooks on what is saved would keep it for good.
        cut = y.detach() if relu and not known else None
        ctx.save_for_backward(x, weight, bias if known else None, mean, r, reserve, cut)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (g,), (*saved, cut) = grads, ctx.saved_tensors
        if cut is not None:
            g = torch.ops.aten.threshold_backward(g, cut, 0)
        dx, dw, db = _Gradient.apply(g, *saved, ctx.eps)
        return dx, dw, db, g if ctx.added else None, *[None] * 5


class _Gradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, g: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
        bias, mean, r, reserve, eps = rest
        kernels = _kernels_for(x)
        dx, dw, db = kernels.gradient(g, x, weight, bias, mean, r, reserve, eps)
        ctx.save_for_backward(g, x, weight, bias, mean, r, db, dw)
        return dx, dw, db

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor, a: Tensor, b: Tensor) -> Any:
        first = First(*ctx.saved_tensors)
        dg, dx, dw = _kernels_for(first.x).second_derivative(u, a, b, first)
        return dg, dx, dw, *[None] * 5
