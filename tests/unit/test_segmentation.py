"""Training on masks: Dice, mirroring, epochs of shuffled batches, the best epoch, U-Nets and their first weights."""

import dataclasses
import importlib.util
import itertools
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

from metadr import models
from metadr.benchmarks import get_benchmark, make_recipe, steps_of
from metadr.core import Batch, Domain, Split, Task, Training
from metadr.domains import load_domains, read_domains
from metadr.engine.batches import Turns, mirrored
from metadr.engine.network import Network
from metadr.errors import UserError
from metadr.evaluate import confusion, details, score, suite_iou, tell
from metadr.models.unet import Padded, UNet
from metadr.models.weights import fill
from metadr.parts import MetaDR, Randomize, Replay
from metadr.predictions import GAP, TEXT, enlarged, lay_out, prediction_sheet, spread_over, titles_of
from metadr.run import run
from metadr.store import RunDirectory, description, recipe_from_identity
from metadr.transforms import draw, get_set
from metadr.vkitti2_classes import CLASSES

TASK = Task(num_classes=4, score="miou", ignore_index=255)
needs_smp = pytest.mark.skipif(
    importlib.util.find_spec("segmentation_models_pytorch") is None, reason="needs the extra 'seg'"
)


def batch_of_masks(dtype: torch.dtype = torch.uint8) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    y = torch.randint(3, (3, 5, 6)).to(dtype)  # class 3 does not occur
    y[:, 0] = 255
    return logits, y


# The loss.


def test_dice_equals_a_plain_loop():
    logits, y = batch_of_masks()
    chances, kept = logits.softmax(1).movedim(1, -1)[y != 255], y[y != 255]
    losses = []
    for label in kept.unique().tolist():
        true = (kept == label).double()
        losses.append(1 - 2 * (chances[:, label] * true).sum() / (chances[:, label].sum() + true.sum()))
    assert len(losses) == 3
    torch.testing.assert_close(TASK.loss(logits, y, "dice"), torch.stack(losses).mean())


@pytest.mark.parametrize("kind", ["cross_entropy", "dice"])
def test_masks_of_bytes_give_what_masks_of_whole_numbers_give(kind):
    logits, y = batch_of_masks()
    assert torch.equal(TASK.loss(logits, y, kind), TASK.loss(logits, y.long(), kind))
    assert torch.equal(TASK.confusion(logits, y), TASK.confusion(logits, y.long()))


@pytest.mark.parametrize("kind", ["cross_entropy", "dice"])
def test_ignored_pixels_are_in_no_loss_and_all_ignored_is_zero_without_a_slope(kind):
    logits, y = batch_of_masks()
    logits.requires_grad_()
    other = torch.where((y == 255)[:, None], torch.randn_like(logits), logits)
    assert torch.equal(TASK.loss(logits, y, kind), TASK.loss(other, y, kind))
    (slope,) = torch.autograd.grad(TASK.loss(logits, y, kind), logits)
    assert not slope.movedim(1, -1)[y == 255].any() and slope.movedim(1, -1)[y != 255].any()
    nothing = TASK.loss(logits, torch.full_like(y, 255), kind)
    (slope,) = torch.autograd.grad(nothing, logits)
    assert nothing == 0 and not slope.any()


def test_all_ignored_batches_train_without_a_nan(segmentation):
    for parts in ((), (MetaDR(),), (Randomize("psi4"),)):
        for kind in ("cross_entropy", "dice"):
            learner = segmentation.learner(*parts, loss=kind)
            before = {name: value.clone() for name, value in learner.network.params.items()}
            train = segmentation.domains[0].train
            learner.begin_domain(Split(train.x, torch.full_like(train.y, 255)), first=True)
            rows, finite = learner.steps(2).read()
            assert finite and all(row["loss"] == 0 for row in rows)
            assert all(torch.equal(value, before[name]) for name, value in learner.network.params.items())


def test_dice_is_what_is_minimised_where_it_is_asked_for(segmentation, toys):
    learner = segmentation.learner(loss="dice")
    passes = toys.record_passes(learner)
    segmentation.play(learner, num_domains=1, num_steps=1)
    (seen,) = passes
    network = Network(segmentation.module(), segmentation.task)
    logits = network.logits(seen.batch.x, seen.params, role="beside")
    torch.testing.assert_close(seen.loss, segmentation.task.loss(logits, seen.batch.y, "dice").detach())


