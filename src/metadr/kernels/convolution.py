"""Convolution whose derivatives, of any order, are the three operations that libraries are made for.

A convolution is linear in the images and in the weights, and so are its derivatives by either: by the images it is a
transposed convolution, by the weights a sum over all places. The derivative of any of the three is again one of them.
Torch knows this for the first derivative alone. Its second takes the derivative by the weights for a convolution with a
kernel as large as the image, and that leaves most of a GPU idle: the result has as many values as the kernel.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

Pair = tuple[int, int]


class Places(NamedTuple):
    """Where a kernel meets an image."""

    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As torch has them, with those of a transposed convolution."""
        return self.stride, self.padding, self.dilation, False, (0, 0), self.groups


def conv2d(x: Tensor, weight: Tensor, bias: Tensor | None, places: Places) -> Tensor:
    if torch.is_autocast_enabled(x.device.type):  # torch sees to this for its own functions only
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = _cast(x, dtype), _cast(weight, dtype), bias if bias is None else _cast(bias, dtype)
    y: Tensor = _Convolved.apply(x, weight, bias, places)
    return y


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value if value.dtype == torch.float64 else value.to(dtype)


class _Convolved(torch.autograd.Function):
    """Of images and weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, places: Places) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.places = places
        y: Tensor = torch.ops.aten.convolution(x, weight, bias, *places.arguments)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x, weight), (by_x, by_weight, by_bias, _) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            _ByImages.apply(grads[0], weight, x.shape, ctx.places) if by_x else None,
            _ByWeights.apply(x, grads[0], weight.shape, ctx.places) if by_weight else None,
            grads[0].sum((0, 2, 3)) if by_bias else None,
            None,
        )


class _ByImages(torch.autograd.Function):
    """Of the derivative by what came out, and weights."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, weight: Tensor, shape: torch.Size, places: Places) -> Tensor:
        ctx.save_for_backward(grad, weight)
        ctx.places = places
        return _derivative(grad, _of_shape(grad, shape), weight, places, by_images=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad, weight), (by_grad, by_weight, *_) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            _Convolved.apply(grads[0], weight, None, ctx.places) if by_grad else None,
            _ByWeights.apply(grads[0], grad, weight.shape, ctx.places) if by_weight else None,
            None,
            None,
        )


class _ByWeights(torch.autograd.Function):
    """Of images, and the derivative by what came out."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, grad: Tensor, shape: torch.Size, places: Places) -> Tensor:
        ctx.save_for_backward(x, grad)
        ctx.places = places
        return _derivative(grad, x, _of_shape(grad, shape), places, by_images=False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x, grad), (by_x, by_grad, *_) = ctx.saved_tensors, ctx.needs_input_grad
        return (
            _ByImages.apply(grad, grads[0], x.shape, ctx.places) if by_x else None,
            _Convolved.apply(x, grads[0], None, ctx.places) if by_grad else None,
            None,
            None,
        )


def _derivative(grad: Tensor, x: Tensor, weight: Tensor, places: Places, *, by_images: bool) -> Tensor:
    wanted = (by_images, not by_images, False)
    found = torch.ops.aten.convolution_backward(grad, x, weight, None, *places.arguments, wanted)
    derivative: Tensor = found[0 if by_images else 1]
    return derivative


def _of_shape(like: Tensor, shape: torch.Size) -> Tensor:
    """Stands for a tensor of which only the shape is asked."""
    return like.new_empty(1).expand(shape)
