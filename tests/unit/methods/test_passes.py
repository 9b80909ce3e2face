"""Which passes a step makes and on which images, and where a method comes to the same as naive."""

import pytest
import torch

from metadr.core import Split
from metadr.engine.learner import Learner
from metadr.parts import EWC, L2, MetaDR, Randomize, Replay

INVERT = {"transforms": "invert", "compositions": 1}
NOTHING = {"transforms": "identity"}


# Methods that come to the same.


def forward_calls(learner: Learner) -> list[int]:
    calls: list[int] = []
    learner.network.module.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_meta_dr_without_its_terms_is_naive(toy, toys):
    learner, naive = toy.learner(MetaDR(recall=0.0, adapt=0.0)), toy.learner()
    stream = learner.streams["meta-dr"].get_state()
    counts = {}
    for name, each in (("meta-dr", learner), ("naive", naive)):
        calls = forward_calls(each)
        terms = toy.play(each, num_steps=8)
        counts[name] = len(calls)
        assert all(list(term) == ["loss", "clean"] for term in terms)
    assert counts == {"meta-dr": 16, "naive": 16}
    assert torch.equal(learner.streams["meta-dr"].get_state(), stream)
    ours, theirs = learner.state(), naive.state()
    assert {name.partition("/")[0] for name in ours.keys() - theirs.keys()} == {"stream", "beside"}
    toys.assert_same_bits({name: ours[name] for name in theirs}, theirs)
    assert learner.network.moved == {"all", "inner+clean"}  # no pass has moved what is of the inner one alone


@pytest.mark.parametrize(("recall", "adapt", "extra"), [(1.0, 1.0, 3), (1.0, 0.0, 2), (0.0, 1.0, 2)])
def test_meta_dr_runs_no_pass_that_it_does_not_need(recall, adapt, extra, toy):
    learner = toy.learner(MetaDR(recall=recall, adapt=adapt))
    calls = forward_calls(learner)
    toy.play(learner, num_steps=4)
    assert len(calls) == 2 * 4 * (1 + extra)


@pytest.mark.parametrize("per", ["batch", "image"])
def test_randomisation_by_nothing_is_naive(per, toy, toys):
    learner, naive = toy.learner(Randomize(**NOTHING, per=per)), toy.learner()
    for each in (learner, naive):
        toy.play(each, num_steps=6)
    toys.assert_same_bits(learner.network.state(), naive.network.state())


@pytest.mark.parametrize("part", [L2(strength=0.0), EWC(strength=0.0)], ids=lambda part: part.name)
def test_pull_of_no_strength_is_naive(part, toy, toys):
    learner, naive = toy.learner(part), toy.learner()
    for each in (learner, naive):
        toy.play(each, num_steps=4)
    toys.assert_same_bits(learner.network.state(), naive.network.state())


# Images of a pass.


@pytest.mark.parametrize("replayed", [True, False])
def test_randomisation_of_replayed_images_is_a_choice(replayed, toy, toys):
    learner = toy.on_second_domain(toy.learner(Replay(), Randomize(**INVERT, replayed=replayed)))
    passes = toys.record_passes(learner)
    learner.steps(2)
    current, memory = set(toys.pictures(toy.domains[1].train.x)), set(toys.pictures(learner.memory.pool.x))
    for batch in toys.by_role(passes)["clean"]:
        assert batch.replayed == 6
        assert set(toys.pictures(255 - batch.x[:6])) <= current
        kept = 255 - batch.x[6:] if replayed else batch.x[6:]
        assert set(toys.pictures(kept)) <= memory


@pytest.mark.parametrize("inner_replay", [True, False])
def test_memory_on_the_inner_batch_is_a_choice(inner_replay, toy, toys):
    learner = toy.on_second_domain(toy.learner(Replay(), MetaDR(**NOTHING, inner_replay=inner_replay)))
    passes = toys.record_passes(learner)
    learner.steps(2)
    seen = toys.by_role(passes)
    memory = set(toys.pictures(learner.memory.pool.x))
    for inner, clean, recall, adapt in zip(
        *(seen[role] for role in ("inner", "clean", "recall", "adapt")), strict=True
    ):
        assert (len(inner.x), inner.replayed) == ((12, 6) if inner_replay else (6, 0))
        assert set(toys.pictures(inner.x[6:])) <= memory
        assert toys.pictures(clean.x) == toys.pictures(recall.x) == toys.pictures(adapt.x)
        assert clean.replayed == 6
        assert set(toys.pictures(clean.x[6:])) <= memory
        assert toys.pictures(inner.x) != toys.pictures(clean.x)


def test_meta_dr_transforms_raw_images_beside_randomisation(toy, toys):
    """`meta-dr+dr`: randomised images in the clean and the recall term, T on the raw ones."""
    learner = toy.learner(Randomize(**INVERT), MetaDR(transforms="identity"))
    learner.begin_domain(toy.domains[0].train, first=True)
    passes = toys.record_passes(learner)
    learner.steps(3)
    seen, known = toys.by_role(passes), set(toys.pictures(toy.domains[0].train.x))
    for inner, clean, recall, adapt in zip(
        *(seen[role] for role in ("inner", "clean", "recall", "adapt")), strict=True
    ):
        assert toys.pictures(clean.x) == toys.pictures(recall.x)
        assert toys.pictures(adapt.x) == toys.pictures(255 - clean.x)
        assert set(toys.pictures(adapt.x)) <= known
        assert set(toys.pictures(inner.x)) <= known


def test_meta_domains_are_averaged(toy, toys):
    learner = toy.learner(MetaDR(recall=0.5, adapt=2.0, meta_domains=3))
    learner.begin_domain(toy.domains[0].train, first=True)
    passes = toys.record_passes(learner)
    terms = learner.step()
    losses = {role: [seen.loss for seen in passes if seen.role == role] for role in ("inner", "recall", "adapt")}
    assert [len(values) for values in losses.values()] == [3, 3, 3]
    expected = (0.5 * sum(losses["recall"]) + 2.0 * sum(losses["adapt"])) / 3
    torch.testing.assert_close(terms.by_name["meta-dr"], expected)
    inner = [toys.pictures(batch.x) for batch in toys.by_role(passes)["inner"]]
    assert inner[0] != inner[1] != inner[2]


def test_rotation_takes_masks_along_and_uncovers_ignored_pixels(segmentation, toys):
    """On masks, T moves labels with their pixels: an image and its mask as one picture stay one picture."""
    train = segmentation.domains[0].train
    labels = train.y.clamp(max=254).to(torch.uint8)
    twin = Split(labels[:, None].expand(-1, 3, -1, -1).contiguous(), train.y)
    learner = segmentation.learner(Randomize(transforms="rotate:30:60:3", compositions=1, per="image"))
    learner.begin_domain(twin, first=True)
    passes = toys.record_passes(learner)
    learner.steps(2)
    for batch in toys.by_role(passes)["clean"]:
        inside = batch.x[:, 0].long()
        moved = batch.y.clamp(max=254)
        uncovered = (batch.y == 255) & (inside == 0)
        assert uncovered.any()
        assert torch.equal(inside[~uncovered], moved[~uncovered])
