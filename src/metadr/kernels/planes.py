"""Images as planes of pixels, one for each image and channel, whose order in memory is free.

Kernels here read planes in any order and write them channel by channel: a channel of a batch is then one row of a
matrix, which is what a convolution as a matrix product makes and what batch norm sums over.
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


def rows(x: Tensor) -> Tensor:
    """A row of all pixels for each channel: a view where memory goes channel by channel, else a copy."""
    return x.transpose(0, 1).reshape(x.shape[1], -1)


def from_rows(matrix: Tensor, num_images: int, height: int, width: int) -> Tensor:
    return matrix.view(matrix.shape[0], num_images, height, width).transpose(0, 1)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
