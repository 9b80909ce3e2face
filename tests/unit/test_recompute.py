"""Activations that are computed again: the same step, from less memory."""

import copy
import weakref
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from metadr import models
from metadr.benchmarks import make_recipe
from metadr.core import Domain, Recipe, Split, Task, Training
from metadr.engine.learner import Learner
from metadr.engine.network import Network
from metadr.engine.recompute import _blocks
from metadr.errors import UserError
from metadr.parts import MetaDR, parse_method
from metadr.run import advance, run
from metadr.store import description

CPU = torch.device("cpu")


class Dropped(nn.Module):
    """A convolution after which some is left out, by each of torch's ways to draw."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels_in, channels, 3, padding=1), nn.BatchNorm2d(channels, momentum=0.3)
        self.drop = nn.Dropout2d(0.2)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        x = scale * self.drop(self.norm(self.conv(x)).tanh())
        kept = torch.rand(x.shape[0], 1, 1, 1, dtype=x.dtype).add_(0.8).floor_()
        return nn.functional.dropout(x * kept, 0.1, self.training) * torch.empty_like(x).bernoulli_(0.9)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Dropped(3, 4), Dropped(4, 4)
        self.head = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.second(self.first(x), scale=1.5))
        return found


def tiny_transformer() -> nn.Module:
    """Attention and its dropout in two blocks, after which the head's weights are not zero."""
    module = VisionTransformer(16, 8, 2, 2, 8, 16, dropout=0.1, attention_dropout=0.1, num_classes=4)
    nn.init.normal_(module.heads.head.weight)
    return module


def split_of(task: Task, side: int, num_images: int = 6) -> Split:
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(256, (num_images, 3, side, side), generator=rng, dtype=torch.uint8)
    y = torch.randint(task.num_classes, (num_images, side, side) if task.on_masks else (num_images,), generator=rng)
    return Split(x, y.masked_fill(x[:, 0] > 220, 255) if task.on_masks else y)


def made_learner(module: nn.Module, task: Task, method: Any, side: int, **settings: Any) -> Learner:
    needed = 4 if any(part.uses_memory for part in method) else 0
    recipe = Recipe("none", ("one", "two"), method, memory_per_domain=needed)
    training = Training(batch_size=4, **settings)
    learner = Learner(recipe, training, task, copy.deepcopy(module), seed=0, device=CPU)
    learner.begin_domain(split_of(task, side), first=True)
    return learner


NETWORKS = {
    "dropping": (lambda: Dropping(), Task(4, "miou"), 12),
    "tiny_unet": (lambda: models.build("tiny_unet", 4), Task(4, "miou"), 13),
    "tiny_resnet": (lambda: models.build("tiny_resnet", 4), Task(4), 16),
    "transformer": (lambda: tiny_transformer(), Task(4), 16),
}
METHODS = {
    "naive": (),
    "meta-dr": (MetaDR(inner_lr=0.1, inner_steps=2, meta_domains=2, per="image"),),
    "first order": (MetaDR(inner_lr=0.1, first_order=True),),
}