# Scores.


def test_details_are_those_of_one_matrix():
    counts = torch.tensor([[3, 1, 0, 0], [2, 4, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]])
    found = details(TASK, counts)
    assert found["iou"] == pytest.approx([100 * 3 / 6, 100 * 4 / 7, None, 0.0])
    assert found["micro"] == pytest.approx(100 * 7 / (11 + 11 - 7))
    assert score(TASK, counts) == pytest.approx((50 + 400 / 7 + 0) / 3)
    assert found["confusion"] == counts.tolist()
    assert details(Task(num_classes=4), counts) == {}


@pytest.mark.parametrize("group", [1, 5, 12, 50])
def test_the_suite_s_metric_equals_a_plain_loop(group, segmentation, monkeypatch):
    network, test = Network(segmentation.module(), segmentation.task), segmentation.domains[0].test
    monkeypatch.setattr("metadr.evaluate.MASK_PIXELS", 7 * 16 * 16)  # tested seven at a time, whatever is averaged over
    with torch.no_grad():
        chances = (4 * network.logits(test.x)).softmax(1)
    monkeypatch.setattr(network, "logits", lambda x, original=network.logits: 4 * original(x))  # some above 0.5
    values = []
    for start in range(0, 12, group):
        hits = union = 0
        for image in range(start, min(start + group, 12)):
            for label in range(4):
                true = test.y[image] == label
                said = (chances[image, label] > 0.5) & (test.y[image] != 255)
                hits, union = hits + int((true & said).sum()), union + int((true | said).sum())
        values.append(100 * hits / union)
    found = suite_iou(list(tell(network, test)), group=group)
    assert found == pytest.approx(sum(values) / len(values)) and 0 < found < 100


def test_large_images_are_tested_a_few_at_a_time(segmentation, monkeypatch):
    network = Network(segmentation.module(), segmentation.task)
    sizes = []
    original = network.logits
    network.logits = lambda x: sizes.append(len(x)) or original(x)
    test = segmentation.domains[0].test
    whole = confusion(network, test)
    monkeypatch.setattr("metadr.evaluate.MASK_PIXELS", 5 * 16 * 16 + 1)
    assert torch.equal(confusion(network, test), whole)
    assert sizes == [12, 5, 5, 2]


# Transformations.


@pytest.mark.parametrize("strategy", ["gather", "masked"])
def test_a_rotation_moves_a_mask_of_bytes_as_pillow_does_and_uncovers_ignored_pixels(strategy):
    drawn = draw(get_set("rotate:30:30:1"), 2, torch.Generator().manual_seed(0), per="batch", pick="operation")
    masks = torch.randint(14, (2, 20, 34), dtype=torch.uint8)
    images = masks[:, None].expand(-1, 3, -1, -1).contiguous()
    x, y = drawn.apply(images, None, masks, 255, strategy=strategy)
    assert y.dtype == torch.uint8
    for row in range(2):
        turned = Image.fromarray(masks[row].numpy())
        for level in drawn.level[:, row].tolist():
            turned = turned.rotate(level, fillcolor=255)
        assert np.array_equal(y[row].numpy(), np.asarray(turned))
        seen = y[row] != 255
        assert torch.equal(x[row, 0][seen], y[row][seen]) and not x[row, 0][~seen].any() and (~seen).any()


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


def bytes_of(images) -> list[bytes]:
    return [image.numpy().tobytes() for image in images]


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
            known = set(bytes_of(domain.train.x))
            seen = torch.cat([x[rows] for x in batches])
            straight = [each in known for each in bytes_of(seen)]
            turned = [each in known for each in bytes_of(seen.flip(3))]
            assert all(a != b for a, b in zip(straight, turned, strict=True))
            assert 0.2 < sum(turned) / len(turned) < 0.8
    outer = [torch.cat([each.batch.x for each in passes if each.role == role]) for role in ("clean", "recall", "adapt")]
    assert torch.equal(outer[0], outer[1]) and torch.equal(outer[0], outer[2])  # one flip, before T
    assert set(bytes_of(learner.memory.pool.x)) <= set(bytes_of(toy.domains[0].train.x))  # kept as they are


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
def test_a_shuffled_learner_goes_on_from_any_step_to_the_same_bits(stop, toy, toys):
    settings = {"sampling": "shuffled", "mirror": True}
    whole, half, rest = (toy.learner(MetaDR(), **settings) for _ in range(3))
    train = toy.domains[0].train
    for learner in (whole, half, rest):
        learner.begin_domain(train, first=True)
    whole.steps(9)
    half.steps(stop)
    rest.load(toys.clone_state(half))
    rest.steps(9 - stop)
    toys.assert_same_bits(rest.state(), whole.state())


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


