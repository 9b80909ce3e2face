"""Learning without forgetting: the network is held to what it said before."""

import copy

import pytest
import torch

from metadr.benchmarks import make_recipe
from metadr.core import Batch
from metadr.parts import LwF
from metadr.store import description, recipe_from_identity


@pytest.mark.parametrize(("replayed", "new"), [(0, 1.0), (3, 0.25), (3, 0.0)])
def test_lwf_is_the_divergence_of_two_networks_and_its_gradient(toy, replayed, new):
    """Against copies of the module itself, old and new, in float64 and train mode."""
    part = LwF(strength=0.7, temperature=3.0, new=new)
    learner = toy.on_second_domain(toy.learner(part, module=toy.module(0).double()))
    old = copy.deepcopy(learner.network.module).train()
    old.load_state_dict(learner.network.state())
    learner.steps(3)
    now = copy.deepcopy(learner.network.module).train()
    now.load_state_dict(learner.network.state())
    images = toy.domains[1].train.x[:7]
    batch = Batch(images, toy.domains[1].train.y[:7], replayed)
    statistics = learner.network.norms.copy()

    ours = part.penalty(batch, batch, learner._context(part))
    found = torch.autograd.grad(ours, list(learner.network.params.values()))

    p, q = (net(images.double() / 255).div(3.0).softmax(1) for net in (old, now))
    apart = (p.detach() * (p.detach() / q).log()).sum(1)
    weights = torch.tensor([new] * (7 - replayed) + [1.0] * replayed, dtype=apart.dtype)
    apart = apart * weights.view(-1, *[1] * (apart.ndim - 1))
    theirs = 0.7 * 9.0 * (apart[batch.y != 255] if toy.task.on_masks else apart).mean()
    expected = torch.autograd.grad(theirs, [dict(now.named_parameters())[name] for name in learner.network.params])
    torch.testing.assert_close(ours, theirs)
    assert ours > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert not learner.network._left  # nor does it move batch norm's statistics
    for name, value in learner.network.norms.copy().items():
        assert torch.equal(value, statistics[name])


def test_what_was_run_before_new_images_had_a_weight_of_their_own_keeps_its_key():
    assert LwF().content() == {"part": "lwf", "revision": 1, "strength": 1.0, "temperature": 2.0}
    assert LwF(new=0.5).content()["new"] == 0.5


def test_such_a_setting_is_read_back_as_those_runs_had_it(monkeypatch):
    monkeypatch.setattr(LwF, "later", {"new": 0.5})  # as if the default had changed since
    for new in (0.5, 1.0):
        recipe = make_recipe("embedded", "lwf", new=new)
        assert recipe_from_identity(description(recipe)) == recipe


def test_lwf_leaves_ignored_pixels_out(segmentation):
    part = LwF()
    learner = segmentation.on_second_domain(segmentation.learner(part))
    learner.steps(2)
    batch = Batch(segmentation.domains[1].train.x[:2], torch.full_like(segmentation.domains[1].train.y[:2], 255))
    assert float(part.penalty(batch, batch, learner._context(part)).detach()) == 0.0


def test_lwf_holds_the_network_to_what_it_said(classification):
    """The stronger, the nearer; all by the statistics of the batch."""

    def moved(strength: float) -> float:
        learner = classification.learner(LwF(strength=strength), optimizer="sgd", later_lr=0.05)
        classification.on_second_domain(learner)
        images = classification.domains[1].test.x
        before = learner.network.logits(images, role="beside").detach()
        learner.steps(40)
        return float((learner.network.logits(images, role="beside").detach() - before).square().mean())

    distances = [moved(strength) for strength in (0.0, 1.0, 10.0)]
    assert distances[0] > 1.5 * distances[1] > 2 * distances[2] > 0
