"""Batch norm with a ReLU behind it, and what a residual block adds between the two."""

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import ResNet, resnet18, resnet50, vgg11_bn
from torchvision.models.resnet import BasicBlock

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
    """The output, its gradients, and theirs; those scaled to one, since the cosine of a long sum is but noise."""
    along = torch.linspace(-1, 1, y.numel()).view(y.shape).to(y)
    first = torch.autograd.grad((y.sin() * along).sum(), inputs, create_graph=True)
    scaled = [each / each.detach().abs().max() for each in first]
    second = torch.autograd.grad(sum(each.cos().sum() for each in scaled), inputs)
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
    for relu, *arranged in (
        (True, by_image),
        (True, by_channel),
        (True, by_image, by_channel),
        (False, by_channel, by_image),
        (True, by_image, lambda x: x[:1, :, :1].detach().clone()),
    ):
        compare((3, 2, 9, 11), relu, *arranged)
nothing = torch.full((2, 1, 2, 2), torch.nan, requires_grad=True)
one = torch.ones(1, requires_grad=True)
assert kernels.batch_norm(nothing, one, one, None, None, 0.1, 1e-5, relu=True).isnan().all()
"""


def test_the_triton_kernels_do_what_follows(interpreted) -> None:
    assert interpreted(INTERPRETED).count("as torch") == 2 * 5


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 5, 3), nn.BatchNorm2d(5))


class Sliced(nn.Module):
    """Calls a part of a sequence, and looks at what batch norm says."""

    def __init__(self) -> None:
        super().__init__()
        self.net = layers()

    def forward(self, x: Tensor) -> Tensor:
        seen = self.net[:2](x)
        for layer in self.net:
            x = layer(x)
            seen = seen if x.shape != seen.shape else seen + x
        return torch.cat([seen.mean((2, 3)), x.mean((2, 3))], 1)


class Twice(nn.Module):
    """A ReLU and a batch norm that are used in two places."""

    def __init__(self) -> None:
        super().__init__()
        relu, norm = nn.ReLU(), nn.BatchNorm2d(4)
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), norm, relu)
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3), norm, nn.Identity(), relu, relu)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)).mean((2, 3))


class Reversed(nn.Sequential):
    """Not one layer after the other."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(self):
            x = layer(x)
        return x.mean((2, 3))


class Leaky(ResNet):
    """Another ReLU at the beginning, and the one of that name at the end."""

    def _forward_impl(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.bn1(self.conv1(x)))
        return self.relu(self.fc(self.avgpool(self.layer1(x)).flatten(1)))


def leaky() -> nn.Module:
    made = Leaky(BasicBlock, [1, 1, 1, 1], num_classes=5)
    made.fc = nn.Linear(64, 5)
    return made


class Norms(nn.Module):
    """Has a batch norm that it calls otherwise than the ResNet that it belongs to."""

    def __init__(self) -> None:
        super().__init__()
        self.resnet = resnet18(num_classes=5)

    def forward(self, x: Tensor) -> Tensor:
        return self.resnet.bn1(self.resnet.conv1(x)).mean((1, 2, 3))[:, None] + self.resnet(x)


def hooked(seen: list[Tensor]) -> nn.Module:
    made = nn.Sequential(layers(), nn.ReLU(), BasicBlock(5, 5))
    for module in made.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.ReLU)):
            module.register_forward_hook(lambda module, x, y: seen.append(y.detach().clone()))
    return made


def on_its_own(path: str, forward: Callable[..., Tensor]) -> nn.Module:
    made = nn.Sequential(layers(), nn.ReLU(), BasicBlock(5, 5))
    module = made.get_submodule(path)
    module.forward = partial(forward, module)
    return made


def broadcast() -> nn.Module:
    """Adds one channel to four."""
    return nn.Sequential(nn.Conv2d(3, 1, 3), BasicBlock(1, 4))


