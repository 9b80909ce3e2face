"""Every method works with any classifier of torchvision and timm: with batch norm, layer norm (ConvNeXt), attention."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.shufflenetv2 import ShuffleNetV2
from torchvision.models.vision_transformer import VisionTransformer

from metadr import models
from metadr.core import Domain, Split
from metadr.engine.fit import check_fit
from metadr.engine.network import Network
from metadr.engine.second_order import TwiceDifferentiable, hardsigmoid
from metadr.errors import UserError
from metadr.parts import EWC, MetaDR, parse_method

CLASSES = 3
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: ShuffleNetV2([1, 1, 1], [8, 16, 32, 64, 32], num_classes=CLASSES),
    "layer norm": lambda: ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=CLASSES),
    "attention": lambda: VisionTransformer(16, 8, 2, 2, 8, 16, num_classes=CLASSES),
}
METHODS = ["naive", "dr+l2", "dr+ewc", "gem+dr", "er", "meta-dr", "er+meta-dr", "dr+er+ewc+gem+l2+meta-dr"]

# One image at a time, pooling takes torch's slow way; the numbers are the same.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop because:UserWarning")


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETWORKS[name]()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_method_trains_every_kind_of_network(name: str, method: str, classification) -> None:
    module = made(name)
    before = [value.clone() for value in module.parameters()]
    learner = classification.learner(*parse_method(method, {}), module=module)
    taken = classification.play(learner, num_domains=2, num_steps=2)
    assert all(math.isfinite(value) for terms in taken for value in terms.values())
    moved = [not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)]
    assert sum(moved) >= len(moved) - 2, "but for a layer or two that this input may leave alone"


@pytest.mark.parametrize("name", ["layer norm", "attention"])  # smooth ones; batch norm: tests/golden
def test_second_derivatives_against_finite_differences(name: str, classification) -> None:
    """In float64, along a random direction: the loss of Meta-DR, whose gradient goes through a gradient."""
    module = made(name).double()
    learner = classification.learner(MetaDR(inner_lr=0.1), module=module)
    learner.begin_domain(classification.domains[0].train, first=True)
    streams = {key: stream.get_state() for key, stream in learner.streams.items()}

    def at(step: float) -> tuple[float, list[torch.Tensor]]:
        for key, stream in learner.streams.items():
            stream.set_state(streams[key])
        with torch.no_grad():
            torch._foreach_add_(params, direction, alpha=step)
        terms, grads = learner.gradient()
        with torch.no_grad():
            torch._foreach_add_(params, direction, alpha=-step)
        return float(terms.loss), grads

    params = list(learner.network.params.values())
    rng = torch.Generator().manual_seed(1)
    direction = [torch.randn(value.shape, generator=rng, dtype=torch.float64) for value in params]
    _, grads = at(0.0)
    ours = sum(float((grad * along).sum()) for grad, along in zip(grads, direction, strict=True))
    size = 1e-8  # layer norm of small numbers bends within a millionth
    slope = (at(size)[0] - at(-size)[0]) / (2 * size)
    assert ours == pytest.approx(slope, rel=1e-6)
    first_order = classification.learner(MetaDR(inner_lr=0.1, first_order=True), module=module)
    first_order.begin_domain(classification.domains[0].train, first=True)
    other = sum(float((g * along).sum()) for g, along in zip(first_order.gradient()[1], direction, strict=True))
    assert abs(other - slope) > 1e-4 * abs(slope), "or the second order would not have been tested"


def test_only_passes_that_need_it_take_the_plain_form_of_attention(
    classification, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seen = [""], {}
    attention = F.scaled_dot_product_attention

    def watched(*arguments, **options):
        seen.setdefault(now[0], set()).add(torch.backends.cuda.flash_sdp_enabled())
        return attention(*arguments, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    learner = classification.learner(MetaDR(), EWC(), module=made("attention"))
    logits = learner.network.logits

    def told(x, params=None, *, role=None):
        now[0] = role
        return logits(x, params, role=role)

    monkeypatch.setattr(learner.network, "logits", told)
    classification.play(learner, num_domains=1, num_steps=1)
    assert seen == {"clean": {True}, "inner": {False}, "recall": {True}, "adapt": {True}, "fisher": {False}}
    assert torch.backends.cuda.flash_sdp_enabled(), "and it is put back"


def test_hardsigmoid_with_a_second_derivative_is_torchs_own() -> None:
    x = torch.linspace(-5, 5, 23, dtype=torch.float64, requires_grad=True)  # none on a corner
    theirs = F.hardsigmoid(x)
    torch.testing.assert_close(hardsigmoid(x), theirs, rtol=1e-7, atol=0)  # torch has a sixth in float32 alone
    slopes = [torch.autograd.grad(each.sum(), x)[0] for each in (hardsigmoid(x), theirs)]
    torch.testing.assert_close(*slopes, rtol=1e-7, atol=0)
    assert torch.autograd.gradgradcheck(lambda x: hardsigmoid(x.square()), x)
    assert torch.autograd.gradgradcheck(F.hardswish, x), "which needs no replacement"
    written = x.detach().clone()
    assert hardsigmoid(written, inplace=True) is written and torch.equal(written, hardsigmoid(x))


class Gated(nn.Module):
    """A gate as a layer, one that writes over what goes in, and one as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 8, 3, stride=2)
        self.gate, self.over = nn.Hardsigmoid(), nn.Hardsigmoid(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x * self.gate(3 * x)
        x = self.second(x)
        return x * self.over(2 * x) * F.hardsigmoid(x)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("inner_steps", [1, 2])
def test_hardsigmoid_is_differentiated_twice_wherever_it_is_called(
    inner_steps: int, recompute: bool, classification
) -> None:
    """Against what autograd says of a network that has the other form in every pass."""
    torch.manual_seed(0)
    module = nn.Sequential(Gated(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)).double()

    def gradient(other: bool) -> list[torch.Tensor]:
        parts = MetaDR(inner_lr=0.5, inner_steps=inner_steps)
        learner = classification.learner(parts, module=module, recompute=recompute and not other)
        learner.begin_domain(classification.domains[0].train, first=True)
        with TwiceDifferentiable() if other else torch.enable_grad():  # there in all passes
            return learner.gradient()[1]

    for ours, plain in zip(gradient(other=False), gradient(other=True), strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-8)  # torch has a sixth in float32 alone


class Once(torch.autograd.Function):
    """A function of an extension, as many are."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        return 2 * grad * ctx.saved_tensors[0]


class Odd(nn.Module):
    """A classifier around a function."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.head, self.function = nn.Conv2d(3, 4, 3, stride=2), nn.Linear(4, CLASSES), function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.function(self.conv(x)).mean((2, 3)))


def first_derivative_alone(x: torch.Tensor) -> torch.Tensor:
    return Once.apply(x)


@pytest.mark.parametrize("inner_steps", [1, 2])
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (torch.ops.aten.hardsigmoid, "hardsigmoid_backward is not implemented"),
        (first_derivative_alone, "differentiate twice"),
    ],
)
def test_an_operation_without_a_second_derivative_is_told_of(
    function, reason: str, inner_steps: int, classification
) -> None:
    learner = classification.learner(MetaDR(inner_steps=inner_steps), module=Odd(function), model="odd")
    with pytest.raises(UserError, match=rf"^Model 'odd' .*{reason}.*, which meta-dr needs\..*first_order=true\.$"):
        classification.play(learner)
    for parts in ([MetaDR(inner_steps=inner_steps, first_order=True)], []):
        taken = classification.play(classification.learner(*parts, module=Odd(function)))
        assert taken and all(math.isfinite(value) for terms in taken for value in terms.values())


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_so_it_is_in_blocks_that_are_computed_again(inner_steps: int, classification) -> None:
    """Their graph is none of the step's."""

    def module(function: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
        return nn.Sequential(Odd(function), nn.ReLU())

    def learner(*parts: MetaDR, function=first_derivative_alone):
        return classification.learner(*parts, module=module(function), model="odd", recompute=True)

    with pytest.raises(UserError, match=r"^Model 'odd' .*differentiate twice.*first_order=true\.$"):
        classification.play(learner(MetaDR(inner_steps=inner_steps)))
    for made in (
        learner(MetaDR(inner_steps=inner_steps, first_order=True)),
        learner(),
        learner(MetaDR(inner_steps=inner_steps), function=torch.square),
    ):
        taken = classification.play(made)
        assert taken and all(math.isfinite(value) for terms in taken for value in terms.values())


def test_what_else_goes_wrong_in_a_step_is_not_taken_for_it(classification) -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("derivative for aten::rounding is not implemented")

    with pytest.raises(RuntimeError, match=r"^derivative for aten::rounding"):
        classification.play(classification.learner(MetaDR(), module=Odd(failing)))


@pytest.mark.parametrize("method", ["naive", "meta-dr", "dr+er+ewc+gem+l2+meta-dr"])
def test_mobilenet_v3_with_every_kind_of_method(method: str, classification) -> None:
    torch.manual_seed(0)
    module = models.build("mobilenet_v3_small", CLASSES)
    learner = classification.learner(*parse_method(method, {}), module=module, batch_size=2)
    taken = classification.play(learner, num_domains=2, num_steps=1)
    assert len(taken) == 2 and all(math.isfinite(value) for terms in taken for value in terms.values())


@pytest.mark.parametrize("method", ["naive", "meta-dr"])
@pytest.mark.parametrize(("name", "side"), [("googlenet", 32), ("inception_v3", 75)])
def test_networks_that_have_further_heads_while_they_are_trained(
    name: str, side: int, method: str, classification
) -> None:
    torch.manual_seed(0)
    module = models.build(name, CLASSES)
    domain = classification.domains[0]
    split = Split(F.interpolate(domain.train.x, size=(side, side)), domain.train.y).first(4)
    domain = Domain("red", split, split)
    check_fit(classification.training(), Network(module, classification.task), [domain])
    learner = classification.learner(*parse_method(method, {}), module=module, batch_size=2)
    learner.begin_domain(split, first=True)
    (taken,), finite = learner.steps(1).read()
    assert finite and all(math.isfinite(value) for value in taken.values())


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_vit"])
def test_networks_of_timm_by_name(name: str, classification) -> None:
    pytest.importorskip("timm", reason="timm is not installed: pip install metadr[timm]")
    torch.manual_seed(0)
    module = models.build(name, CLASSES)
    domain = classification.domains[0]
    larger = F.interpolate(domain.train.x, size=(160, 160))
    split = Split(larger, domain.train.y).first(6)
    learner = classification.learner(*parse_method("er+meta-dr", {}), module=module, batch_size=2)
    learner.begin_domain(split, first=True)
    (first,), finite = learner.steps(1).read()
    learner.end_domain(Domain("red", split, split))
    learner.begin_domain(split, first=False)
    (second,), still = learner.steps(1).read()
    assert finite and still and math.isfinite(first["meta-dr"]) and math.isfinite(second["loss"])


@pytest.mark.parametrize(
    ("name", "parameters", "last"),
    [
        ("resnet18_no_pooling", 11_181_642, (512, 2, 2)),
        ("resnet18_small_images", 11_173_962, (512, 4, 4)),
        ("resnet18_narrow", 1_094_750, (160, 4, 4)),
    ],
)
def test_resnet18_behind_other_first_layers(name: str, parameters: int, last: tuple[int, ...]) -> None:
    """Torchvision's own has 11,181,642 parameters, and a pixel at its end; GEM's has 20 channels in its first layer."""
    drawn = []
    for each in (name, "resnet18"):
        torch.manual_seed(0)
        drawn.append(models.build(each, 10))
    network, original = drawn
    assert sum(each.numel() for each in network.parameters()) == parameters
    seen = []
    network.layer4.register_forward_hook(lambda layer, inputs, output: seen.append(output.shape[1:]))
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert seen == [last]
    if name != "resnet18_narrow":  # all but the first layer is torchvision's, to the bit
        ours, theirs = (dict(each.named_parameters()) for each in (network, original))
        assert all(torch.equal(ours[key], value) for key, value in theirs.items() if key != "conv1.weight")
    for layer in network.modules():  # drawn as torchvision draws them
        if isinstance(layer, nn.Conv2d):
            fan_out = layer.out_channels * layer.kernel_size[0] * layer.kernel_size[1]
            few = layer.weight.numel() < 10_000
            assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.1 if few else 0.03)
