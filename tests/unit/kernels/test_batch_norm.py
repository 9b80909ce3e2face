"""Batch norm with derivatives in closed form: torch's values, first and second derivatives, statistics."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from metadr import kernels

pytestmark = pytest.mark.usefixtures("on_one_thread")
SHAPES = [(5, 3), (4, 3, 2), (3, 2, 2, 3), (2, 1, 1, 1)]


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return kernels.batch_norm(x, weight, bias, None, None, 0.1, 1e-5)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_batch_norm_has_the_derivatives_of_its_values(shape, double):
    inputs = (double(*shape), double(shape[1]), double(shape[1]))
    assert gradcheck(normalised, inputs)
    assert gradgradcheck(normalised, inputs)


@pytest.mark.parametrize("zero", [False, True], ids=["weights", "weights of zero"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm_is_torch_s(shape, zero, double, derivatives, assert_close):
    inputs = [double(*shape), double(shape[1]), double(shape[1])]
    with torch.no_grad():
        inputs[1][: 1 if zero else 0] = 0
    theirs = derivatives(F.batch_norm(inputs[0], None, None, *inputs[1:], True, 0.1, 1e-5), inputs)
    assert_close(derivatives(normalised(*inputs), inputs), theirs, 1e-9)


def test_batch_norm_of_any_memory_layout(double, derivatives, assert_close):
    """A copy made on the way must not cut the second derivative off."""
    weight, bias = double(3), double(3)
    plain = double(2, 3, 4, 5)
    theirs = derivatives(normalised(plain, weight, bias), [plain, weight, bias])
    layouts = {
        "channels last": plain.detach().contiguous(memory_format=torch.channels_last),
        "transposed": plain.detach().transpose(2, 3).contiguous().transpose(2, 3),
        "strided": plain.detach().repeat_interleave(2, dim=3)[..., ::2],
    }
    for name, x in layouts.items():
        assert not x.is_contiguous(), name
        x.requires_grad_()
        assert_close(derivatives(normalised(x, weight, bias), [x, weight, bias]), theirs)


@pytest.mark.parametrize("momentum", [0.1, 0.3, 1.0])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm_moves_running_statistics_as_torch_does(shape, momentum):
    weight, bias = torch.randn(2, shape[1])
    kept = [[torch.zeros(shape[1]), torch.ones(shape[1])] for _ in range(2)]
    for _ in range(3):
        x = 3 * torch.randn(shape) + 1
        ours = kernels.batch_norm(x, weight, bias, *kept[0], momentum, 1e-5)
        theirs = F.batch_norm(x, *kept[1], weight, bias, True, momentum, 1e-5)
        assert torch.equal(ours, theirs)
    for mine, wanted in zip(*kept, strict=True):
        assert torch.equal(mine, wanted)
    assert not torch.equal(kept[0][0], torch.zeros(shape[1]))


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1), (1, 3, 1, 1)], ids=str)
def test_batch_norm_refuses_one_value_a_channel_as_torch_does(shape):
    """Their variance over n - 1 would make the running one NaN."""
    sentence = "Expected more than 1 value per channel when training"
    statistics = torch.zeros(3), torch.ones(3)
    weight, bias = torch.ones(3), torch.zeros(3)
    with pytest.raises(ValueError, match=sentence):
        F.batch_norm(torch.randn(shape), *statistics, weight, bias, True)
    with pytest.raises(ValueError, match=sentence):
        kernels.batch_norm(torch.randn(shape), weight, bias, *statistics, 0.1, 1e-5)
    assert torch.equal(statistics[1], torch.ones(3))


def test_batch_norm_that_nobody_differentiates_makes_no_graph(double):
    with torch.no_grad():
        assert not normalised(double(4, 3), double(3), double(3)).requires_grad
