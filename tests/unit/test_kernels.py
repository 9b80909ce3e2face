"""Layers that do less work than torch's: the same values, first and second derivatives, statistics."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from metadr import kernels
from metadr.kernels import convolution, product
from metadr.kernels import fused_batch_norm as fused
from metadr.kernels import split_batch_norm as split
from metadr.kernels.product import Geometry

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
    """The sizes of the kernels that images are convolved with."""
    seen, original = [], convolution.conv2d

    def conv2d(x: Tensor, weight: Tensor, *rest: object) -> Tensor:
        seen.append(tuple(weight.shape[2:]))
        return original(x, weight, *rest)

    monkeypatch.setattr(convolution, "conv2d", conv2d)
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


def test_patches_are_what_a_product_with_the_weight_needs():
    """Of all taps, and of those that are reached."""
    for index, rows in enumerate(GRID):
        columns = GRID[(7 * index + 3) % len(GRID)]
        size, kernel, stride, padding, dilation = zip(rows, columns, strict=True)
        x, weight = torch.randn(2, 3, *size, dtype=torch.float64), torch.randn(4, 3, *kernel, dtype=torch.float64)
        wanted = F.conv2d(x, weight, None, stride, padding, dilation).flatten(2)
        for given in (weight, kernels.reach(size, kernel, stride, padding, dilation).of(weight)):
            taps = (given.shape[2], given.shape[3])
            patches = kernels.patches(x, taps, stride, padding, dilation, taps=kernel)
            assert_close([given.flatten(1) @ patches], [wanted])


def test_taps_that_are_left_out_have_a_gradient_of_zero():
    weight = double(4, 3, 3, 3)
    kernels.conv2d(double(2, 3, 1, 1), weight, None, (1, 1), (1, 1), (1, 1), 1).square().sum().backward()
    centre = torch.zeros(3, 3, dtype=torch.bool)
    centre[1, 1] = True
    assert (weight.grad[:, :, centre] != 0).all()
    assert (weight.grad[:, :, ~centre] == 0).all()


def test_conv2d_casts_as_torch_does():
    """Of float32 weights and images in either precision, half-precision results and float32 derivatives."""
    torch.manual_seed(0)
    weight, bias = (torch.randn(*shape, requires_grad=True) for shape in ((4, 3, 3, 3), (4,)))
    for x in (torch.randn(2, 3, 6, 6), torch.randn(2, 3, 6, 6, dtype=torch.bfloat16)):
        inputs = [x.requires_grad_(), weight, bias]
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            ours = kernels.conv2d(*inputs, (1, 1), (1, 1), (1, 1), 1)
            theirs = F.conv2d(*inputs, 1, 1)
        assert ours.dtype == theirs.dtype == torch.bfloat16
        for mine, wanted in zip(derivatives(ours, inputs), derivatives(theirs, inputs), strict=True):
            assert mine.dtype == wanted.dtype
            assert (mine - wanted).norm() <= 0.05 * wanted.norm()
        assert torch.equal(ours, theirs)


def test_torch_func_gets_torch_s_own_convolution():
    weight, x = torch.randn(4, 3, 3, 3), torch.randn(5, 3, 6, 6)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return kernels.conv2d(x[None], weight, None, (1, 1), (1, 1), (1, 1), 1).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x)
    alone = torch.autograd.grad(loss(weight.requires_grad_(), x[3]), weight)[0]
    torch.testing.assert_close(each[3], alone)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_conv2d_is_torch_s_on_a_gpu(groups, layout):
    """By cuDNN, which is given shapes where it asks for no values."""
    x, weight, bias = double(3, 4, 9, 7), double(8, 4 // groups, 3, 3), double(8)
    inputs = [value.detach().cuda().requires_grad_() for value in (x, weight, bias)]
    inputs[0] = inputs[0].detach().contiguous(memory_format=layout).requires_grad_()
    options = ((2, 1), (1, 0), (1, 2), groups)
    ours = derivatives(kernels.conv2d(*inputs, *options, products=0), inputs)
    assert_close(ours, derivatives(F.conv2d(*inputs, *options), inputs), 1e-10)


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


# The Triton kernels, and what they replace.

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


@pytest.mark.parametrize(("out", "image_by_image"), [(8, True), (400, False)])
def test_a_product_with_one_tap_leaves_images_in_the_order_in_which_they_lie(out, image_by_image):
    """Unless there are so many weights that a derivative by them for each image would be more than the images."""
    by_image = double(3, 16, 2, 3)
    by_channel = by_image.detach().transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()
    weight, bias = double(out, 16, 1, 1), double(out)
    geometry = Geometry((2, 3), (1, 1), (1, 1), (0, 0), (1, 1))
    theirs = derivatives(F.conv2d(by_image, weight, bias), [by_image, weight, bias])
    for x in (by_image, by_channel):
        y = product.conv2d(x, weight, bias, geometry)
        assert_close(derivatives(y, [x, weight, bias]), theirs, 1e-9)
        assert y.is_contiguous() == (x is by_image and image_by_image)
        assert y.transpose(0, 1).is_contiguous() == (not y.is_contiguous())


def test_the_triton_kernels_are_left_out_on_a_cpu():
    assert not fused.fits(torch.randn(4, 3))
    geometry = Geometry((8, 8), (3, 3), (1, 1), (1, 1), (1, 1))
    assert not product.fits(torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3), geometry, 1)


def on_gpu(*inputs: Tensor) -> list[Tensor]:
    return [each.detach().float().cuda().requires_grad_() for each in inputs]


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("layout", ["by image", "by channel", "channels last"])
@pytest.mark.parametrize(
    ("size", "taps", "stride", "padding"),
    [(8, 3, 1, 1), (8, 3, 2, 1), (8, 1, 2, 0), (32, 7, 2, 3), (2, 3, 2, 1), (1, 3, 1, 1)],
)
def test_convolution_is_torch_s_on_a_gpu(size, taps, stride, padding, layout):
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
def test_batch_norm_is_torch_s_on_a_gpu(shape, layout):
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
