"""Images as planes of pixels, one for each image and channel, whose order in memory is free.

Kernels here read planes in any order. A convolution as a matrix product writes them channel by channel: a channel of a
batch is one row of a matrix. Libraries write them image by image. What comes after leaves them as they are: between one
layer and the next nobody has to bring them into another order.
"""

import functools
import importlib.util
import math

import torch
from torch import Tensor


def on_triton(x: Tensor) -> bool:
    return x.is_cuda and x.dtype == torch.float32 and _has_triton()


def planes(x: Tensor) -> Tensor:
    """x itself if the pixels of each of its planes follow each other in memory, or a copy in which they do."""
    return x if x.ndim == 2 or x[0, 0].is_contiguous() else x.contiguous()


def empty_by_channel(x: Tensor, *shape: int) -> Tensor:
    """A new tensor of images of that shape whose memory goes channel by channel."""
    # Not a transposed view: what a function of autograd returns may be written into (an in-place ReLU).
    area = math.prod(shape[2:])
    inner = [math.prod(shape[dim + 1 :]) for dim in range(2, len(shape))]
    return x.new_empty_strided(shape, (area, shape[0] * area, *inner))


def empty_alike(x: Tensor) -> Tensor:
    """A new tensor of the shape of x, with its planes in the same order."""
    return torch.empty_like(x) if is_dense(x) else empty_by_channel(x, *x.shape)


def is_dense(x: Tensor) -> bool:
    """Whether planes follow each other in memory, image by image or channel by channel."""
    return x.is_contiguous() or x.transpose(0, 1).is_contiguous()


def alike(x: Tensor, other: Tensor) -> Tensor:
    """x, or a copy of it, with its planes where those of the other lie."""
    return x if x.stride() == other.stride() else torch.empty_like(other).copy_(x)


def rows(x: Tensor) -> Tensor:
    """A row of all pixels for each channel: a view where memory goes channel by channel, else a copy."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def from_rows(matrix: Tensor, num_images: int, height: int, width: int) -> Tensor:
    return matrix.view(matrix.shape[0], num_images, height, width).transpose(0, 1)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
