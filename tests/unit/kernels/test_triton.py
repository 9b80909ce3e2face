"""The Triton kernels, interpreted and on a GPU, and cuDNN's convolution there: torch's values and derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from metadr import kernels
from metadr.kernels import fused_batch_norm as fused
from metadr.kernels import product
from metadr.kernels import split_batch_norm as split
from metadr.kernels.product import Geometry

pytestmark = pytest.mark.usefixtures("on_one_thread")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

INTERPRETED = """
import torch
import torch.nn.functional as F

from metadr import kernels
from metadr.kernels import fused_batch_norm, product, split_batch_norm

fused_batch_norm.on_triton = split_batch_norm.on_triton = product.on_triton = lambda x: True


def by_channel(x):
    return x.transpose(0, 1).contiguous().transpose(0, 1)


LAYOUTS = {"by image": torch.Tensor.contiguous, "by channel": by_channel, "reversed": lambda x: x.mT.contiguous().mT}


def derivatives(output, inputs):
    rng = torch.Generator().manual_seed(1)

    def along(values):
        return sum((value * torch.randn(value.shape, generator=rng).to(value)).sum() for value in values)

    first = torch.autograd.grad(along([output.sin()]), inputs, create_graph=True, materialize_grads=True)
    second = torch.autograd.grad(along(first), inputs, retain_graph=True, materialize_grads=True)
    # The gradient of a sum is one number seen many times.
    of_sums = torch.autograd.grad(sum(value.sum() for value in first), inputs, materialize_grads=True)
    return [output, *first, *second, *of_sums]


def compare(name, ours, theirs, inputs):
    exact = [each.detach().double().requires_grad_() for each in inputs]
    for mine, wanted in zip(derivatives(ours(*inputs), inputs), derivatives(theirs(*exact), exact), strict=True):
        error = float((mine - wanted).abs().max() / (1 + wanted.abs().max()))
        assert mine.shape == wanted.shape and error < 2e-5, (name, error)
    print(name)