# Images that stay on the host.


def streamed_passes(toy, toys, learner, num_steps: int) -> dict[str, list[bytes]]:
    """The images of every pass so far; kept as bytes, since the next step's are written over them."""
    seen: dict[str, list[bytes]] = {}
    original = learner.network.loss

    def loss(batch, params=None, *, role):
        seen.setdefault(role, []).extend(bytes_of(batch.x))
        return original(batch, params, role=role)

    learner.network.loss = loss
    learner.steps(num_steps)
    return seen


def test_streamed_epochs_cover_the_domain_and_inner_batches_are_drawn(toy, toys):
    learner = toy.learner(MetaDR("identity"), stream=True, sampling="shuffled")
    train = toy.domains[0].train
    learner.begin_domain(train, first=True)
    seen = streamed_passes(toy, toys, learner, 8)
    everything = set(bytes_of(train.x))
    for epoch in (seen["clean"][:24], seen["clean"][24:]):
        assert set(epoch) == everything and len(epoch) == 24
    assert seen["clean"][:24] != seen["clean"][24:]
    assert len(seen["inner"]) == 48 and len(set(seen["inner"][:24])) < 24 and set(seen["inner"]) <= everything


def test_streamed_rows_carry_their_labels_and_are_drawn_uniformly(toy):
    learner = toy.learner(stream=True)
    train = toy.domains[0].train
    learner.begin_domain(train, first=True)
    labels = dict(zip(bytes_of(train.x), train.y, strict=True))
    counts = dict.fromkeys(labels, 0)
    streamed = learner._streamed
    for _ in range(200):
        streamed.next_step()
        streamed.begin()
        x, y, _ = streamed.batch()
        for image, label in zip(bytes_of(x), y, strict=True):
            assert torch.equal(labels[image], label)
            counts[image] += 1
    assert min(counts.values()) > 25 and max(counts.values()) < 80  # 50 each, on average


@pytest.mark.parametrize("sampling", ["uniform", "shuffled"])
@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_streamed_learner_goes_on_from_any_step_to_the_same_bits(stop, sampling, toy, toys):
    settings = {"sampling": sampling, "mirror": True, "stream": True}
    whole, half, rest = (toy.learner(Replay(), MetaDR(), **settings) for _ in range(3))
    for learner in (whole, half):
        toy.on_second_domain(learner, num_steps=3)
    rest.begin_domain(toy.domains[1].train, first=False)
    whole.steps(9)
    half.steps(stop)
    rest.load(toys.clone_state(half))
    rest.steps(9 - stop)
    toys.assert_same_bits(rest.state(), whole.state())


def test_a_recorded_streamed_step_is_kept_for_a_domain_with_other_images(toy, toys, monkeypatch):
    class Recording:
        def __init__(self, function, generators):
            self.replay = function

    monkeypatch.setattr("metadr.engine.learner.Captured", Recording)
    learner, plain = (toy.learner(Randomize("identity"), stream=True, optimizer="sgd") for _ in range(2))
    for each in (learner, plain):
        each._new_optimizer = lambda lr, each=each: torch.optim.SGD(each.network.params.values(), lr=torch.tensor(lr))
    learner._capturing = True
    for domain, num_images in zip(toy.domains[:2], (24, 20), strict=True):
        before = domain.train.x.clone()
        for each in (learner, plain):
            each.begin_domain(domain.train.first(num_images), first=True)
        assert (learner._captured is not None) == (num_images == 20)
        learner.steps(3)
        plain.steps(3)
        assert torch.equal(domain.train.x, before)
    toys.assert_same_bits(learner.state(), plain.state())


