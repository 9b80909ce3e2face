"""All values of many tensors as one row: a few operations on it instead of some for every tensor."""

from collections.abc import Iterable

import torch
from torch import Tensor

from metadr.core import Params


def row(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def cut(values: Tensor, like: Params) -> Params:
    """A row as tensors of these names, shapes and types."""
    pieces = values.split([tensor.numel() for tensor in like.values()])  # type: ignore[no-untyped-call]
    return {
        name: piece.view_as(tensor).to(tensor.dtype) for (name, tensor), piece in zip(like.items(), pieces, strict=True)
    }
