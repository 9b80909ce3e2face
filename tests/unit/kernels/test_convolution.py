"""Convolution that does less work than torch's: the same values, first and second derivatives."""

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from metadr import kernels
from metadr.kernels import convolution, product
from metadr.kernels.product import Geometry

pytestmark = pytest.mark.usefixtures("on_one_thread")
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
    seen: list[tuple[int, ...]] = []

    def watched(original: Callable[..., Tensor], x: Tensor, weight: Tensor, *rest: object) -> Tensor:
        seen.append(tuple(weight.shape[2:]))
        return original(x, weight, *rest)

    for module, name in ((convolution, "conv2d"), (product, "in_one_place")):
        monkeypatch.setattr(module, name, partial(watched, getattr(module, name)))
    return seen


def test_conv2d_is_torch_s_on_every_size(taps, double, derivatives, assert_close):
    """Rows take one point of the grid, columns another, so that they cannot be mixed up."""
    trimmed = linear = 0
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
        linear += theirs[0].shape[2:] == (1, 1) and groups == 1
        assert_close(ours, theirs)
    assert trimmed > 50 and linear > 10


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
def test_conv2d_leaves_out_what_only_meets_padding(size, kernel, stride, padding, dilation, kept, taps, double):
    weight = double(4, 3, *kernel)
    pairs = ((stride, stride), (padding, padding), (dilation, dilation))
    kernels.conv2d(double(2, 3, *size), weight, None, *pairs, 1).sum().backward()
    assert taps == [kept]


def test_patches_are_what_a_product_with_the_weight_needs(assert_close):
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


def test_taps_that_are_left_out_have_a_gradient_of_zero(double):
    weight = double(4, 3, 3, 3)
    kernels.conv2d(double(2, 3, 1, 1), weight, None, (1, 1), (1, 1), (1, 1), 1).square().sum().backward()
    centre = torch.zeros(3, 3, dtype=torch.bool)
    centre[1, 1] = True
    assert (weight.grad[:, :, centre] != 0).all()
    assert (weight.grad[:, :, ~centre] == 0).all()


def test_conv2d_casts_as_torch_does(derivatives):
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


def test_torch_func_gets_torch_s_own_convolution(assert_close):
    weight, x = torch.randn(4, 3, 3, 3), torch.randn(5, 3, 6, 6)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return kernels.conv2d(x[None], weight, None, (1, 1), (1, 1), (1, 1), 1).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x)
    alone = torch.autograd.grad(loss(weight.requires_grad_(), x[3]), weight)[0]
    torch.testing.assert_close(each[3], alone)


def test_conv2d_refuses_what_torch_refuses(double):
    with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
        kernels.conv2d(double(1, 1, 2, 2), double(1, 1, 5, 5), None, (1, 1), (1, 1), (1, 1), 1)


@pytest.mark.parametrize(("out", "image_by_image"), [(8, True), (400, False)])
def test_a_product_with_one_tap_leaves_images_in_the_order_in_which_they_lie(
    out, image_by_image, double, derivatives, assert_close
):
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
