"""Mirrored images, and epochs of shuffled batches: every image once, and the same bits after any stop."""

import pytest
import torch

from metadr.benchmarks import make_recipe, steps_of
from metadr.core import Batch, Training
from metadr.engine.batches import Turns, mirrored
from metadr.errors import UserError
from metadr.parts import MetaDR, Replay
from metadr.run import run
from metadr.store import RunDirectory

# Mirroring.


def test_an_image_and_its_mask_are_flipped_together_half_of_the_time():
    x = torch.randint(256, (400, 3, 2, 5), dtype=torch.uint8)
    y = x[:, 0].long()
    flipped = mirrored(Batch(x, y, 7), torch.Generator().manual_seed(0), masks=True)
    turned = (flipped.x == x.flip(3)).flatten(1).all(1)
    assert torch.equal(flipped.x, torch.where(turned[:, None, None, None], x.flip(3), x))
    assert torch.equal(flipped.y, flipped.x[:, 0].long()) and flipped.replayed == 7
    assert 160 < turned.sum() < 240
    labels = mirrored(Batch(x, torch.arange(400)), torch.Generator().manual_seed(0), masks=False)
    assert torch.equal(labels.x, flipped.x) and torch.equal(labels.y, torch.arange(400))


def test_new_and_replayed_rows_of_inner_and_outer_batches_are_mirrored(toy, toys):
    learner = toy.learner(Replay(), MetaDR("identity"), mirror=True)
    toy.on_second_domain(learner)
    passes = toys.record_passes(learner)
    learner.steps(6)
    new = toy.benchmark.training.batch_size
    for role in ("inner", "clean", "recall", "adapt"):
        batches = [each.batch.x for each in passes if each.role == role]
        assert {len(x) for x in batches} == {2 * new}
        for domain, rows in ((toy.domains[1], slice(new)), (toy.domains[0], slice(new, None))):
            known = set(toys.pictures(domain.train.x))
            seen = torch.cat([x[rows] for x in batches])
            straight = [each in known for each in toys.pictures(seen)]
            turned = [each in known for each in toys.pictures(seen.flip(3))]
            assert all(a != b for a, b in zip(straight, turned, strict=True))
            assert 0.2 < sum(turned) / len(turned) < 0.8
    outer = [torch.cat([each.batch.x for each in passes if each.role == role]) for role in ("clean", "recall", "adapt")]
    assert torch.equal(outer[0], outer[1]) and torch.equal(outer[0], outer[2])  # one flip, before T
    assert set(toys.pictures(learner.memory.pool.x)) <= set(toys.pictures(toy.domains[0].train.x))  # kept as they are


def test_methods_of_one_seed_see_the_same_mirrored_shuffled_batches(toy, toys):
    batches = {}
    for name, parts in {"naive": (), "er": (Replay(),), "meta-dr": (MetaDR(),)}.items():
        learner = toy.learner(*parts, mirror=True, sampling="shuffled")
        toy.on_second_domain(learner)
        passes = toys.record_passes(learner)
        learner.steps(5)
        clean = [each.batch for each in passes if each.role == "clean"]
        batches[name] = torch.stack([batch.x[: toy.benchmark.training.batch_size] for batch in clean])
    assert torch.equal(batches["naive"], batches["er"]) and torch.equal(batches["naive"], batches["meta-dr"])


# Epochs.


def test_a_domain_that_ends_within_an_epoch_is_shuffled_anew_after_a_checkpoint():
    through, stopped = (Turns(10, 5, 2, torch.Generator().manual_seed(0)) for _ in range(2))
    for turns in (through, stopped):
        for _ in range(7):
            turns.next_step()
            turns.rows()
        turns.restart()
    resumed = Turns(10, 5, 2, torch.Generator())
    resumed.load({name: value.clone() for name, value in stopped.state().items()})
    resumed._rng.set_state(stopped._rng.get_state())
    for turns in (through, resumed):
        turns.next_step()
    assert torch.equal(through.rows(), resumed.rows())


