"""The memory of past domains: which rows it holds and draws."""

import pytest
import torch

from metadr.core import Batch, Memory
from metadr.parts import Replay
from metadr.run import run

CPU = torch.device("cpu")


def images(start: int, num_images: int) -> Batch:
    """Images that are told apart by their colour."""
    colours = torch.arange(start, start + num_images)
    return Batch(colours.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous(), colours)


def test_a_memory_has_room_for_no_more_images_than_there_are(registered_toys, tmp_path):
    """M may be more than a domain has: a run keeps them all, and takes no memory for others."""
    toy = registered_toys["classification"]
    recipe = toy.recipe(Replay(), memory=10**9)
    plain = run(toy.recipe(Replay(), memory=24), out=tmp_path / "plain", device="cpu")  # of 24 each
    assert run(recipe, out=tmp_path / "more", device="cpu").scores == plain.scores


def test_a_memory_samples_every_filled_row_and_no_other():
    memory, rng = Memory(room=12), torch.Generator().manual_seed(0)
    for start, count in ((1, 4), (5, 4), (9, 2)):
        memory.add(images(start, count))
        drawn = memory.sample(500, rng)
        assert drawn.replayed == 500
        assert set(drawn.y.tolist()) == set(range(1, start + count))  # never the 0 of an empty row
        assert torch.equal(drawn.x[:, 0, 0, 0].long(), drawn.y)
        assert memory.num_images == start + count - 1
    assert torch.equal(memory.pool.y, torch.arange(1, 11))


@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_the_largest_number_that_is_drawn_is_a_filled_row(count, monkeypatch):
    memory = Memory(room=2 * count)
    memory.add(Batch(torch.zeros(count, 3, 1, 1, dtype=torch.uint8), torch.arange(1, count + 1)))
    largest = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: largest)
    assert memory.sample(2, torch.Generator()).y.tolist() == [1, count]


def test_a_memory_gives_every_row_as_large_a_share(monkeypatch):
    """Numbers spread evenly over [0, 1) fall on every row equally often."""
    memory = Memory(room=10)
    memory.add(images(1, 5))
    even = torch.arange(1000, dtype=torch.float64) / 1000
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: even)
    assert memory.sample(1000, torch.Generator()).y.bincount().tolist() == [0, 200, 200, 200, 200, 200]


def test_a_memory_stays_where_it_is_and_earlier_batches_stay_as_they_are():
    memory = Memory(room=6)
    memory.add(images(1, 3))
    place = memory.pool.x.data_ptr()
    first = memory.batches[0].x.clone()
    memory.add(images(4, 3))
    assert memory.pool.x.data_ptr() == memory.batches[0].x.data_ptr() == place
    assert torch.equal(memory.batches[0].x, first)
    assert [batch.replayed for batch in memory.batches] == [3, 3]


def test_a_memory_is_neither_overfull_nor_sampled_empty():
    memory = Memory(room=4)
    assert memory.pool is None
    with pytest.raises(RuntimeError, match="sampled an empty memory"):
        memory.sample(1, torch.Generator())
    memory.add(images(1, 3))
    with pytest.raises(RuntimeError, match="a memory with room for 4 images was given 5"):
        memory.add(images(4, 2))
    assert memory.num_images == 3


def test_a_domain_smaller_than_its_share_of_the_memory_fills_less_of_it(classification):
    learner = classification.learner(Replay(), memory=100)
    classification.play(learner, num_domains=3)
    assert learner.memory.num_images == 3 * 24
    assert learner.memory.room == 300
