"""Masks beside plain loops and Pillow: Dice, pixels that are ignored, scores, rotation."""

import numpy as np
import pytest
import torch
from PIL import Image

from metadr.core import Split, Task
from metadr.engine.network import Network
from metadr.evaluate import confusion, details, score, suite_iou, tell
from metadr.parts import MetaDR, Randomize
from metadr.transforms import draw, get_set

TASK = Task(num_classes=4, score="miou", ignore_index=255)


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
