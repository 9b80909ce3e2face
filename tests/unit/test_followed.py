"""Batch norm with a ReLU behind it, and what a residual block adds between the two."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18, resnet50, vgg11_bn

from metadr import kernels, models
from metadr.engine.norms import BatchNorms

KINDS = list(itertools.product([False, True], [False, True]))


def double(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.double, requires_grad=True)


def theirs(x: Tensor, weight: Tensor, bias: Tensor, plus: Tensor | None, relu: bool) -> Tensor:
    y = F.batch_norm(x, None, None, weight, bias, True, 0.1, 1e-5)
    y = y if plus is None else y + plus
    return F.relu(y) if relu else y


def derivatives(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The output, its gradients, and theirs."""
    along = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)
    first = torch.autograd.grad((y.sin() * along).sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(each.cos().sum() for each in first), inputs)
    return [y, *first, *second]


@pytest.mark.parametrize(("added", "relu"), KINDS)
@pytest.mark.parametrize("shape", [(6, 3), (3, 2, 2, 3)], ids=str)
def test_what_follows_has_torch_s_derivatives(shape: tuple[int, ...], added: bool, relu: bool) -> None:
    inputs = [double(*shape), double(shape[1]), double(shape[1]), *([double(*shape)] if added else [])]

    def ours(x: Tensor, weight: Tensor, bias: Tensor, plus: Tensor | None = None) -> Tensor:
        return kernels.batch_norm(x, weight, bias, None, None, 0.1, 1e-5, plus=plus, relu=relu)

    wanted = derivatives(theirs(*inputs[:3], inputs[3] if added else None, relu), inputs)
    for mine, expected in zip(derivatives(ours(*inputs), inputs), wanted, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradcheck(ours, inputs)
    assert torch.autograd.gradgradcheck(ours, inputs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("added", "relu"), KINDS)
@pytest.mark.parametrize("shape", [(16, 8, 4, 4), (2, 3, 200, 200)], ids=str)
def test_what_follows_on_a_gpu(shape: tuple[int, ...], added: bool, relu: bool) -> None:
    """As torch in float64; the same bits each time, and those of one after the other."""
    exact = [double(*shape), double(shape[1]), double(shape[1]), *([double(*shape)] if added else [])]
    wanted = derivatives(theirs(*exact[:3], exact[3] if added else None, relu), exact)
    inputs = [each.detach().float().cuda().requires_grad_() for each in exact]
    options = (*inputs[:3], None, None, 0.1, 1e-5)
    plus = inputs[3] if added else None

    def one_after_the_other() -> Tensor:
        y = kernels.batch_norm(*options)
        y = y if plus is None else y + plus
        return F.relu(y) if relu else y

    once, again = (derivatives(kernels.batch_norm(*options, plus=plus, relu=relu), inputs) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(once, again, strict=True))
    apart = derivatives(one_after_the_other(), inputs)
    assert all(torch.equal(*pair) for pair in zip(once, apart, strict=True))
    for mine, expected in zip(once, wanted, strict=True):
        assert (mine.double().cpu() - expected).abs().max() <= 1e-4 * (1 + expected.abs().max())


INTERPRETED = """
import itertools

import torch
import torch.nn.functional as F

from metadr import kernels
from metadr.kernels import fused_batch_norm, split_batch_norm

fused_batch_norm.on_triton = split_batch_norm.on_triton = lambda x: True
rng = torch.Generator().manual_seed(0)


def derivatives(y, inputs):
    along = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)
    first = torch.autograd.grad((y.sin() * along).sum(), inputs, create_graph=True)
    return [y, *first, *torch.autograd.grad(sum(each.cos().sum() for each in first), inputs)]


def compare(shape, relu, *arranged):
    x, *plus = (arrange(2 * torch.randn(shape, generator=rng) + 1).requires_grad_() for arrange in arranged)
    weight, bias = (torch.randn(shape[1], generator=rng).requires_grad_() for _ in range(2))
    inputs = [x, weight, bias, *plus]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    ours = kernels.batch_norm(x, weight, bias, None, None, 0.1, 1e-5, plus=plus[0] if plus else None, relu=relu)
    theirs = F.batch_norm(exact[0], None, None, exact[1], exact[2], True, 0.1, 1e-5) + sum(exact[3:])
    theirs = F.relu(theirs) if relu else theirs
    for mine, wanted in zip(derivatives(ours, inputs), derivatives(theirs, exact), strict=True):
        assert mine.shape == wanted.shape and (mine - wanted).abs().max() < 5e-5 * (1 + wanted.abs().max())
    print("as torch", shape, relu, len(plus))


by_image, by_channel = torch.Tensor.contiguous, lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)
for pieces in (False, True):
    if pieces:
        fused_batch_norm.fits = lambda x: False
        split_batch_norm.BLOCK, split_batch_norm.LEAST = 32, 64
    layouts = ((by_image,), (by_channel,), (by_image, by_channel), (by_channel, by_image))
    for relu, arranged in itertools.product((False, True), layouts):
        compare((3, 2, 9, 11), relu, *arranged)
nothing = torch.full((2, 1, 2, 2), torch.nan, requires_grad=True)
one = torch.ones(1, requires_grad=True)
assert kernels.batch_norm(nothing, one, one, None, None, 0.1, 1e-5, relu=True).isnan().all()
"""


def test_the_triton_kernels_do_what_follows(interpreted) -> None:
    assert interpreted(INTERPRETED).count("as torch") == 2 * 2 * 4


class Twice(nn.Module):
    """A ReLU that is used in two places."""

    def __init__(self) -> None:
        super().__init__()
        relu = nn.ReLU()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), relu)
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Identity(), relu)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).mean((2, 3))


