"""Averages of weights: a run goes on from between where a domain began and where it ended."""

import json

import pytest
import torch

import metadr
from metadr.parts import L2, Average, MetaDR
from metadr.sequence import BY_PASSES
from metadr.store import RunDirectory


def ended(toy, *parts, num_domains=3, num_steps=4, module=None):
    """The parameters and running statistics before and after the last of some domains ended, and at its beginning."""
    learner = toy.learner(*parts, module=module)
    moments = []
    for index, domain in enumerate(toy.domains[:num_domains]):
        learner.begin_domain(domain.train, first=index == 0)
        begun = weights_of(learner)
        learner.steps(num_steps)
        before = weights_of(learner)
        learner.end_domain(domain)
        moments.append((begun, before, weights_of(learner)))
    return learner, moments


def weights_of(learner):
    return {
        name: value.detach().clone()
        for name, value in {**learner.network.params, **learner.network.norms.running}.items()
    }


@pytest.mark.parametrize("past", [0.25, 0.6])
def test_a_later_domain_ends_with_the_mean_and_the_first_as_it_is(past, toy, toys):
    learner, ((_, last, first), *later) = ended(toy, Average(past=past), module=toy.module(0).double())
    toys.assert_same_bits(first, last)
    assert any("running_mean" in name for name in first)
    for begun, before, after in later:
        for name, value in after.items():
            torch.testing.assert_close(value, past * begun[name] + (1 - past) * before[name])
            assert not torch.equal(value, before[name]) or torch.equal(begun[name], before[name]), name
    kept = learner.part_state["average"]
    toys.assert_same_bits({name.removeprefix("weights."): value for name, value in kept.items()}, later[-1][2])


def test_without_a_share_for_the_past_it_is_naive_to_the_bit(toy, toys):
    for (_, _, one), (_, _, other) in zip(ended(toy, Average(past=0.0))[1], ended(toy)[1], strict=True):
        toys.assert_same_bits(one, other)


def test_other_parts_keep_what_the_run_goes_on_with(toy, toys):
    learner, moments = ended(toy, Average(), L2(anchors="last"), num_domains=2)
    anchors = {name: learner.part_state["l2"][f"mean.{name}"] for name in learner.network.params}
    toys.assert_same_bits(anchors, {name: moments[-1][2][name] for name in anchors})


def test_what_it_goes_on_with_is_what_is_tested_and_stored(registered_toys, tmp_path, toys):
    toy = registered_toys["classification"]
    recipe = toy.recipe(Average(past=0.5))
    result = metadr.run(recipe, out=tmp_path, device="cpu")
    plain = metadr.run(toy.recipe(), out=tmp_path, device="cpu")
    assert result.scores[:2] == plain.scores[:2]  # untrained, and after the first domain
    assert RunDirectory(tmp_path, recipe, 0).checkpoints()
    assert json.loads((result.path / "recipe.json").read_text())["method"] == [
        {"part": "average", "revision": 1, "past": 0.5}
    ]


def test_other_policies_statistics_go_with_the_weights_that_they_are_of(registered_toys, tmp_path):
    """They would be those of a network that is not there any more."""
    toy = registered_toys["classification"]
    kept = {}
    for parts in ((MetaDR(),), (Average(), MetaDR())):
        run = metadr.run(toy.recipe(*parts), out=tmp_path, device="cpu")
        kept[len(parts)] = {name for row in run.rows for name in row if name == BY_PASSES}
    assert kept == {1: {BY_PASSES}, 2: set()}