@pytest.mark.parametrize("method", ["naive", "dr+er+ewc+gem+l2+meta-dr", "oracle-all"])
def test_every_method_runs_on_streamed_images(method, registered_toys, tmp_path):
    recipe = make_recipe("toy-masks", method, tiny=True, stream=True, mirror=True)
    result = run(recipe, out=tmp_path, device="cpu")
    assert len(result.rows) == 12 and all(0 <= row["value"] <= 100 for row in result.rows)
    resident = run(make_recipe("toy-masks", method, tiny=True, mirror=True), out=tmp_path, device="cpu")
    assert result.rows[0] == resident.rows[0]  # untrained, it is the same network on the same images


def test_images_that_do_not_fit_on_the_device_are_told_of(registered_toys, monkeypatch, tmp_path):
    def full(split, device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Split, "to", full)
    with pytest.raises(UserError, match=r"images of domain 'red'.*do not fit on cpu.*--set stream=true"):
        run(make_recipe("toy-masks"), out=tmp_path, device="cpu")


def test_images_on_the_device_give_the_bits_of_those_on_the_host(toy, toys):
    learners = [toy.learner(Replay(), MetaDR(), stream="auto", sampling="shuffled", mirror=True) for _ in range(2)]
    for learner in learners:
        toy.on_second_domain(learner, num_steps=5)
    assert not learners[0]._streamed._on_device
    learners[1]._streamed._on_device = True  # gathered there, without workers
    for learner in learners:
        learner.steps(6)
    toys.assert_same_bits(learners[1].state(), learners[0].state())


def test_auto_is_the_run_that_streams_wherever_its_images_lie(registered_toys):
    drawn_there, streamed, auto = (make_recipe("toy-masks", stream=value) for value in (False, True, "auto"))
    assert description(auto) == description(streamed) != description(drawn_there)
    assert make_recipe("toy-masks", stream="auto") == auto
    with pytest.raises(UserError, match="The 'stream' parameter of Training must be true or false or one of 'auto'"):
        make_recipe("toy-masks", stream="perhaps")


def test_images_stay_on_the_host_where_they_would_take_half_of_what_is_free(registered_toys, monkeypatch):
    device = torch.device("meta")
    recipe = make_recipe("toy-masks", stream="auto")
    size = sum(tensor.nbytes for domain in read_domains(recipe) for split in domain[1:3] for tensor in split)

    def places(recipe, free):
        monkeypatch.setattr("metadr.domains.free_bytes", lambda device: free)
        loaded = load_domains(recipe, device)
        return loaded, {each.domain.train.x.device.type for each in loaded}

    assert places(recipe, 2 * size - 1)[1] == {"cpu"}
    held, where = places(recipe, 2 * size)
    assert where == {"meta"}
    assert places(recipe, 0)[1] == {"meta"}  # another run holds them: nothing more is needed
    del held
    assert places(recipe, 0)[1] == {"cpu"}
    assert places(make_recipe("toy-masks", stream=True), 9 * size)[1] == {"cpu"}
    assert places(make_recipe("toy-masks"), 0)[1] == {"meta"}


# The best epoch.


@pytest.fixture
def validated(registered_toys, monkeypatch):
    """The toy masks with the last training images held out."""
    from metadr import benchmarks

    toy = registered_toys["segmentation"]

    def load(name: str) -> Domain:
        whole = toy.benchmark.load(name)
        return whole._replace(train=whole.train.first(18), val=Split(whole.train.x[18:], whole.train.y[18:]))

    monkeypatch.setitem(benchmarks.BENCHMARKS, "toy-masks", dataclasses.replace(toy.benchmark, load=load))
    return toy


EPOCHS = {"epochs": 5, "later_epochs": 3, "sampling": "shuffled", "kept_epoch": "best"}


def test_the_best_epoch_on_the_images_held_out_goes_on(validated, tmp_path):
    """Runs of one epoch, of two and so on are the beginnings of one: their best on val is what is kept."""
    order = ("red",)
    best = run(make_recipe("toy-masks", order=order, **EPOCHS, lr=0.05), out=tmp_path, device="cpu")
    values, finals = [], []
    held_out = benchmarks_load("red").val
    for epochs in range(1, 6):
        fields = {**EPOCHS, "epochs": epochs, "kept_epoch": "last", "lr": 0.05}
        recipe = make_recipe("toy-masks", order=order, **fields)
        result = run(recipe, out=tmp_path, device="cpu")
        tensors = RunDirectory(tmp_path, recipe, 0).load().tensors
        network = Network(validated.module(), validated.task)
        network.load({name.removeprefix("model/"): value for name, value in tensors.items() if name[:6] == "model/"})
        values.append(score(network.task, confusion(network, held_out)))
        finals.append(result.rows[-1]["value"])
    chosen = values.index(max(values))
    assert best.rows[-1]["epoch"] == chosen + 1 and best.rows[-1]["value"] == finals[chosen]
    assert "epoch" not in best.rows[0]
    assert len(set(values)) > 1  # there was something to choose


