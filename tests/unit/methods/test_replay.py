"""What a method sees of other domains: which images it keeps and replays, what an oracle has access to."""

import dataclasses
import itertools

import pytest
import torch

from metadr.core import Batch, Domain, Split
from metadr.parts import EWC, GEM, MetaDR, Randomize, Replay
from metadr.run import run


def test_memory_holds_different_training_images_of_every_past_domain(toy, toys):
    kept = {}
    for seed in (0, 0, 1):
        learner = toy.learner(Replay(), seed=seed, memory=5)
        toy.play(learner, num_domains=3)
        assert len(learner.memory.batches) == 3
        for domain, batch in zip(toy.domains, learner.memory.batches, strict=True):
            known = toys.pictures(domain.train.x)
            assert len(set(known)) == domain.train.num_images
            rows = [known.index(image) for image in toys.pictures(batch.x)]
            assert len(set(rows)) == len(rows) == 5
            assert torch.equal(batch.y, domain.train.y[rows])
            assert batch.replayed == 5
        assert toys.pictures(learner.memory.pool.x) == [
            image for b in learner.memory.batches for image in toys.pictures(b.x)
        ]
        images = toys.pictures(learner.memory.pool.x)
        assert kept.setdefault(seed, images) == images
    assert set(kept[0]) != set(kept[1])


def test_memory_is_the_same_for_every_part_that_uses_it(toy, toys):
    memories = []
    for parts in ((Replay(),), (GEM(),), (Replay(), GEM(), Randomize(), MetaDR(), EWC(fisher_labels="sampled"))):
        learner = toy.learner(*parts)
        toy.play(learner)
        memories.append(toys.pictures(learner.memory.pool.x))
    assert memories[0] == memories[1] == memories[2]


def test_memory_of_a_small_domain_holds_all_of_it(classification, toys):
    learner = classification.learner(Replay(), memory=1000)
    domain = classification.domains[0]
    classification.play(learner, num_domains=1, num_steps=1)
    assert sorted(toys.pictures(learner.memory.pool.x)) == sorted(toys.pictures(domain.train.x))


def test_memory_of_the_first_images_is_a_choice(toy, toys):
    """The same streams either way: what else is drawn does not depend on the choice."""
    learners = []
    for choice in ("random", "first"):
        learner = toy.learner(GEM())
        learner.recipe = dataclasses.replace(learner.recipe, memory_choice=choice)
        toy.play(learner)
        learners.append(learner)
    random, first = learners
    for domain, batch in zip(toy.domains[:2], first.memory.batches, strict=True):
        assert torch.equal(batch.x, domain.train.x[:4])
        assert torch.equal(batch.y, domain.train.y[:4])
    assert toys.pictures(random.memory.pool.x) != toys.pictures(first.memory.pool.x)
    for name, stream in random.streams.items():
        assert torch.equal(stream.get_state(), first.streams[name].get_state())


def test_memory_images_are_a_fair_draw(classification, toys):
    """Every training image is kept about as often as any other."""
    domain, counts = classification.domains[0], {}
    for seed in range(200):
        learner = classification.learner(Replay(), seed=seed, memory=6)
        learner.end_domain(domain)
        for image in toys.pictures(learner.memory.pool.x):
            counts[image] = counts.get(image, 0) + 1
    expected = 200 * 6 / domain.train.num_images
    assert len(counts) == domain.train.num_images
    assert max(abs(count - expected) for count in counts.values()) < 4.5 * (expected * 0.75) ** 0.5


@pytest.mark.parametrize("replay_batch", [None, 2, 9])
def test_replay_stacks_memory_on_the_current_batch(replay_batch, toy, toys):
    learner = toy.learner(Replay(replay_batch=replay_batch))
    passes = toys.record_passes(learner)
    toy.play(learner, num_domains=3, num_steps=3)
    clean = toys.by_role(passes)["clean"]
    for step, batch in enumerate(clean):
        stage = step // 3
        replayed = 0 if stage == 0 else (replay_batch or 6)
        assert (len(batch.x), batch.replayed) == (6 + replayed, replayed)
        current = set(toys.pictures(toy.domains[stage].train.x))
        assert set(toys.pictures(batch.x[:6])) <= current
        remembered = {image for past in learner.memory.batches[:stage] for image in toys.pictures(past.x)}
        assert set(toys.pictures(batch.x[6:])) <= remembered


def test_replay_draws_from_all_memories_together(toy, toys):
    learner = toy.learner(Replay(replay_batch=200))
    toy.play(learner, num_domains=3, num_steps=1)
    batch = learner.memory.sample(3000, torch.Generator().manual_seed(0))
    seen = toys.pictures(batch.x)
    counts = [seen.count(image) for image in toys.pictures(learner.memory.pool.x)]
    assert sum(counts) == 3000
    assert min(counts) > 0.75 * 3000 / len(counts)


def test_empty_memory_cannot_be_sampled(toy):
    with pytest.raises(RuntimeError, match="empty memory"):
        toy.learner(Replay()).memory.sample(1, torch.Generator())


@pytest.mark.parametrize(("access", "seen"), [("current", [1, 1, 1]), ("so_far", [1, 2, 3]), ("all", [3, 3, 3])])
def test_access_decides_what_is_sampled(access, seen, registered_toys, tmp_path, monkeypatch, toys):
    toy = registered_toys["classification"]
    stages, original = [], Split.sample

    def sample(split: Split, num_images: int, rng: torch.Generator) -> Batch:
        batch = original(split, num_images, rng)
        if not stages or stages[-1][0] is not split:
            stages.append((split, []))
        stages[-1][1].extend(toys.pictures(batch.x))
        return batch

    monkeypatch.setattr(Split, "sample", sample)
    recipe = toy.recipe(access=access, overrides=(("steps", 6), ("batch_size", 24)))
    run(recipe, out=tmp_path, device="cpu")
    assert len(stages) == 3
    for stage, (split, drawn) in enumerate(stages):
        visible = {"current": [stage], "so_far": list(range(stage + 1)), "all": [0, 1, 2]}[access]
        assert len(visible) == seen[stage]
        sources = {index: set(toys.pictures(toy.domains[index].train.x)) for index in range(3)}
        assert sorted(toys.pictures(split.x)) == sorted(itertools.chain(*(sources[index] for index in visible)))
        share = [sum(image in sources[index] for image in drawn) for index in range(3)]
        assert sum(share) == len(drawn) == 6 * 24
        assert [index for index in range(3) if share[index]] == visible
        assert min(share[index] for index in visible) > 0.5 * len(drawn) / len(visible)


def test_end_of_a_domain_shows_the_part_that_domain(classification, monkeypatch, toys):
    """With an oracle's access the learner trains on a union, but a part keeps what belongs to the domain that ends."""
    seen = []
    original = EWC.fisher
    monkeypatch.setattr(EWC, "fisher", lambda self, split, ctx: seen.append(split) or original(self, split, ctx))
    learner = classification.learner(EWC(), Replay())
    domain: Domain = classification.domains[0]
    learner.begin_domain(Split.union([each.train for each in classification.domains]), first=True)
    learner.steps(1)
    learner.end_domain(domain)
    assert seen == [domain.train]
    assert set(toys.pictures(learner.memory.pool.x)) <= set(toys.pictures(domain.train.x))