class Reversed(nn.Sequential):
    """Not one layer after the other."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self):
            x = layer(x)
        return x.mean((2, 3))


# Batch norms with a ReLU behind them, and blocks that add; the others are alone.
NETWORKS = {
    "resnet18": (lambda: resnet18(num_classes=5), 1, 8, 19),
    "resnet50": (lambda: resnet50(num_classes=5), 1, 16, 52),
    "vgg11_bn": (lambda: nn.Sequential(vgg11_bn().features, nn.Flatten()), 8, 0, 0),
    "unet_resnet34": (lambda: models.build("unet_resnet34", 5), 11, 16, 35),
    "a ReLU in two places": (Twice, 0, 0, 2),
    "in another order": (lambda: Reversed(nn.ReLU(), nn.BatchNorm2d(3), nn.ReLU()), 0, 0, 1),
    "no ReLU": (lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.GELU()), 0, 0, 1),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_what_follows_is_the_same_network(name: str) -> None:
    """The same values and statistics to the bit, and the same derivatives, and its layers are its own again."""
    make, norms, blocks, alone = NETWORKS[name]
    torch.manual_seed(0)
    ours = make().double().train()
    other = copy.deepcopy(ours)
    found = BatchNorms(ours)
    assert (len(found._followed.norms), len(found._followed._blocks), len(found._alone)) == (norms, blocks, alone)
    x = torch.randn(2, 3, 64, 64, dtype=torch.double)
    with found.tracking(True):
        y = ours(x)
    assert not any("forward" in vars(layer) for layer in ours.modules())
    expected = other(x)
    assert torch.equal(y, expected)
    for (name, mine), wanted in zip(ours.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(mine, wanted) or name.endswith("num_batches_tracked"), name
    for mine, wanted in zip(gradients(y, ours), gradients(expected, other), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-8, atol=1e-8)


def gradients(y: Tensor, network: nn.Module) -> list[Tensor]:
    params = list(network.parameters())
    first = torch.autograd.grad(y.square().mean(), params, create_graph=True, materialize_grads=True)
    second = torch.autograd.grad(sum(each.sin().sum() for each in first), params, materialize_grads=True)
    return [*first, *second]