def benchmarks_load(name: str) -> Domain:
    from metadr import benchmarks

    return benchmarks.BENCHMARKS["toy-masks"].load(name)


@pytest.mark.parametrize("after", [2, 3])
def test_a_run_of_best_epochs_goes_on_to_the_same_bits(after, validated, tmp_path, monkeypatch, toys):
    monkeypatch.setattr("metadr.sequence.CHUNK", 2)
    recipe = make_recipe("toy-masks", "dr", **EPOCHS, order=("red", "green"))
    whole = run(recipe, out=tmp_path / "whole", device="cpu")

    class Enough(Exception):
        pass

    looks = itertools.count(1)

    def watch(now) -> None:
        if next(looks) == after:
            raise Enough

    with pytest.raises(Enough):
        run(recipe, out=tmp_path / "cut", device="cpu", watch=watch)
    cut = run(recipe, out=tmp_path / "cut", device="cpu")
    assert cut.rows == whole.rows
    loaded = [RunDirectory(tmp_path / name, recipe, 0).load().tensors for name in ("whole", "cut")]
    states = [dict(sorted(tensors.items())) for tensors in loaded]
    toys.assert_same_bits(*states)
    assert not [name for name in states[0] if name.startswith("best/")]  # gone with the domain


def test_the_best_epoch_needs_images_held_out(registered_toys, tmp_path):
    with pytest.raises(UserError, match=r"kept_epoch=best chooses by images held out.*'red' has none"):
        run(make_recipe("toy-masks", **EPOCHS), out=tmp_path, device="cpu")


# Networks.


@pytest.mark.parametrize("name", ["tiny_unet", "small_unet"])
@pytest.mark.parametrize("size", [(32, 64), (33, 47), (5, 3)])
def test_a_unet_takes_images_of_any_size(name, size):
    module = models.build(name, 14).eval()
    assert module(torch.rand(2, 3, *size)).shape == (2, 14, *size)


def test_what_is_added_to_an_image_is_cut_off_again():
    class Sides(torch.nn.Module):
        def forward(self, x):
            assert x.shape[2:] == (32, 64)
            assert not x[:, :, 17:].any() and not x[:, :, :, 33:].any()
            return x * 2

    x = torch.rand(2, 3, 17, 33)
    assert torch.equal(Padded(Sides(), 32)(x), x * 2)
    exact = torch.rand(1, 3, 64, 32)
    assert Padded(torch.nn.Identity(), 32)(exact).data_ptr() == exact.data_ptr()


def test_a_unet_has_a_second_derivative():
    net = UNet((2, 3), 2).double()
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    y = torch.randint(2, (2, 4, 4))
    weight = net.first[0].weight
    rest = {name: value for name, value in net.named_parameters() if name != "first.0.weight"}

    def slope(value):
        params = {**rest, "first.0.weight": value}
        logits = torch.func.functional_call(net, params, (x,))
        return torch.autograd.grad(F.cross_entropy(logits, y), value, create_graph=True)[0]

    # A kink of a ReLU within the step would make the two differ: the seed is fixed.
    torch.autograd.gradcheck(slope, (weight.detach().requires_grad_(),), eps=1e-7, atol=1e-5)


@needs_smp
@pytest.mark.parametrize("name", ["unet_resnet34", "unet_resnet50_v1"])
def test_an_encoder_begins_with_given_weights_and_the_rest_is_drawn(name, tmp_path):
    import torchvision

    source = getattr(torchvision.models, name.split("_")[1])(weights=None)
    state = {key: value for key, value in source.state_dict().items() if not key.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "weights.safetensors")
    built = models.build(name, 14, str(tmp_path / "weights.safetensors"))
    inside = built.inner.encoder.state_dict()
    assert all(torch.equal(inside[key], value) for key, value in state.items() if not key.startswith("fc."))
    assert built.eval()(torch.rand(1, 3, 33, 40)).shape == (1, 14, 33, 40)


