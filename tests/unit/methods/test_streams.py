"""Streams of random numbers: what one part draws moves neither the batches nor the draws of another."""

import itertools

import pytest
import torch
from torch import nn

from metadr.core import Batch, Split
from metadr.engine.learner import Learner
from metadr.engine.streams import stream_seed
from metadr.parts import EWC, GEM, PARTS, MetaDR, Randomize, Replay

METHODS = {
    "naive": (),
    "dr": (Randomize(),),
    "dr per image": (Randomize(per="image"),),
    "meta-dr": (MetaDR(),),
    "meta-dr, two meta-domains": (MetaDR(meta_domains=2),),
    "er": (Replay(),),
    "gem": (GEM(),),
    "ewc, sampled labels": (EWC(fisher_labels="sampled"),),
    "all": tuple(part() for part in PARTS.values()),
}


def outer_images(toy, toys, learner: Learner, monkeypatch) -> list[bytes]:
    """All that the learner draws from its outer stream on two domains."""
    drawn, original = [], Split.sample

    def sample(split: Split, num_images: int, rng: torch.Generator) -> Batch:
        batch = original(split, num_images, rng)
        if rng is learner.streams["outer"]:
            drawn.extend(toys.pictures(batch.x))
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(Split, "sample", sample)
        toy.play(learner, num_steps=4)
    return drawn


@pytest.mark.parametrize("method", METHODS)
def test_no_part_moves_the_outer_batches(method, toy, monkeypatch, toys):
    expected = []
    rng = torch.Generator().manual_seed(stream_seed(0, "outer"))
    for domain, _ in itertools.product(toy.domains[:2], range(4)):
        expected += toys.pictures(domain.train.x[torch.randint(domain.train.num_images, (6,), generator=rng)])
    assert outer_images(toy, toys, toy.learner(*METHODS[method]), monkeypatch) == expected


@pytest.mark.parametrize("part", [Randomize(transforms="psi1"), Replay()], ids=lambda part: part.name)
def test_no_part_moves_the_stream_of_another(part, toy):
    """GEM views its memory as DR would, Meta-DR's inner batch is extended by ER: both from streams of their own."""
    states = []
    for others in ((), (GEM(), MetaDR(meta_domains=2), EWC(fisher_labels="sampled"))):
        learner = toy.learner(part, *others)
        toy.play(learner, num_steps=3)
        states.append(learner.streams[part.name].get_state())
    assert torch.equal(states[0], states[1])


def test_streams_have_seeds_of_their_own():
    names = ["outer", "memory", "init", "hidden", *PARTS]
    seeds = {stream_seed(seed, name) for seed in range(20) for name in names}
    assert len(seeds) == 20 * len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_layers_that_draw_use_the_learners_hidden_stream(classification, toys):
    """Dropout: the same masks for the same seed, whatever is drawn elsewhere, and nothing left behind."""

    def learner() -> Learner:
        return classification.learner(module=nn.Sequential(classification.module(), nn.Dropout(0.5)))

    first, second = learner(), learner()
    before = torch.get_rng_state()
    classification.play(first, num_steps=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(17)
    for index, domain in enumerate(classification.domains[:2]):
        second.begin_domain(domain.train, first=index == 0)
        for _ in range(4):
            second.steps(1)
        second.end_domain(domain)
    toys.assert_same_bits(first.state(), second.state())
