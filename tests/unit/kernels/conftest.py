"""What the tests of the kernels share: inputs in float64, derivatives of both orders, and how close they must be."""

import pytest
import torch
from torch import Tensor


@pytest.fixture
def double():
    """Makes an input in float64."""

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    return make


@pytest.fixture
def derivatives():
    """The output, its derivatives and its second derivatives, along fixed directions."""

    def take(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
        rng = torch.Generator().manual_seed(1)

        def direction(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=rng, dtype=torch.float64).to(like.device, like.dtype)

        along = (output.sin() * direction(output)).sum()
        first = torch.autograd.grad(along, inputs, create_graph=True, materialize_grads=True)
        along = sum((slope * direction(slope)).sum() for slope in first)
        second = torch.autograd.grad(along, inputs, materialize_grads=True)
        return [value.detach() for value in (output, *first, *second)]

    return take


@pytest.fixture
def assert_close():
    """Two lists of tensors are alike but for the last digits."""

    def check(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-11) -> None:
        for mine, wanted in zip(ours, theirs, strict=True):
            assert mine.shape == wanted.shape
            assert (mine - wanted).abs().max() <= tolerance * (1 + wanted.abs().max())

    return check
