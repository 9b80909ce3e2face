"""Layers that do less work than torch's: the same values, first and second derivatives, statistics."""

import importlib.util
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import metadr
from metadr import kernels
from metadr.kernels import fused_batch_norm as fused
from metadr.kernels.plain_batch_norm import second_derivative

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def derivatives(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output, its derivatives and its second derivatives, along fixed directions."""
    rng = torch.Generator().manual_seed(1)

    def direction(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=rng, dtype=torch.float64).to(like.device, like.dtype)

    along = (output.sin() * direction(output)).sum()
    first = torch.autograd.grad(along, inputs, create_graph=True, materialize_grads=True)
    along = sum((slope * direction(slope)).sum() for slope in first)
    second = torch.autograd.grad(along, inputs, materialize_grads=True)
    return [value.detach() for value in (output, *first, *second)]


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-11) -> None:
    for mine, wanted in zip(ours, theirs, strict=True):
        assert mine.shape == wanted.shape
        assert (mine - wanted).abs().max() <= tolerance * (1 + wanted.abs().max())


# Convolution.

GRID = [
    (size, taps, stride, padding, dilation)
    for size, taps, stride, padding, dilation in itertools.product(
        (1, 2, 3, 5), (1, 2, 3, 5), (1, 2, 3), (0, 1, 2, 4), (1, 2)
    )
    if size + 2 * padding >= dilation * (taps - 1) + 1
]


@pytest.fixture
def taps(monkeypatch) -> list[tuple[int, ...]]:
    """The sizes of the kernels that torch is asked to convolve with."""
    seen, original = [], F.conv2d

    def conv2d(x: Tensor, weight: Tensor, *rest: object) -> Tensor:
        seen.append(tuple(weight.shape[2:]))
        return original(x, weight, *rest)

    monkeypatch.setattr(F, "conv2d", conv2d)
    return seen


def test_conv2d_is_torch_s_on_every_size(taps):
    """Rows take one point of the grid, columns another, so that they cannot be mixed up."""
    trimmed = 0
    for index, rows in enumerate(GRID):
        columns = GRID[(7 * index + 3) % len(GRID)]
        size, kernel, stride, padding, dilation = zip(rows, columns, strict=True)
        groups, bias = (1, 2)[index % 2], double(4) if index % 3 else None
        x, weight = double(2, 2, *size), double(4, 2 // groups, *kernel)
        inputs = [x, weight] if bias is None else [x, weight, bias]
        options = (stride, padding, dilation, groups)
        theirs = derivatives(F.conv2d(x, weight, bias, *options), inputs)
        taps.clear()
        ours = derivatives(kernels.conv2d(x, weight, bias, *options), inputs)
        trimmed += taps[0] != kernel
        assert_close(ours, theirs)
    assert trimmed > 50


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation", "kept"),
    [
        ((1, 1), (3, 3), 1, 1, 1, (1, 1)),
        ((1, 1), (3, 3), 2, 1, 1, (1, 1)),
        ((1, 1), (5, 5), 1, 2, 1, (1, 1)),
        ((1, 1), (7, 7), 2, 3, 1, (1, 1)),
        ((1, 4), (3, 3), 1, 1, 1, (1, 3)),
        ((4, 1), (3, 3), 1, 1, 1, (3, 1)),
        ((2, 2), (3, 3), 1, 2, 2, (1, 1)),
        ((2, 2), (7, 7), 1, 3, 1, (3, 3)),
        ((2, 2), (3, 3), 2, 1, 1, (2, 2)),
        ((1, 1), (4, 4), 2, 4, 1, (4, 4)),  # the padding that is left would be uneven
        ((2, 2), (3, 3), 1, 1, 1, (3, 3)),
        ((1, 1), (1, 1), 1, 0, 1, (1, 1)),
        ((32, 32), (3, 3), 1, 1, 1, (3, 3)),
    ],
    ids=str,
)
def test_conv2d_leaves_out_what_only_meets_padding(size, kernel, stride, padding, dilation, kept, taps):
    weight = double(4, 3, *kernel)
    pairs = ((stride, stride), (padding, padding), (dilation, dilation))
    kernels.conv2d(double(2, 3, *size), weight, None, *pairs, 1).sum().backward()
    assert taps == [kept]


def test_taps_that_are_left_out_have_a_gradient_of_zero():
    weight = double(4, 3, 3, 3)
    kernels.conv2d(double(2, 3, 1, 1), weight, None, (1, 1), (1, 1), (1, 1), 1).square().sum().backward()
    centre = torch.zeros(3, 3, dtype=torch.bool)
    centre[1, 1] = True
    assert (weight.grad[:, :, centre] != 0).all()
    assert (weight.grad[:, :, ~centre] == 0).all()


def test_conv2d_refuses_what_torch_refuses():
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        kernels.conv2d(double(1, 1, 2, 2), double(1, 1, 5, 5), None, (1, 1), (1, 1), (1, 1), 1)


# Batch norm.

SHAPES = [(5, 3), (4, 3, 2), (3, 2, 2, 3), (2, 1, 1, 1)]


def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return kernels.batch_norm(x, weight, bias, None, None, 0.1, 1e-5)


@pytest.mark.parametrize("shape", SHAPES[:3], ids=str)
def test_batch_norm_has_the_derivatives_of_its_values(shape):
    inputs = (double(*shape), double(shape[1]), double(shape[1]))
    assert gradcheck(normalised, inputs)
    assert gradgradcheck(normalised, inputs)


@pytest.mark.parametrize("zero", [False, True], ids=["weights", "weights of zero"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_norm_is_torch_s(shape, zero):
    inputs = [double(*shape), double(shape[1]), double(shape[1])]
    with torch.no_grad():
        inputs[1][: 1 if zero else 0] = 0
    theirs = derivatives(F.batch_norm(inputs[0], None, None, *inputs[1:], True, 0.1, 1e-5), inputs)
    assert_close(derivatives(normalised(*inputs), inputs), theirs, 1e-9)


def test_batch_norm_of_any_memory_layout():
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


def test_batch_norm_that_nobody_differentiates_makes_no_graph():
    with torch.no_grad():
        assert not normalised(double(4, 3), double(3), double(3)).requires_grad


# The Triton kernel and its plain twin.

COMPARE = """
import torch
from metadr.kernels import fused_batch_norm as fused
from metadr.kernels.plain_batch_norm import second_derivative

rng = torch.Generator().manual_seed(0)
for shape in ((8, 3), (4, 3, 5), (4, 5, 3, 2), (2, 2, 40, 40), (2, 1, 1, 1)):
    u, g, x = torch.randn(3, *shape, generator=rng)
    a, b, weight, mean, s1, s2 = torch.randn(6, shape[1], generator=rng)
    weight[0] = 0
    arguments = (u, a, b, g, x, weight, mean, torch.rand(shape[1], generator=rng) + 0.5, s1, s2)
    wanted = second_derivative(*(each.double() for each in arguments))
    for name, ours, theirs in zip(("dg", "dx", "dw"), fused.second_derivative(*arguments), wanted, strict=True):
        error = (ours - theirs).abs().max() / theirs.abs().max()
        print(shape, name, float(error))
        assert error < 1e-6
print("compared")
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_triton_kernel_computes_what_its_twin_does():
    """In Triton's interpreter, which must be asked for before Triton is imported: so in a process of its own."""
    source = str(Path(metadr.__file__).resolve().parents[1])
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run([sys.executable, "-c", COMPARE], env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("dx") == 5
    assert ended.stdout.endswith("compared\n")


def test_the_triton_kernel_is_left_out_on_a_cpu():
    assert not fused.fits(torch.randn(4, 3))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("shape", [(64, 10), (8, 3, 5), (64, 64, 8, 8), (64, 512, 1, 1), (2, 1, 1, 1)], ids=str)
def test_the_triton_kernel_computes_what_its_twin_does_on_a_gpu(shape):
    rng = torch.Generator("cuda").manual_seed(0)
    u, g, x = torch.randn(3, *shape, generator=rng, device="cuda")
    a, b, weight, mean, s1, s2 = torch.randn(6, shape[1], generator=rng, device="cuda")
    r = torch.rand(shape[1], generator=rng, device="cuda") + 0.5
    assert fused.fits(x)
    arguments = (u, a, b, g, x, weight, mean, r, s1, s2)
    wanted = second_derivative(*(each.double() for each in arguments))
    for ours, theirs in zip(fused.second_derivative(*arguments), wanted, strict=True):
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()
    again = fused.second_derivative(*arguments)
    assert all(torch.equal(*pair) for pair in zip(again, fused.second_derivative(*arguments), strict=True))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("shape", [(16, 8, 4, 4), (64, 512, 1, 1)], ids=str)
def test_batch_norm_is_torch_s_on_a_gpu(shape, layout):
    """Against torch in float64; cuDNN takes the first derivative, Triton the second."""
    exact = [double(*shape), double(shape[1]), double(shape[1])]
    theirs = derivatives(F.batch_norm(exact[0], None, None, *exact[1:], True, 0.1, 1e-5), exact)
    inputs = [each.detach().float().cuda() for each in exact]
    inputs = [inputs[0].contiguous(memory_format=layout), *inputs[1:]]
    for each in inputs:
        each.requires_grad_()
    statistics = [torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")]
    y = kernels.batch_norm(*inputs, *statistics, 0.3, 1e-5)
    assert_close([each.double().cpu() for each in derivatives(y, inputs)], theirs, 1e-4)
    wanted = [torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")]
    F.batch_norm(inputs[0].detach(), *wanted, inputs[1], inputs[2], True, 0.3, 1e-5)
    for mine, moved in zip(statistics, wanted, strict=True):
        torch.testing.assert_close(mine, moved)