@needs_smp
def test_resnet50_v1_is_torchvision_s_with_its_strides_moved():
    """What the encoder makes of an image equals torchvision's network with the strides of the first ResNet-50."""
    import torchvision

    net = torchvision.models.resnet50(weights=None).eval()
    for stage in (net.layer2, net.layer3, net.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    built = models.build("unet_resnet50_v1", 14).eval()
    fill(built.inner.encoder, net.state_dict(), head="fc", model="it", origin="it")
    x = torch.rand(1, 3, 32, 64)
    with torch.no_grad():
        deepest = built.inner.encoder(x)[-1]
        stem = net.maxpool(net.relu(net.bn1(net.conv1(x))))
        wanted = net.layer4(net.layer3(net.layer2(net.layer1(stem))))
    torch.testing.assert_close(deepest, wanted)


@needs_smp
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: state.pop("conv1.weight"), "do not fit model 'unet_resnet18': 'conv1.weight' is missing"),
        (lambda state: state.update(extra=torch.zeros(1)), "it has 'extra', which the network has not"),
        (lambda state: state.update({"conv1.weight": torch.zeros(1)}), "'conv1.weight' is 1 instead of 64x3x7x7"),
    ],
)
def test_weights_of_another_network_are_refused(change, sentence, tmp_path):
    state = models.build("unet_resnet18", 3).inner.encoder.state_dict()
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=sentence):
        models.build("unet_resnet18", 3, str(tmp_path / "w.safetensors"))


@needs_smp
def test_an_encoder_s_weights_are_published_or_from_a_file_of_the_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"No ImageNet weights are published for model 'resnet50_v1'"):
        models.build("unet_resnet50_v1", 3, "imagenet")

    def refuse(*arguments, **options):
        raise OSError("no way out")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    models.libraries.imagenet_weights.cache_clear()
    with pytest.raises(UserError, match=r"'resnet18' cannot be downloaded \(no way out\).*--set weights=none"):
        models.build("unet_resnet18", 3, "imagenet")
    place = tmp_path / "weights" / "resnet18.safetensors"
    with pytest.raises(UserError, match=rf"Name it with --weights FILE \(safetensors\), or put it in {place}"):
        models.build("unet_resnet18", 3, "file")
    state = models.build("unet_resnet18", 3).inner.encoder.state_dict()
    place.parent.mkdir()
    save_file(state, place)
    built = models.build("unet_resnet18", 3, "file")
    assert torch.equal(built.inner.encoder.conv1.weight, state["conv1.weight"])
    assert models.content_of("unet_resnet18", "file") == models.content_of("resnet18", str(place)) != ""


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    with pytest.raises(UserError, match=r"pip install 'metadr\[seg\]', or use --model small_unet"):
        models.build("unet_resnet34", 14)


# Pictures of what runs say.


def test_a_sheet_shows_inputs_truths_and_what_each_run_says(streets, tmp_path):
    order = ("scene02-clone", "scene01-fog")
    paths = []
    for method in ("naive", "dr"):
        recipe = make_recipe("vkitti2-rendered", method, tiny=True, order=order)
        paths.append(run(recipe, out=tmp_path, device="cpu").path)
    sheet = prediction_sheet(paths, num_images=1, device="cpu")
    pixels = np.asarray(sheet)
    domain = get_benchmark("vkitti2-rendered").load("scene02-clone")
    times = 4  # frames of 64x32 as 256x128
    wide, line = 64 * times + GAP, TEXT + GAP
    below = GAP + line + 2 * (32 * times + line)
    assert sheet.width == GAP + 4 * wide and sheet.height > below + line
    shown = {tuple(colour) for colour in pixels[below:].reshape(-1, 3).tolist()}
    assert shown >= {colour for _, colour in CLASSES}
    row = domain.test.num_images // 2

    def shown_at(left: int) -> np.ndarray:
        """A picture of the first row, in its own size: every pixel is a square."""
        picture = pixels[GAP + line :, left:][: 32 * times, : 64 * times]
        squares = picture.reshape(32, times, 64, times, 3)
        assert (squares == squares[:, :1, :, :1]).all()
        return squares[:, 0, :, 0]

    assert np.array_equal(shown_at(GAP), domain.test.x[row].permute(1, 2, 0).numpy())
    colours = np.array([*(colour for _, colour in CLASSES[:-1]), *[(0, 0, 0)] * 242], np.uint8)
    assert np.array_equal(shown_at(GAP + wide), colours[domain.test.y[row].numpy()])
    recipe = make_recipe("vkitti2-rendered", "dr", tiny=True, order=order)
    tensors = RunDirectory(tmp_path, recipe, 0).load().tensors
    network = Network(models.build("tiny_unet", 14), get_benchmark("vkitti2-rendered").task, scaling="imagenet")
    network.load({name.removeprefix("model/"): value for name, value in tensors.items() if name[:6] == "model/"})
    said = network.logits(domain.test.x[row : row + 1]).argmax(1)[0].numpy()
    assert np.array_equal(shown_at(GAP + 3 * wide), colours[said])


