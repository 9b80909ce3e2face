"""Masks on a GPU: shuffled, mirrored and streamed batches, Dice and U-Nets, recorded and repeated bit for bit."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from metadr import models
from metadr.core import Split
from metadr.engine.ground import Ground, prepare_process
from metadr.engine.learner import Learner
from metadr.parts import parse_method

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

CUDA = torch.device("cuda")
if torch.cuda.is_available():
    prepare_process()
SETTINGS = {
    "shuffled": {"sampling": "shuffled", "mirror": True},
    "dice": {"loss": "dice", "mirror": True},
    "streamed": {"stream": True, "mirror": True},
    "streamed, shuffled": {"stream": True, "sampling": "shuffled"},
}


@contextmanager
def no_waiting() -> Iterator[None]:
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def play(toy, method: str, *, capture: bool, stream: bool = False, **settings: Any) -> tuple[Learner, list[Any]]:
    """A learner after three domains of two epochs and a half, the last of which has fewer images."""
    rows = []
    with Ground(toy.training(), CUDA).held():
        learner = toy.learner(*parse_method(method), device="cuda", capture=capture, stream=stream, **settings)
        for index, domain in enumerate(toy.domains):
            train = domain.train.first(24 if index < 2 else 20)
            here = domain._replace(train=train if stream else train.to(CUDA), test=domain.test.to(CUDA))
            learner.begin_domain(here.train, first=index == 0)
            rows += learner.steps(10).read()[0]
            learner.end_domain(here)
        torch.cuda.synchronize()
    return learner, rows


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("method", ["naive", "er+meta-dr", "ewc+gem+dr"])
def test_recorded_steps_give_the_bits_of_plain_ones(method, name, toy, toys):
    if name == "dice" and not toy.task.on_masks:
        pytest.skip("dice is for masks")
    plain, wanted = play(toy, method, capture=False, **SETTINGS[name])
    recorded, taken = play(toy, method, capture=True, **SETTINGS[name])
    again, once_more = play(toy, method, capture=True, **SETTINGS[name])
    assert taken == wanted == once_more
    toys.assert_same_bits(recorded.state(), plain.state())
    toys.assert_same_bits(again.state(), plain.state())


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_do_not_wait_for_the_device_also_where_an_epoch_ends(name, segmentation):
    settings = SETTINGS[name]
    train = segmentation.domains[0].train
    with Ground(segmentation.training(), CUDA).held():
        learner = segmentation.learner(*parse_method("meta-dr"), device="cuda", **settings)
        learner.begin_domain(train if settings.get("stream") else train.to(CUDA), first=True)
        learner.steps(6).read()  # an epoch is four
        with no_waiting():
            taken = learner.steps(9)
        rows, finite = taken.read()
    assert finite and len(rows) == 9


@pytest.mark.parametrize("sampling", ["uniform", "shuffled"])
def test_where_streamed_images_lie_makes_no_difference(sampling, segmentation, toys):
    learners = []
    for place in ("cpu", "cuda"):
        with Ground(segmentation.training(), CUDA).held():
            learner = segmentation.learner(
                *parse_method("meta-dr"), device="cuda", stream="auto", sampling=sampling, mirror=True
            )
            for index, domain in enumerate(segmentation.domains[:2]):
                learner.begin_domain(domain.train.to(place), first=index == 0)
                learner.steps(6).read()
            with no_waiting():
                taken = learner.steps(3)
            taken.read()
            learners.append(learner)
    toys.assert_same_bits(learners[1].state(), learners[0].state())


UNETS = ["tiny_unet", "unet_resnet18", "unet_resnet50_v1"]


@pytest.mark.parametrize("name", UNETS)
@pytest.mark.parametrize("settings", [{}, {"loss": "dice"}, {"recompute": True}], ids=["usual", "dice", "recomputed"])
def test_unets_are_recorded_and_repeat_their_bits_on_sides_that_are_no_multiples(name, settings, segmentation, toys):
    if name != "tiny_unet" and importlib.util.find_spec("segmentation_models_pytorch") is None:
        pytest.skip("needs the extra 'seg'")
    torch.manual_seed(0)
    train = Split(
        torch.randint(256, (8, 3, 40, 70), dtype=torch.uint8, device=CUDA),
        torch.randint(4, (8, 40, 70), device=CUDA).to(torch.uint8),
    )
    train.y[:, :5] = 255
    states, losses = [], []
    for capture in (False, True, True):
        torch.manual_seed(1)
        module = models.build(name, 4)
        with Ground(segmentation.training(), CUDA).held():
            learner = segmentation.learner(
                *parse_method("meta-dr"), device="cuda", capture=capture, module=module, batch_size=4, **settings
            )
            learner.begin_domain(train, first=True)
            losses.append(learner.steps(4).read())
            states.append({key: value.detach().cpu() for key, value in learner.state().items()})
    assert losses[0] == losses[1] == losses[2] and losses[0][1]
    toys.assert_same_bits(states[1], states[0])
    toys.assert_same_bits(states[2], states[0])


class Dropping(nn.Module):
    """Six blocks that draw."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(self._block(3 if number == 0 else 6) for number in range(6)))
        self.head = nn.Conv2d(6, 4, 1)

    def _block(self, channels: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.blocks(x))
        return found


def masked_noise(height: int, width: int) -> Split:
    rng = torch.Generator(CUDA).manual_seed(0)
    x = torch.randint(256, (8, 3, height, width), dtype=torch.uint8, device=CUDA, generator=rng)
    return Split(x, torch.randint(4, (8, height, width), device=CUDA, generator=rng).to(torch.uint8))


def test_what_is_computed_again_is_the_same_step_recorded_or_not(segmentation, toys):
    """In float64, with dropout, through Meta-DR's second order."""
    states = []
    for capture, recompute in ((False, False), (False, True), (True, True)):
        torch.manual_seed(1)
        with Ground(segmentation.training(), CUDA).held():
            learner = segmentation.learner(
                *parse_method("meta-dr"),
                device="cuda",
                capture=capture,
                module=Dropping().double(),
                batch_size=4,
                recompute=recompute,
            )
            learner.begin_domain(masked_noise(24, 40), first=True)
            learner.steps(4).read()
            states.append({key: value.detach().cpu() for key, value in learner.state().items()})
    toys.assert_same_bits(states[2], states[1])
    for key, value in states[0].items():
        torch.testing.assert_close(states[1][key], value, rtol=1e-7, atol=1e-9)


def test_what_is_computed_again_takes_less_memory(segmentation):
    peaks = []
    for recompute in (False, True):
        with Ground(segmentation.training(), CUDA).held():
            learner = segmentation.learner(
                *parse_method("meta-dr"),
                device="cuda",
                capture=False,
                module=models.build("small_unet", 4),
                batch_size=8,
                recompute=recompute,
            )
            learner.begin_domain(masked_noise(256, 384), first=True)
            learner.steps(1).read()
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            learner.steps(1).read()
            peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] < 0.8 * peaks[0]
