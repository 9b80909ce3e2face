"""Squared gradients of single images in networks of all kinds, against a plain loop over images in float64."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.convnext import CNBlockConfig, ConvNeXt
from torchvision.models.shufflenetv2 import ShuffleNetV2
from torchvision.models.vision_transformer import VisionTransformer

from metadr import models
from metadr.core import Batch, Task
from metadr.engine import squares
from metadr.engine.network import Network
from metadr.engine.squares import lone_layers, squared_gradients

CLASSES, SIDE, IMAGES = 3, 16, 7

# One image at a time, pooling takes torch's slow way; the numbers are the same.
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop because:UserWarning")


class Custom(nn.Module):
    """A convolution, some layers that a test is about, and a linear layer."""

    def __init__(self, **layers: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 4, stride=4)
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.middle(self.first(x))).mean((2, 3)))

    def middle(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Twice(Custom):
    def middle(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x)))


class Elsewhere(Custom):
    """A layer whose weight is used by itself as well."""

    def middle(self, x: Tensor) -> Tensor:
        return self.layer(x) + F.conv2d(x, self.layer.weight)


class Tied(Custom):
    def __init__(self) -> None:
        super().__init__(one=nn.Conv2d(8, 8, 1), two=nn.Conv2d(8, 8, 1))
        self.two.weight = self.one.weight

    def middle(self, x: Tensor) -> Tensor:
        return self.two(torch.tanh(self.one(x)))


class PlacesFirst(Custom):
    """A layer on (place, image, channel), with as many places as there are images in the test."""

    def middle(self, x: Tensor) -> Tensor:
        places = x.flatten(2)[:, :, :IMAGES].permute(2, 0, 1)
        return self.layer(places).permute(1, 2, 0).unsqueeze(-1)


class WrittenInto(Custom):
    """Layers whose output, which may be a view, is written into."""

    def middle(self, x: Tensor) -> Tensor:
        x = F.relu_(self.layer(x))
        return F.relu_(self.linear(x.movedim(1, -1).flatten(1, 2))).mT.unsqueeze(-1)


class ByKeyword(Custom):
    def middle(self, x: Tensor) -> Tensor:
        return self.layer(input=x.movedim(1, -1)).movedim(-1, 1)


class Overwritten(Custom):
    """A layer whose input is written into after it."""

    def middle(self, x: Tensor) -> Tensor:
        x = 2 * x
        y = self.layer(x)
        return y + x.tanh_()


class Unused(Custom):
    def middle(self, x: Tensor) -> Tensor:
        return x + 0 * self.layer(x).detach()


def frozen() -> nn.Module:
    module = Custom(layer=nn.Conv2d(8, 8, 3))
    module.layer.weight.requires_grad_(False)
    module.last.bias.requires_grad_(False)
    return module


# A network, and the parameters that torch.func is needed for.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "convnext": (
        lambda: ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=CLASSES),
        {
            *("features.1.0.layer_scale", "features.3.0.layer_scale"),
            *(
                f"{norm}.{name}"
                for norm in ("features.0.1", "features.2.0", "classifier.0")
                for name in ("weight", "bias")
            ),
        },
    ),
    "attention": (
        lambda: VisionTransformer(SIDE, 8, 2, 2, 8, 16, num_classes=CLASSES),
        {
            *("class_token", "encoder.pos_embedding"),
            *(
                f"encoder.layers.encoder_layer_{number}.self_attention.{name}"
                for number in (0, 1)
                for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")
            ),
        },
    ),
    "batch norm": (lambda: ShuffleNetV2([1, 1, 1], [8, 16, 32, 64, 32], num_classes=CLASSES), set()),
    "groups": (
        lambda: Custom(layer=nn.Conv2d(8, 8, 3, padding=(2, 1), stride=(1, 2), dilation=(2, 1), groups=4)),
        set(),
    ),
    "depthwise": (lambda: Custom(layer=nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)), set()),
    "padding by name": (lambda: Custom(layer=nn.Conv2d(8, 8, 3, padding="same")), {"layer.weight", "layer.bias"}),
    "layer norm of planes": (lambda: Custom(layer=nn.LayerNorm((4, 4))), set()),
    "group norm": (lambda: Custom(layer=nn.GroupNorm(2, 8)), {"layer.weight", "layer.bias"}),
    "called twice": (lambda: Twice(layer=nn.Conv2d(8, 8, 1)), {"layer.weight", "layer.bias"}),
    "used elsewhere": (lambda: Elsewhere(layer=nn.Conv2d(8, 8, 1)), {"layer.weight", "layer.bias"}),
    "tied": (Tied, {"one.weight", "one.bias", "two.bias"}),
    "places first": (lambda: PlacesFirst(layer=nn.Linear(8, 8)), {"layer.weight", "layer.bias"}),
    "written into": (lambda: WrittenInto(layer=nn.Conv2d(8, 8, 1), linear=nn.Linear(8, 8)), set()),
    "by keyword": (lambda: ByKeyword(layer=nn.Linear(8, 8)), {"layer.weight", "layer.bias"}),
    "unused": (lambda: Unused(layer=nn.Conv2d(8, 8, 1)), set()),
    "frozen": (frozen, set()),
}


def batch() -> Batch:
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(256, (IMAGES, 3, SIDE, SIDE), generator=rng, dtype=torch.uint8)
    return Batch(x, torch.randint(CLASSES, (IMAGES,), generator=rng))


def made(build: Callable[[], nn.Module]) -> nn.Module:
    """A network in float64 with running statistics that are not where they begin."""
    torch.manual_seed(0)
    module = build().double()
    module(batch().x.double() / 255)
    return module.eval()


def one_image_at_a_time(module: nn.Module, images: Batch) -> dict[str, Tensor]:
    params = {name: value for name, value in module.named_parameters() if value.requires_grad}
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for x, y in zip(images.x, images.y, strict=True):
        loss = -module(x[None].double() / 255).log_softmax(1)[0, y]
        grads = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        for name, grad in zip(params, grads, strict=True):
            total[name] += 0 if grad is None else grad**2
    return total


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert value.dtype == torch.float64
        assert value.min() >= 0
        scale = float(theirs[name].abs().max())
        torch.testing.assert_close(
            value, theirs[name], rtol=1e-9, atol=1e-28 + 1e-13 * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", NETWORKS)
def test_squares_equal_a_plain_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    build, others = NETWORKS[name]
    module = made(build)
    expected = one_image_at_a_time(module, batch())
    network = Network(module, Task(CLASSES))
    lone = {full for names in lone_layers(network, batch().x).values() for full in names.values()}
    assert set(network.params) - lone == others
    assert_close(squared_gradients(network, [batch()]), expected)
    monkeypatch.setattr(squares, "CACHED", 200)  # image by image at most layers
    monkeypatch.setattr(squares, "IMAGES_BY_IMAGE", 2)
    x, y, _ = batch()
    assert_close(squared_gradients(network, [Batch(x[:4], y[:4]), Batch(x[4:], y[4:])]), expected)


def test_images_that_meet_are_taken_one_by_one() -> None:
    """A batch norm without running statistics normalises every batch by its own, of one image here."""
    module = made(lambda: Custom(layer=nn.BatchNorm2d(8, track_running_stats=False)))
    network = Network(module, Task(CLASSES))
    assert not lone_layers(network, batch().x)
    assert_close(squared_gradients(network, [batch()]), one_image_at_a_time(module, batch()))


def test_an_input_that_is_written_into_is_not_relied_on() -> None:
    network = Network(Overwritten(layer=nn.BatchNorm2d(8)), Task(CLASSES))
    assert [type(layer) for layer in lone_layers(network, batch().x)] == [nn.Conv2d, nn.Linear]


@pytest.mark.parametrize("sizes", [[], [(32, 32)]], ids=["whole", "reached"])
def test_squares_of_a_resnet_with_few_places(sizes: list[tuple[int, int]]) -> None:
    """At 32x32 its stages see 64, 16, 4 and 1 places; what no image reaches is zero, or not there."""
    torch.manual_seed(0)
    module = models.build("resnet18", CLASSES).double().eval()
    rng = torch.Generator().manual_seed(1)
    images = Batch(torch.randint(256, (2, 3, 32, 32), generator=rng, dtype=torch.uint8), torch.tensor([0, 2]))
    expected = one_image_at_a_time(module, images)
    network = Network(module, Task(CLASSES), sizes=sizes)
    ours = squared_gradients(network, [images])
    assert sum(value.numel() for value in ours.values()) == sum(value.numel() for value in network.params.values())
    assert_close(ours, {name: network.reached_of(name, value) for name, value in expected.items()})