rng = torch.Generator().manual_seed(0)
for size, taps, *options in (
    ((8, 8), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((5, 7), (3, 2), (2, 1), (1, 0), (1, 2)),
    ((4, 4), (1, 1), (2, 2), (0, 0), (1, 1)),
    ((3, 2), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 1), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((9, 6), (5, 3), (3, 2), (2, 1), (1, 1)),
    ((2, 2), (3, 3), (2, 2), (1, 1), (1, 1)),
):
    for layout, arrange in LAYOUTS.items():
        x = arrange(torch.randn(3, 3, *size, generator=rng)).requires_grad_()
        weight = torch.randn(4, 3, *taps, generator=rng).requires_grad_()
        bias = torch.randn(4, generator=rng).requires_grad_()
        name = f"convolution {size} {taps} {layout}"
        call = lambda convolve: lambda x, weight, bias: convolve(x, weight, bias, *options, 1)
        compare(name, call(kernels.conv2d), call(F.conv2d), [x, weight, bias])

def batch_norm(name, arrange, shape):
    x = arrange(2 * torch.randn(shape, generator=rng) + 3).requires_grad_()
    weight, bias = (torch.randn(shape[1], generator=rng).requires_grad_() for _ in range(2))
    with torch.no_grad():
        weight[0] = 0
    kept = torch.rand(2, shape[1], generator=rng)
    expected = kept.double()
    compare(
        f"batch norm {shape} {name}",
        lambda x, weight, bias: kernels.batch_norm(x, weight, bias, *kept, 0.3, 1e-5),
        lambda x, weight, bias: F.batch_norm(x, *expected, weight, bias, True, 0.3, 1e-5),
        [x, weight, bias],
    )
    torch.testing.assert_close(kept, expected.float())
    y = kernels.batch_norm(x, weight, bias, None, None, 0.3, 1e-5)
    dx = torch.autograd.grad(y.square().sum(), x)[0]
    assert name == "reversed" or y.stride() == dx.stride() == x.stride(), (name, y.stride(), dx.stride())
    in_place = torch.relu_(kernels.batch_norm(x, weight, bias, None, None, 0.3, 1e-5))
    assert torch.autograd.grad(in_place.sum(), x)[0].isfinite().all()


for shape in ((8, 3), (4, 3, 5), (4, 3, 5, 2), (2, 2, 70, 40), (2, 1, 1, 1)):
    for layout, arrange in LAYOUTS.items():
        if len(shape) == 4 or layout != "reversed":
            batch_norm(layout, arrange, shape)

# Channels in pieces, as those of large images are: the last of them shorter, and one alone.
fused_batch_norm.fits = lambda x: False
split_batch_norm.BLOCK, split_batch_norm.LEAST = 32, 64
for pieces, shape in ((1, (4, 3, 5)), (1, (4, 3, 5, 2)), (7, (2, 2, 15, 21)), (4, (3, 1, 9, 11)), (2, (1, 3, 8, 16))):
    (channels, found), (count, length), _ = split_batch_norm._cut(torch.zeros(shape))
    assert (channels, found) == (shape[1], pieces) and (pieces - 1) * length < count <= pieces * length, (found, length)
    batch_norm(f"in pieces {pieces}", LAYOUTS["by channel" if pieces in (2, 4) else "by image"], shape)
"""


def test_the_triton_kernels_have_the_values_and_derivatives_of_torch_s_layers(interpreted):
    said = interpreted(INTERPRETED)
    assert said.count("convolution") == 7 * 3
    assert said.count("batch norm") == 13 + 5
    assert said.count("in pieces") == 5


def test_the_triton_kernels_are_left_out_on_a_cpu():
    assert not fused.fits(torch.randn(4, 3))
    geometry = Geometry((8, 8), (3, 3), (1, 1), (1, 1), (1, 1))
    assert not product.fits(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), geometry, 1)


def on_gpu(*inputs: Tensor) -> list[Tensor]:
    return [each.detach().float().cuda().requires_grad_() for each in inputs]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_conv2d_is_torch_s_on_a_gpu(groups, layout, double, derivatives, assert_close):
    """By cuDNN, which is given shapes where it asks for no values."""
    x, weight, bias = double(3, 4, 9, 7), double(8, 4 // groups, 3, 3), double(8)
    inputs = [value.detach().cuda().requires_grad_() for value in (x, weight, bias)]
    inputs[0] = inputs[0].detach().contiguous(memory_format=layout).requires_grad_()
    options = ((2, 1), (1, 0), (1, 2), groups)
    ours = derivatives(kernels.conv2d(*inputs, *options, products=0), inputs)
    assert_close(ours, derivatives(F.conv2d(*inputs, *options), inputs), 1e-10)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("layout", ["by image", "by channel", "channels last"])
@pytest.mark.parametrize(
    ("size", "taps", "stride", "padding"),
    [(8, 3, 1, 1), (8, 3, 2, 1), (8, 1, 2, 0), (32, 7, 2, 3), (2, 3, 2, 1), (1, 3, 1, 1)],
)
def test_convolution_is_torch_s_on_a_gpu(size, taps, stride, padding, layout, double, derivatives, assert_close):
    """As a product, against torch in float64; the same bits each time."""
    options = ((stride, stride), (padding, padding), (1, 1), 1)
    exact = [double(8, 3, size, size), double(16, 3, taps, taps), double(16)]
    theirs = derivatives(F.conv2d(*exact, *options), exact)
    inputs = on_gpu(*exact)
    if layout == "channels last":
        inputs[0] = inputs[0].detach().contiguous(memory_format=torch.channels_last).requires_grad_()
    elif layout == "by channel":
        inputs[0] = inputs[0].detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    found = [derivatives(kernels.conv2d(*inputs, *options), inputs) for _ in range(2)]
    assert_close([each.double().cpu() for each in found[0]], theirs, 1e-4)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("shape", [(16, 8, 4, 4), (64, 512, 1, 1), (64, 64, 8, 8), (2, 3, 200, 200)], ids=str)
def test_batch_norm_is_torch_s_on_a_gpu(shape, layout, double, derivatives, assert_close):
    """Against torch in float64: one kernel, for large images two, and torch's own; the same bits each time."""
    exact = [double(*shape), double(shape[1]), double(shape[1])]
    theirs = derivatives(F.batch_norm(exact[0], None, None, *exact[1:], True, 0.1, 1e-5), exact)
    inputs = on_gpu(*exact)
    inputs[0] = inputs[0].detach().contiguous(memory_format=layout).requires_grad_()
    assert fused.fits(inputs[0]) == (shape[-1] < 100)
    assert split.fits(inputs[0]) == (layout is torch.contiguous_format or shape[2:] == (1, 1))
    found = []
    for _ in range(2):
        statistics = [torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")]
        y = kernels.batch_norm(*inputs, *statistics, 0.3, 1e-5)
        found.append([*derivatives(y, inputs), *statistics])
    assert_close([each.double().cpu() for each in found[0][:-2]], theirs, 1e-4)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    wanted = [torch.zeros(shape[1], device="cuda"), torch.ones(shape[1], device="cuda")]
    F.batch_norm(inputs[0].detach(), *wanted, inputs[1], inputs[2], True, 0.3, 1e-5)
    for mine, moved in zip(found[0][-2:], wanted, strict=True):
        torch.testing.assert_close(mine, moved)
