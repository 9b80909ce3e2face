"""The engine on a GPU: recorded steps give the bits of plain ones, and wait for nothing."""

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models.vision_transformer import VisionTransformer

from metadr import models
from metadr.bench.transforms import apply_with_pillow
from metadr.core import Part
from metadr.engine import learner as learner_module
from metadr.engine.capture import Captured
from metadr.engine.ground import Ground, prepare_process
from metadr.engine.learner import Learner
from metadr.errors import UserError
from metadr.parts import EWC, MetaDR, parse_method
from metadr.run import run
from metadr.transforms import draw, get_set
from metadr.transforms.registry import get_transform

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

CUDA = torch.device("cuda")
if torch.cuda.is_available():
    prepare_process()  # before any test multiplies matrices: cuBLAS and torch read it once
# How often a step is recorded over three domains of one shape.
CAPTURES = {
    "naive": 1,
    "dr": 1,
    "l2": 2,  # its penalty begins with the second domain
    "ewc": 2,
    "lwf": 2,
    "average": 2,
    "average+meta-dr": 3,  # statistics of other policies go at the end of the second
    "gem": 3,  # a constraint more on every domain
    "er": 2,  # its memory begins with the second
    "meta-dr": 1,
    "er+meta-dr": 2,
    "average+dr+er+ewc+gem+l2+lwf+meta-dr": 3,
}
OPTIMIZERS = {"adam": {}, "sgd": {"optimizer": "sgd", "momentum": 0.9}}


@contextmanager
def held(toy, **settings: Any) -> Iterator[None]:
    with Ground(toy.training(**settings), CUDA).held():
        yield


def play(toy, *parts: Part, capture: bool, steps: int = 4, **options: Any) -> tuple[Learner, list[dict[str, float]]]:
    """A learner after three domains, and its losses."""
    settings = {name: value for name, value in options.items() if name not in ("module", "seed")}
    with held(toy, **settings):
        learner = toy.learner(*parts, device="cuda", capture=capture, **options)
        taken = toy.play(learner, num_domains=3, num_steps=steps)
        torch.cuda.synchronize()
    return learner, taken


@pytest.fixture
def captures(monkeypatch) -> list[Captured]:
    """Every recording that is made."""
    made: list[Captured] = []

    class Counted(Captured):
        def __init__(self, *arguments: Any) -> None:
            made.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr(learner_module, "Captured", Counted)
    return made


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_the_fisher_on_a_gpu_is_that_of_a_cpu_and_the_same_each_time(precision, classification):
    """In full precision, whatever the run's."""
    images, fishers = classification.domains[0].train, []
    for device in ("cpu", "cuda", "cuda"):
        learner = classification.learner(EWC(), device=device, precision="fp32" if device == "cpu" else precision)
        with held(classification, precision=precision):
            fishers.append(EWC().fisher(images.to(device), learner._context(learner.recipe.method[0])))
    for name, value in fishers[0].items():
        torch.testing.assert_close(fishers[1][name].cpu(), value, rtol=1e-4, atol=1e-6 * float(value.max()))
        assert torch.equal(fishers[1][name], fishers[2][name])