@pytest.mark.parametrize("policy", ["clean", "all"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_step_is_the_same(name, method, policy, toys):
    """In float64: gradients through second order, statistics that moved once, and what was drawn."""
    build, task, side = NETWORKS[name]
    module = build().double()
    learners = [
        made_learner(module, task, METHODS[method], side, batch_norm=policy, recompute=recompute)
        for recompute in (False, True)
    ]
    for learner in learners:
        learner.steps(2).read()
        assert learner.network.params
    plain, again = (learner.state() for learner in learners)
    assert plain.keys() == again.keys()
    for key, value in plain.items():
        if key.startswith("stream"):
            assert torch.equal(value, again[key]), key  # the same numbers were drawn, once
        else:
            torch.testing.assert_close(again[key], value, rtol=1e-8, atol=1e-10)
    moved = {int(value) for key, value in again.items() if key.endswith("num_batches_tracked")}
    passes = 2 * (1 if policy == "clean" or method == "naive" else 4 if method == "first order" else 9)
    assert moved == (set() if name == "transformer" else {passes})


@pytest.mark.parametrize("method", METHODS)
def test_the_step_is_the_same_where_statistics_stay(method):
    build, task, side = NETWORKS["tiny_unet"]
    module = build().double()
    learners = [made_learner(module, task, METHODS[method], side, recompute=recompute) for recompute in (False, True)]
    for learner in learners:
        learner.network.fixed = True
        learner.steps(2).read()
    plain, again = (learner.state() for learner in learners)
    for key, value in plain.items():
        if not key.startswith("stream"):
            torch.testing.assert_close(again[key], value, rtol=1e-8, atol=1e-10)
    assert {int(value) for key, value in again.items() if key.endswith("num_batches_tracked")} == {0}


def test_what_is_drawn_decides_the_step(toys):
    """So that the test above would see it: other draws are another step."""
    module = Dropping().double()
    grads = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        network = Network(module, Task(4, "miou"), recompute=True)
        batch = split_of(Task(4, "miou"), 12).sample(4, torch.Generator().manual_seed(0))
        loss = network.loss(batch, role="clean")
        grads.append(torch.autograd.grad(loss, list(network.params.values()))[0])
    assert torch.equal(grads[0], grads[1]) and not torch.allclose(grads[0], grads[2])


@pytest.mark.parametrize("method", ["er+meta-dr", "dr+ewc+gem"])
def test_with_memory_and_fisher(method, toys):
    """On a second domain, so that all parts have something to remember."""
    module, task, side = models.build("tiny_unet", 4).double(), Task(4, "miou"), 12
    states = []
    for recompute in (False, True):
        learner = made_learner(module, task, parse_method(method), side, recompute=recompute)
        learner.steps(2).read()
        split = split_of(task, side)
        learner.end_domain(Domain("one", split, split))
        learner.begin_domain(split, first=False)
        learner.steps(2).read()
        states.append(learner.state())
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-8, atol=1e-10)


def test_half_precision_is_that_of_the_first_time(toys):
    """Both gradients are off by the rounding of bf16, and from one another by less."""
    module, task = models.build("tiny_unet", 4), Task(4, "miou")
    settings = ({}, {"precision": "bf16"}, {"precision": "bf16", "recompute": True})
    learners = [made_learner(module, task, (MetaDR(inner_lr=0.01),), 12, **each) for each in settings]
    exact, plain, again = (torch.cat([grad.flatten() for grad in each.gradient()[1]]) for each in learners)
    assert 0 < (again - plain).norm() < 0.5 * (plain - exact).norm()


class Saved:
    """Bytes that graphs keep for derivatives, those of a storage once: now, and at most."""

    def __init__(self) -> None:
        self._holders, self.now, self.peak = Counter[int](), 0, 0

    def keep(self, tensor: Tensor) -> "Kept":
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        self.now += 0 if self._holders[place] else size
        self.peak = max(self.peak, self.now)
        self._holders[place] += 1
        kept = Kept(tensor)
        weakref.finalize(kept, self._release, place, size)
        return kept

    def _release(self, place: int, size: int) -> None:
        self._holders[place] -= 1
        self.now -= 0 if self._holders[place] else size


class Kept:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


def bytes_kept(module: nn.Module, task: Task, side: int, **settings: Any) -> int:
    learner = made_learner(module, task, (MetaDR(transforms="identity"),), side, **settings)
    saved = Saved()
    with torch.autograd.graph.saved_tensors_hooks(saved.keep, lambda kept: kept.tensor):
        learner.gradient()
    assert saved.now == 0
    return saved.peak


def test_a_step_keeps_less_than_half(toys):
    module = models.build("small_unet", 4)
    plain, again = (bytes_kept(module, Task(4, "miou"), 64, recompute=recompute) for recompute in (False, True))
    assert again < 0.5 * plain
    # The more blocks, the less: what is kept of each is what goes in, and one at a time is whole.
    blocks = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh()) for _ in range(12)]
    deep = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *(nn.Sequential(*blocks[i : i + 3]) for i in range(0, 12, 3)))
    deep.append(nn.Conv2d(8, 4, 1))
    plain, again = (bytes_kept(deep, Task(4, "miou"), 32, recompute=recompute) for recompute in (False, True))
    assert again < 0.4 * plain


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("small_resnet", {"Block": 3}),
        ("small_unet", {"Sequential": 7}),
        ("resnet50", {"Bottleneck": 16}),
        ("vit_b_16", {"EncoderBlock": 12}),
        ("unet_resnet34", {"BasicBlock": 16, "UnetDecoderBlock": 5}),
    ],
)
def test_blocks_are_those_of_the_network(name, kinds):
    if name.startswith("unet_"):
        pytest.importorskip("segmentation_models_pytorch")
    with torch.device("meta"):
        module = models.build(name, 4)
    assert Counter(type(block).__name__ for block in _blocks(module)) == kinds


class Writing(nn.Module):
    """A block that writes into its input, or into a buffer."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.conv, self.other = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.what = what
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        (x if self.what == "input" else self.seen).add_(1)
        found: Tensor = self.other(self.conv(x))
        return found


@pytest.mark.parametrize("what", ["input", "buffer"])
def test_a_block_that_would_be_another_is_refused(what, toys):
    module = nn.Sequential(nn.Conv2d(3, 4, 1), Writing(what), nn.Conv2d(4, 4, 1))
    learner = made_learner(module, Task(4, "miou"), (), 8, recompute=True)
    with pytest.raises(UserError, match=r"A block 'Writing' .* cannot be computed again. Use --set recompute=false"):
        learner.steps(1)


def test_a_network_without_blocks_is_refused():
    with pytest.raises(UserError, match=r"has no block of 2 to 8 layers .* recompute=false"):
        Network(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 1)), Task(4, "miou"), recompute=True)


def test_runs_that_keep_their_activations_have_the_key_they_had():
    usual = description(make_recipe("embedded", "meta-dr"))
    assert "recompute" not in usual["training"]
    assert description(make_recipe("embedded", "meta-dr", recompute=False)) == usual
    assert description(make_recipe("embedded", "meta-dr", recompute=True))["training"]["recompute"] is True


def test_a_run_is_killed_and_goes_on_to_the_same_bits(tmp_path, registered_toys):
    """Checkpoints know nothing of it."""
    recipe = make_recipe("toy-shapes", "meta-dr", model="tiny_resnet", recompute=True)
    whole = run(recipe, out=tmp_path / "whole", device="cpu")
    stopped = advance(recipe, out=tmp_path / "parts", device="cpu", checkpoint_seconds=0)
    next(stopped)
    stopped.close()
    assert run(recipe, out=tmp_path / "parts", device="cpu").scores == whole.scores
