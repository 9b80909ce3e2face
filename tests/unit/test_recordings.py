"""Steps that are taken again. A recording that calls the step stands in for a CUDA graph: what must be right on a CPU
too is which recordings are kept, and that all a kept one reads has been written over.
"""

import pytest
import torch

from metadr.core import Split
from metadr.engine import learner as learner_module
from metadr.engine.learner import Learner
from metadr.parts import EWC, GEM, L2, PARTS, Average, LwF, MetaDR, Randomize, Replay

CPU = torch.device("cpu")


class Recording:
    """Counts what a graph would record; replayed, it takes the step."""

    made = 0

    def __init__(self, function, generators) -> None:
        Recording.made += 1
        self.function, self.generators = function, list(generators)

    def replay(self) -> None:
        self.function()


def recording(learner: Learner) -> Learner:
    """The learner as it is on a GPU: it records, and its learning rate is a tensor."""
    learner._capturing = True
    return with_tensor_rate(learner)


def with_tensor_rate(learner: Learner) -> Learner:
    original = learner._new_optimizer

    def new_optimizer(lr: float) -> torch.optim.Optimizer:
        optimizer = original(lr)
        for group in optimizer.param_groups:
            group["lr"], group["foreach"] = torch.tensor(lr), False
        return optimizer

    learner._new_optimizer = new_optimizer
    return learner


@pytest.fixture
def recordings(monkeypatch) -> type[Recording]:
    monkeypatch.setattr(learner_module, "Captured", Recording)
    monkeypatch.setattr(Recording, "made", 0)
    return Recording


METHODS = {
    # How often a step is recorded over three domains of one shape.
    "naive": ((), 1),
    "dr": ((Randomize(),), 1),
    "meta-dr": ((MetaDR(),), 1),
    "l2": ((L2(),), 2),  # its penalty begins with the second domain
    "ewc": ((EWC(),), 2),
    "lwf": ((LwF(),), 2),
    "average": ((Average(),), 2),
    "average+meta-dr": ((Average(), MetaDR()), 3),  # statistics of other policies go at the end of the second
    "er": ((Replay(),), 2),  # its memory does
    "er+meta-dr": ((Replay(), MetaDR()), 2),
    "gem": ((GEM(),), 3),  # a constraint more on every domain
    "all": (tuple(part() for part in PARTS.values()), 3),
}


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "sgd"}], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_step_is_kept_as_long_as_it_fits_and_comes_to_the_same(
    method, settings, classification, toys, recordings
):
    toy, (parts, most) = classification, METHODS[method]
    eager = with_tensor_rate(toy.learner(*parts, **settings))
    wanted = toy.play(eager, num_domains=3, num_steps=3)
    learner = recording(toy.learner(*parts, **settings))
    assert toy.play(learner, num_domains=3, num_steps=3) == wanted
    assert recordings.made == most
    toys.assert_same_bits(learner.state(), eager.state())


@pytest.mark.parametrize("method", ["naive", "er+meta-dr"])
def test_with_statistics_that_stay_a_step_is_recorded_anew_on_the_second_domain(
    method, classification, toys, recordings
):
    toy, (parts, _) = classification, METHODS[method]
    eager = with_tensor_rate(toy.learner(*parts, later_norm="fixed"))
    wanted = toy.play(eager, num_domains=3, num_steps=3)
    learner = recording(toy.learner(*parts, later_norm="fixed"))
    assert toy.play(learner, num_domains=3, num_steps=3) == wanted
    assert recordings.made == 2
    toys.assert_same_bits(learner.state(), eager.state())


def test_what_a_recorded_step_reads_is_written_over_in_place(classification, recordings):
    learner = recording(classification.learner(L2()))
    red, green, blue = (domain.train for domain in classification.domains)
    classification.on_second_domain(learner)
    learner.steps(1)
    read = {name: value.data_ptr() for name, value in learner._read.items()}
    learner.end_domain(classification.domains[1])
    state = {name: value.clone() for name, value in learner.part_state["l2"].items()}
    learner.begin_domain(blue, first=False)
    assert {name: value.data_ptr() for name, value in learner._read.items()} == read
    assert torch.equal(learner._read["train/x"], blue.x)
    assert torch.equal(learner._read["train/y"], blue.y)
    assert state.keys() == learner.part_state["l2"].keys()
    for name, value in learner.part_state["l2"].items():
        assert value.data_ptr() == read[f"part/l2/{name}"]
        assert torch.equal(value, state[name])
    for original in (red, green):  # which other runs read
        assert not torch.equal(original.x, blue.x)


@pytest.mark.parametrize(
    "other",
    [
        lambda train: train.first(20),
        lambda train: Split(train.x[:, :, :12], train.y),
        lambda train: Split(train.x, train.y.int()),
    ],
    ids=["fewer images", "smaller images", "another type"],
)
def test_a_domain_of_another_shape_is_recorded_anew(other, classification, recordings):
    learner = recording(classification.learner())
    learner.begin_domain(classification.domains[0].train, first=True)
    learner.steps(1)
    changed = other(classification.domains[1].train)
    learner.begin_domain(changed, first=False)
    assert learner._captured is None
    assert torch.equal(learner._train.x, changed.x)


def test_a_recorded_step_is_not_kept_across_a_load(classification, recordings, toys):
    """A graph reads the tensors that it was recorded with, and loading makes others."""
    learner = recording(classification.learner(Replay()))
    classification.on_second_domain(learner)
    learner.steps(2)
    saved = toys.clone_state(learner)
    learner.load(saved)
    assert learner._captured is None
    toys.assert_same_bits(learner.state(), saved)
    made = recordings.made
    learner.steps(1)
    assert recordings.made == made + 1


def test_nothing_is_recorded_on_a_cpu(classification, recordings):
    learner = classification.learner(MetaDR())
    classification.play(learner, num_domains=3)
    assert recordings.made == 0
    assert learner._train.x is classification.domains[2].train.x  # nor copied