# Sequences, blocks and beginnings in which a ReLU may follow a batch norm.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int, int]] = {
    "resnet18": (lambda: resnet18(num_classes=5), 3, 8, 1),
    "resnet50": (lambda: resnet50(num_classes=5), 4, 16, 1),
    "vgg11_bn": (lambda: nn.Sequential(vgg11_bn().features, nn.Flatten()), 1, 0, 0),
    "unet_resnet34": (lambda: models.build("unet_resnet34", 5), 13, 16, 1),
    "sequence": (layers, 1, 0, 0),
    "no ReLU": (lambda: nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.GELU()), 1, 0, 0),
    "sliced": (Sliced, 1, 0, 0),
    "in two places": (Twice, 2, 0, 0),
    "in another order": (lambda: Reversed(nn.ReLU(), nn.BatchNorm2d(3), nn.ReLU()), 0, 0, 0),
    "another beginning": (leaky, 3, 4, 0),
    "a batch norm from elsewhere": (Norms, 3, 8, 1),
    "a sequence of one's own": (lambda: on_its_own("0", lambda net, x: net[3](net[0](x))), 0, 1, 0),
    "a ReLU of one's own": (lambda: on_its_own("0.2", lambda relu, x: x.tanh()), 1, 1, 0),
    "a block of one's own": (lambda: on_its_own("2", lambda block, x: block.bn1(x)), 1, 0, 0),
    "broadcast": (broadcast, 0, 1, 0),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_what_follows_is_the_same_network(name: str) -> None:
    """The same values and statistics to the bit, and the same derivatives, and its layers are its own again."""
    if name.startswith("unet_"):
        pytest.importorskip("segmentation_models_pytorch")
    make, *counts = NETWORKS[name]
    torch.manual_seed(0)
    ours = make().double().train()
    torch.manual_seed(0)
    other = make().double().train()
    before = {layer for layer in ours.modules() if "forward" in vars(layer)}
    norms = BatchNorms(ours)
    found = norms._followed
    assert [len(found.sequences), len(found.blocks), len(found.beginnings)] == counts
    x = torch.randn(6, 3, 32, 32, dtype=torch.double)
    with norms.tracking(True):
        y = ours(x)
    assert {layer for layer in ours.modules() if "forward" in vars(layer)} == before
    expected = other(x)
    assert torch.equal(y, expected)
    for (name, mine), wanted in zip(ours.named_buffers(), other.buffers(), strict=True):
        assert torch.equal(mine, wanted) or name.endswith("num_batches_tracked"), name
    for mine, wanted in zip(gradients(y, ours), gradients(expected, other), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-8, atol=1e-8)


def test_hooks_see_what_they_saw() -> None:
    seen: tuple[list[Tensor], list[Tensor]] = ([], [])
    x = torch.randn(2, 3, 9, 9)
    for kept, tracked in zip(seen, (True, False), strict=True):
        torch.manual_seed(0)
        made = hooked(kept).train()
        with BatchNorms(made).tracking(True) if tracked else nullcontext():
            made(x)
    assert len(seen[0]) == len(seen[1]) == 8
    assert all(torch.equal(*pair) for pair in zip(*seen, strict=True))


def test_half_precision_stays_what_it_is() -> None:
    block = BasicBlock(4, 4).train()
    x = torch.randn(2, 4, 9, 9)
    with torch.autocast("cpu", torch.bfloat16):
        expected = block(x)
        with BatchNorms(block).tracking(True):
            y = block(x)
    assert y.dtype == expected.dtype == torch.bfloat16 and torch.equal(y, expected)


def test_an_addition_of_another_shape() -> None:
    x, weight, bias = double(2, 3, 4, 4), double(3), double(3)
    for shape in ((1, 3, 4, 4), (2, 1, 4, 4), (2, 3, 1, 1), (4,)):
        inputs = [x, weight, bias, double(*shape)]
        ours = kernels.batch_norm(x, weight, bias, None, None, 0.1, 1e-5, plus=inputs[3], relu=True)
        wanted = derivatives(theirs(*inputs, True), inputs)
        for mine, expected in zip(derivatives(ours, inputs), wanted, strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)
    for shape in ((2, 3, 8, 8), (2, 4, 4, 4), (2, 3, 2, 2)):
        with pytest.raises(RuntimeError):
            kernels.batch_norm(x, weight, bias, None, None, 0.1, 1e-5, plus=double(*shape))


def gradients(y: Tensor, network: nn.Module) -> list[Tensor]:
    params = list(network.parameters())
    first = torch.autograd.grad(y.square().mean(), params, create_graph=True, materialize_grads=True)
    second = torch.autograd.grad(sum(each.sin().sum() for each in first), params, materialize_grads=True)
    return [*first, *second]