class Turned(nn.Module):
    """A linear layer whose weight is turned before it is used: so its gradient lies in memory, too."""

    def __init__(self, num_values: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(num_classes, 1, num_values) / 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        each = x.flatten(1).expand(len(self.weight), -1, -1)
        return torch.bmm(each, self.weight.transpose(1, 2))[..., 0].T


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_may_lie_otherwise_than_their_parameters(optimizer, classification, toys):
    """torch's fused optimisers refuse them."""
    plain, recorded = [], []
    for capture, made in ((False, plain), (True, recorded)):
        torch.manual_seed(0)
        module = Turned(classification.domains[0].train.x[0].numel(), classification.task.num_classes)
        made += play(classification, capture=capture, module=module, **OPTIMIZERS[optimizer])
    assert recorded[1] == plain[1]
    toys.assert_same_bits(recorded[0].state(), plain[0].state())


# Recorded steps.


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", CAPTURES)
def test_recorded_steps_give_the_bits_of_plain_ones(method, optimizer, classification, toys, captures):
    parts, settings = parse_method(method), OPTIMIZERS[optimizer]
    plain, wanted = play(classification, *parts, capture=False, **settings)
    assert not captures
    recorded, taken = play(classification, *parts, capture=True, **settings)
    assert len(captures) == CAPTURES[method]
    assert taken == wanted
    toys.assert_same_bits(recorded.state(), plain.state())


@pytest.mark.parametrize("method", ["naive", "meta-dr", "er+lwf"])
def test_recorded_steps_give_the_bits_of_plain_ones_where_statistics_stay(method, classification, toys, captures):
    parts = parse_method(method)
    plain, wanted = play(classification, *parts, capture=False, later_norm="fixed")
    recorded, taken = play(classification, *parts, capture=True, later_norm="fixed")
    assert len(captures) == 2  # on the first domain, and on the others
    assert taken == wanted
    toys.assert_same_bits(recorded.state(), plain.state())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_recorded_steps_go_by_a_rate_that_falls(optimizer, classification, toys, captures):
    settings = {"decay": "cosine", "steps": 5, **OPTIMIZERS[optimizer]}
    plain, wanted = play(classification, capture=False, **settings)
    recorded, taken = play(classification, capture=True, **settings)
    assert len(captures) == 1
    assert taken == wanted
    toys.assert_same_bits(recorded.state(), plain.state())
    constant, _ = play(classification, capture=True, **{**settings, "decay": "none"})
    assert not torch.equal(recorded.state()["model/0.weight"], constant.state()["model/0.weight"])


@pytest.mark.parametrize("method", ["meta-dr", "average+dr+er+ewc+gem+l2+lwf+meta-dr"])
def test_recorded_steps_give_the_bits_of_plain_ones_on_masks(method, segmentation, toys):
    parts = parse_method(method)
    plain, wanted = play(segmentation, *parts, capture=False)
    recorded, taken = play(segmentation, *parts, capture=True)
    assert taken == wanted
    toys.assert_same_bits(recorded.state(), plain.state())


def test_recorded_dropout_draws_what_plain_dropout_does(classification, toys):
    """And leaves the global stream where it was."""
    before = torch.cuda.get_rng_state()
    plain, wanted = play(classification, MetaDR(), capture=False, module=toys.with_dropout(classification))
    recorded, taken = play(classification, MetaDR(), capture=True, module=toys.with_dropout(classification))
    assert taken == wanted
    toys.assert_same_bits(recorded.state(), plain.state())
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert len({row["loss"] for row in taken}) == len(taken)  # a new mask every step


def test_a_recorded_step_sees_new_images_every_time(classification, captures):
    with held(classification):
        learner = classification.learner(device="cuda", lr=1e-30)  # the weights stay: only the batch moves the loss
        learner.begin_domain(classification.domains[0].train.to(CUDA), first=True)
        rows, finite = learner.steps(20).read()
    assert len(captures) == 1
    assert finite
    assert len({row["loss"] for row in rows}) > 15


def test_other_learners_may_step_between_the_steps_of_one(classification, toys):
    """Two learners in turn, each on a stream of its own, as lanes are."""
    alone = [play(classification, MetaDR(), capture=True, seed=seed, steps=6)[0].state() for seed in (0, 1)]
    grounds = [Ground(classification.training(), CUDA) for _ in range(2)]
    learners = []
    for seed, ground in enumerate(grounds):
        with ground.held():
            learners.append(classification.learner(MetaDR(), device="cuda", seed=seed))
    for index, domain in enumerate(classification.domains):
        for learner, ground in zip(learners, grounds, strict=True):
            with ground.held():
                here = domain._replace(train=domain.train.to(CUDA))
                learner.begin_domain(here.train, first=index == 0)
        for _ in range(3):
            for learner, ground in zip(learners, grounds, strict=True):
                with ground.held():
                    learner.steps(2)
        for learner, ground in zip(learners, grounds, strict=True):
            with ground.held():
                learner.end_domain(domain._replace(train=domain.train.to(CUDA)))
    torch.cuda.synchronize()
    for learner, wanted in zip(learners, alone, strict=True):
        toys.assert_same_bits(learner.state(), wanted)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_recorded_steps_give_the_bits_of_plain_ones_in_every_precision(precision, classification, toys):
    parts = parse_method("er+ewc+gem+meta-dr")
    plain, wanted = play(classification, *parts, capture=False, precision=precision)
    recorded, taken = play(classification, *parts, capture=True, precision=precision)
    assert taken == wanted
    toys.assert_same_bits(recorded.state(), plain.state())


# Waiting.


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_waiting_is_noticed():
    """What the next tests rely on."""
    value = torch.ones(1, device="cuda")
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        value.item()


@pytest.mark.parametrize("capture", [True, False], ids=["recorded", "plain"])
@pytest.mark.parametrize(
    ("name", "method"),
    [*(("classification", method) for method in CAPTURES), ("segmentation", "dr+er+ewc+gem+l2+meta-dr")],
)
def test_steps_do_not_wait_for_the_device(name, method, capture, toys):
    toy = toys.TOYS[name]
    with held(toy):
        learner = toy.learner(*parse_method(method), device="cuda", capture=capture)
        toy.on_second_domain(learner)
        learner.steps(1).read()  # the first step on a domain may set things up, and is recorded
        with no_waiting():
            taken = learner.steps(5 if capture else 1)
        assert taken.ready is not None
        rows, finite = taken.read()
    assert finite
    assert len(rows) == (5 if capture else 1)


def test_steps_are_timed_on_the_device(toys):
    """What the host does between two turns, or between launching and looking, does not count."""
    toy = toys.TOYS["classification"]
    with held(toy):
        learner = toy.learner(*parse_method("meta-dr"), device="cuda")
        learner.begin_domain(toy.domains[0].train.to(torch.device("cuda")), first=True)
        learner.steps(1).read()
        learner.launch(5)
        time.sleep(0.5)
        taken = learner.steps(5)
        time.sleep(0.5)
        taken.read()
    assert len(taken.turns) == 2
    assert 0 < taken.seconds < 0.4


# Parts and layers that cannot be recorded, or not be repeated.


def test_a_part_that_waits_is_told_of_eager_and_runs_with_it(registered_toys, classification, toys, tmp_path):
    recipe = classification.recipe(toys.Looking())
    with pytest.raises(UserError, match=r"cannot be captured as a CUDA graph \(.+\)\. .*--eager"):
        run(recipe, out=tmp_path, device="cuda")
    assert len(run(recipe, out=tmp_path, device="cuda", capture=False).rows) == 12
    # Nothing of the failed recording is left in the way of others.
    plain, recorded = (play(classification, MetaDR(), capture=capture)[0] for capture in (False, True))
    toys.assert_same_bits(recorded.state(), plain.state())


def pooled_net(num_classes: int) -> nn.Module:
    """A network with a layer whose backward pass adds in any order."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.AdaptiveMaxPool2d(3), nn.Flatten(), nn.Linear(36, num_classes)
    )


def test_a_layer_that_cannot_be_repeated_is_refused_unless_told(registered_toys, classification, tmp_path, monkeypatch):
    monkeypatch.setitem(models.MODELS, "toy_pooled", pooled_net)
    overrides = {"model": "toy_pooled", "steps": 2}
    strict = classification.recipe(overrides=tuple(overrides.items()))
    with pytest.raises(UserError, match=r"uses adaptive_max_pool2d_backward_cuda.* --set deterministic=false"):
        run(strict, out=tmp_path, device="cuda")
    assert not torch.are_deterministic_algorithms_enabled()
    lenient = classification.recipe(overrides=(*overrides.items(), ("deterministic", False)))
    assert len(run(lenient, out=tmp_path, device="cuda").rows) == 12


# The ground.


# Photographs and attention.


@pytest.mark.parametrize("name", ["psi1", "psi2", "psi3", "psi4"])
def test_sets_at_224_in_a_recorded_step_equal_pillow(name: str) -> None:
    source = get_set(name)
    choices = tuple(each for each in source.choices if not get_transform(each.name).stochastic)
    source = dataclasses.replace(source, choices=choices)
    rng = torch.Generator(CUDA).manual_seed(0)
    images = torch.randint(256, (64, 3, 224, 224), generator=rng, device=CUDA, dtype=torch.uint8)
    kept: dict[str, Any] = {}

    def step() -> None:
        kept["drawn"] = draw(source, len(images), rng, per="image", pick="operation")
        kept["images"] = kept["drawn"].apply(images)

    with torch.cuda.stream(torch.cuda.Stream()):
        step()
        recorded = Captured(step, [rng])
        for _ in range(2):
            recorded.replay()
            torch.cuda.synchronize()
            drawn = kept["drawn"]
            drawn = drawn._replace(operation=drawn.operation.cpu(), level=drawn.level.cpu())
            assert torch.equal(kept["images"].cpu(), apply_with_pillow(drawn, images.cpu()))


def test_attention_is_differentiated_twice_in_a_recorded_step(classification) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return VisionTransformer(16, 8, 2, 2, 8, 16, num_classes=3)

    states = []
    for capture in (True, False):
        with held(classification):
            learner = classification.learner(MetaDR(), module=network(), device="cuda", capture=capture)
            taken = classification.play(learner, num_domains=2, num_steps=3)
            assert all(math.isfinite(terms["meta-dr"]) for terms in taken)
            states.append({name: value.cpu() for name, value in learner.state().items()})
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())