def test_frames_that_are_large_enough_are_shown_as_they_are():
    sizes = {256: 1, 416: 1, 255: 2, 208: 2, 104: 3, 16: 16}
    for width, times in sizes.items():
        (picture,) = enlarged({("fog", 0): [Image.new("RGB", (width, 8))]})[("fog", 0)]
        assert picture.size == (times * width, times * 8)


def test_runs_of_one_method_are_told_apart_on_a_sheet(registered_toys, tmp_path):
    def runs(*settings):
        for method, seed, fields in settings:
            recipe = make_recipe("toy-masks", method, tiny=True, **fields)
            directory = RunDirectory(tmp_path, recipe, seed)
            yield RunDirectory.at(directory.path, directory.identity), recipe_from_identity(directory.identity)

    usual = get_benchmark("toy-masks").training.model
    other = {"model": "tiny_unet"}
    assert titles_of([*runs(("naive", 0, {}), ("dr", 0, other))]) == ["naive", "dr"]
    two = [("naive", 0, {}), ("naive", 0, other), ("er", 0, {"memory_per_domain": 3})]
    assert titles_of([*runs(*two)]) == [f"naive (model {usual})", "naive (model tiny_unet)", "er"]
    assert titles_of([*runs(("dr", 1, {}), ("dr", 2, {}))]) == ["dr (seed 1)", "dr (seed 2)"]
    weighed = [*runs(("naive", 0, {}), ("naive", 0, {}))]
    other_file = {**weighed[1][0].identity, "data": "weights of another file"}
    weighed[1] = (RunDirectory.at(tmp_path, other_file), weighed[1][1])
    keys = [directory.key for directory, _ in weighed]
    assert keys[0] != keys[1] and titles_of(weighed) == [f"naive (run {key})" for key in keys]


def test_a_sheet_has_room_for_its_titles_and_what_its_colours_mean():
    picture, colours = Image.new("RGB", (60, 20)), {"Road": (1, 2, 3), "ignored": (0, 0, 0)}
    short, long, word = (
        lay_out([title], {"fog": [picture]}, colours) for title in ("naive", "naive (seed 1)", "n" * 40)
    )
    line = TEXT + GAP
    assert short.size == (60 + 2 * GAP, 3 * GAP + line + (20 + line) + 2 * line)  # two names, a line each
    assert long.size == (short.width, short.height + line)
    assert word.width > 40 * 5 and word.height == short.height - line  # wide enough for both names
    legend = np.asarray(short)[-GAP - 2 * line : -GAP].reshape(-1, 3).tolist()
    assert [1, 2, 3] in legend and [0, 0, 0] in legend


def test_sheets_that_cannot_be_made(registered_toys, tmp_path):
    masks = [run(make_recipe(f"toy-masks/{each}", tiny=True), out=tmp_path, device="cpu") for each in ("there", "back")]
    labels = run(make_recipe("toy-shapes", tiny=True), out=tmp_path, device="cpu")
    for runs, sentence in (
        ([labels.path], "is a run on labels; only predictions of masks"),
        ([each.path for each in masks], "is a run on blue, green, red, the runs before it are on others"),
        ([tmp_path], "No finished run in"),
    ):
        with pytest.raises(UserError, match=sentence):
            prediction_sheet(runs, device="cpu")
    assert prediction_sheet([masks[0].path], num_images=3, device="cpu").size[1] > 9 * 16


@pytest.mark.parametrize(("count", "rows"), [(1, [6]), (2, [3, 9]), (20, list(range(12)))])
def test_images_are_spread_over_a_split(count, rows, segmentation):
    assert spread_over(segmentation.domains[0].test, count) == rows