def test_an_epoch_shows_every_image_at_most_once_in_an_order_of_its_own():
    turns = Turns(10, 3, 3, torch.Generator().manual_seed(0))
    epochs = []
    for _ in range(4):
        rows = []
        for _ in range(3):
            turns.next_step()
            rows.append(turns.rows())
        epochs.append(torch.cat(rows).tolist())
    assert all(len(set(rows)) == 9 and set(rows) <= set(range(10)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 4
    assert len({*range(10)} - set(epochs[0])) == 1  # the partial batch is dropped, another image each time or not


def test_shuffled_batches_of_a_learner_cover_the_domain_inner_ones_are_drawn(toy, toys):
    learner = toy.learner(MetaDR("identity"), sampling="shuffled")
    train = toy.domains[0].train
    learner.begin_domain(train, first=True)
    passes = toys.record_passes(learner)
    learner.steps(8)  # 24 images, 6 a batch: two epochs
    outer = [image.numpy().tobytes() for each in passes if each.role == "clean" for image in each.batch.x]
    everything = {image.numpy().tobytes() for image in train.x}
    assert set(outer[:24]) == set(outer[24:]) == everything and len(everything) == 24
    assert outer[:24] != outer[24:]
    inner = [image.numpy().tobytes() for each in passes if each.role == "inner" for image in each.batch.x]
    assert len(set(inner[:24])) < 24  # with replacement


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
def test_a_shuffled_learner_goes_on_from_any_step_to_the_same_bits(stop, toy, assert_goes_on):
    settings = {"sampling": "shuffled", "mirror": True}
    whole, half, rest = (toy.learner(MetaDR(), **settings) for _ in range(3))
    train = toy.domains[0].train
    for learner in (whole, half, rest):
        learner.begin_domain(train, first=True)
    assert_goes_on(whole, half, rest, stop)


def test_a_new_domain_begins_an_epoch_also_where_the_recorded_step_is_kept(toy, toys, monkeypatch):
    class Recording:
        def __init__(self, function, generators):
            assert learner.streams["shuffle"] not in list(generators)
            self.replay = function

    monkeypatch.setattr("metadr.engine.learner.Captured", Recording)
    learner, plain = (toy.learner(sampling="shuffled", optimizer="sgd") for _ in range(2))
    learner._capturing = True
    learner._new_optimizer = plain._new_optimizer = lambda lr: torch.optim.SGD(
        learner.network.params.values() if learner._capturing else (), lr=torch.tensor(lr)
    )
    passes = toys.record_passes(learner)
    learner.begin_domain(toy.domains[0].train, first=True)
    learner.steps(3)  # in the middle of an epoch
    learner.begin_domain(toy.domains[1].train, first=False)
    assert learner._captured is not None
    learner.steps(4)
    seen = {image.numpy().tobytes() for each in passes[3:] for image in each.batch.x}
    assert seen == {image.numpy().tobytes() for image in toy.domains[1].train.x}


def test_steps_of_epochs(registered_toys):
    training = Training(epochs=3, later_epochs=2, batch_size=5)
    assert training.steps_on(14, first=True) == 6 and training.steps_on(14, first=False) == 4
    assert Training(epochs=3, batch_size=5).steps_on(14, first=False) == 6
    assert Training(steps=7).steps_on(3, first=True) == 7
    recipe = make_recipe("toy-masks", epochs=2, later_epochs=1, batch_size=5)
    assert steps_of(recipe) == (8, 4, 4)
    assert steps_of(make_recipe("toy-masks", "oracle-cumulative", epochs=2, later_epochs=1, batch_size=5)) == (8, 9, 14)
    assert steps_of(make_recipe("toy-masks", epochs=2, batch_size=5, limit=10)) == (4, 4, 4)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"later_epochs": 3}, "The 'later_epochs' parameter of Training counts epochs, and 'epochs' is none."),
        ({"kept_epoch": "best"}, "The 'kept_epoch' parameter of Training counts epochs"),
        ({"epochs": 0}, "must be a whole number >= 1, or none"),
        ({"sampling": "sorted"}, "must be one of 'uniform', 'shuffled'"),
    ],
)
def test_settings_that_do_not_fit_together(fields, sentence):
    with pytest.raises(UserError, match=sentence):
        Training(**fields)


@pytest.mark.parametrize("fields", [{"epochs": 1}, {"sampling": "shuffled"}])
def test_a_domain_smaller_than_a_batch_has_no_epoch(fields, registered_toys, tmp_path):
    recipe = make_recipe("toy-masks", batch_size=30, **fields)
    with pytest.raises(UserError, match="24 training images make no whole batch of 30"):
        run(recipe, out=tmp_path, device="cpu")


def test_a_run_of_epochs_takes_as_many_steps(registered_toys, tmp_path):
    seen = []
    recipe = make_recipe("toy-masks", "dr", epochs=2, later_epochs=1, sampling="shuffled", mirror=True)
    run(recipe, out=tmp_path, device="cpu", watch=seen.append)
    assert {now.stage: now.num_steps for now in seen} == {0: 8, 1: 4, 2: 4}
    assert RunDirectory(tmp_path, recipe, 0).read("done.json")["steps"] == 16
