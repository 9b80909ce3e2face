"""Scores and summaries against hand-made matrices, plain loops and scikit-learn."""

import copy

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, confusion_matrix, jaccard_score
from torch import Tensor, nn

from metadr.core import Domain, Split, Task
from metadr.engine.network import Network
from metadr.errors import UserError
from metadr.evaluate import confusion, score, summarise

LABELS = Task(num_classes=4)
MASKS = Task(num_classes=4, score="miou")


class Painted(nn.Module):
    """Predicts, for every pixel (or for the first one), the class that its red channel names."""

    def __init__(self, num_classes: int, *, pixels: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.num_classes, self.pixels = num_classes, pixels

    def forward(self, x: Tensor) -> Tensor:
        named = (x[:, 0] * 255).round().long()
        named = named if self.pixels else named[:, 0, 0]
        return self.weight * nn.functional.one_hot(named, self.num_classes).movedim(-1, 1).to(x.dtype)


def painted(task: Task, predicted: Tensor, true: Tensor) -> tuple[Network, Split]:
    """A network and a split on which it predicts exactly this."""
    x = torch.zeros(len(true), 3, 5, 7, dtype=torch.uint8)
    x[:, 0] = predicted.to(torch.uint8) if task.on_masks else predicted.to(torch.uint8)[:, None, None]
    return Network(Painted(task.num_classes, pixels=task.on_masks), task), Split(x, true)


def random_masks(seed: int, num_images: int = 11, classes: tuple[int, ...] = (0, 1, 2, 3)) -> tuple[Tensor, Tensor]:
    """Predictions of four classes, and truths of the given ones with a fifth of the pixels ignored."""
    rng = torch.Generator().manual_seed(seed)
    predicted = torch.randint(4, (num_images, 5, 7), generator=rng)
    true = torch.tensor(classes)[torch.randint(len(classes), (num_images, 5, 7), generator=rng)]
    return predicted, true.masked_fill(torch.rand(true.shape, generator=rng) < 0.2, 255)


def counted(predicted: Tensor, true: Tensor) -> list[list[int]]:
    counts = [[0] * 4 for _ in range(4)]
    for guess, truth in zip(predicted.flatten().tolist(), true.flatten().tolist(), strict=True):
        if truth != 255:
            counts[truth][guess] += 1
    return counts


# Summaries.


def test_summary_of_a_hand_made_matrix():
    scores = [
        [10.0, 12.0, 8.0],  # untrained
        [90.0, 40.0, 20.0],
        [70.0, 80.0, 30.0],
        [60.0, 75.0, 85.0],
    ]
    summary = summarise(scores)
    assert summary.acc == pytest.approx((60 + 75 + 85) / 3)
    assert summary.bwt == pytest.approx(((60 - 90) + (75 - 80)) / 2)
    assert summary.fwt == pytest.approx(((40 - 12) + (30 - 8)) / 2)
    assert summary.forgetting == pytest.approx(((90 - 60) + (80 - 75)) / 2)
    assert summary.kept == pytest.approx((60 + 75) / 2)


def test_forgetting_is_measured_from_the_best_moment():
    """Where a later domain lifted an older one, forgetting is not minus the backward transfer."""
    scores = [[0.0, 0.0, 0.0], [50.0, 0.0, 0.0], [65.0, 40.0, 0.0], [45.0, 55.0, 70.0]]
    summary = summarise(scores)
    assert summary.bwt == pytest.approx(((45 - 50) + (55 - 40)) / 2)
    assert summary.forgetting == pytest.approx(((65 - 45) + (40 - 55)) / 2)


def test_forgetting_does_not_look_before_a_domain_was_seen_nor_at_the_end():
    scores = [[99.0, 99.0], [50.0, 99.0], [60.0, 70.0]]
    summary = summarise(scores)
    assert summary.forgetting == pytest.approx(50 - 60)
    assert summary.bwt == pytest.approx(10)
    assert summary.fwt == pytest.approx(0)
    assert summary.kept == pytest.approx(60)


def test_summary_of_one_domain():
    assert summarise([[10.0], [80.0]]) == (80.0, 0.0, 0.0, 0.0, 0.0)


def test_summary_agrees_with_plain_loops_on_random_matrices():
    rng = np.random.default_rng(0)
    for num_domains in range(2, 7):
        matrix = rng.uniform(0, 100, (num_domains + 1, num_domains))
        r = {(i, j): matrix[i, j - 1] for i in range(num_domains + 1) for j in range(1, num_domains + 1)}
        n = num_domains
        summary = summarise(matrix.tolist())
        past = range(1, n)
        assert summary.acc == pytest.approx(np.mean([r[n, j] for j in range(1, n + 1)]))
        assert summary.bwt == pytest.approx(np.mean([r[n, j] - r[j, j] for j in past]))
        assert summary.fwt == pytest.approx(np.mean([r[j - 1, j] - r[0, j] for j in range(2, n + 1)]))
        assert summary.forgetting == pytest.approx(np.mean([max(r[i, j] for i in range(j, n)) - r[n, j] for j in past]))
        assert summary.kept == pytest.approx(np.mean([r[n, j] for j in past]))


# Scores.


def test_accuracy_equals_scikit_learn():
    rng = torch.Generator().manual_seed(0)
    predicted, true = torch.randint(4, (2, 103), generator=rng)
    network, split = painted(LABELS, predicted, true)
    counts = confusion(network, split)
    assert counts.dtype == torch.int64
    assert counts.tolist() == confusion_matrix(true, predicted, labels=range(4)).tolist()
    assert score(LABELS, counts) == pytest.approx(100 * accuracy_score(true, predicted), abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_miou_equals_a_plain_loop_and_scikit_learn(seed):
    predicted, true = random_masks(seed)
    network, split = painted(MASKS, predicted, true)
    counts = confusion(network, split)
    assert counts.tolist() == counted(predicted, true)
    ious = []
    for label in range(4):
        ours, truth, kept = predicted == label, true == label, true != 255
        ious.append(float((ours & truth).sum() / ((ours | truth) & kept).sum()))
    assert score(MASKS, counts) == pytest.approx(100 * sum(ious) / 4, abs=1e-4)
    kept = true != 255
    theirs = jaccard_score(true[kept], predicted[kept], average="macro")
    assert score(MASKS, counts) == pytest.approx(100 * theirs, abs=1e-9)


def test_ignored_pixels_never_count():
    predicted, true = random_masks(0)
    network, split = painted(MASKS, predicted, true)
    changed = torch.where(true == 255, (predicted + 1) % 4, predicted)
    other, other_split = painted(MASKS, changed, true)
    assert not torch.equal(split.x, other_split.x)
    counts = confusion(network, split)
    assert torch.equal(counts, confusion(other, other_split))
    assert int(counts.sum()) == int((true != 255).sum())


def test_class_that_does_not_occur_is_left_out():
    """It has no IoU of its own, but pixels wrongly given to it are still missing elsewhere."""
    predicted, true = random_masks(0, classes=(0, 2))
    network, split = painted(MASKS, predicted, true)
    kept = true != 255
    theirs = jaccard_score(true[kept], predicted[kept], labels=[0, 2], average="macro")
    assert score(MASKS, confusion(network, split)) == pytest.approx(100 * theirs, abs=1e-9)
    perfect, perfect_split = painted(MASKS, true.clamp(max=3), true)
    assert score(MASKS, confusion(perfect, perfect_split)) == 100.0


@pytest.mark.parametrize("task", [LABELS, MASKS], ids=["labels", "masks"])
def test_confusion_does_not_depend_on_the_batch_size(task):
    predicted, true = random_masks(1, num_images=23)
    if not task.on_masks:
        predicted, true = predicted[:, 0, 0], true[:, 0, 0].clamp(max=3)
    network, split = painted(task, predicted, true)
    whole = confusion(network, split)
    for batch_size in (1, 5, 22, 23, 24, 1000):
        assert torch.equal(confusion(network, split, batch_size=batch_size), whole)


def test_testing_uses_and_keeps_running_statistics(toy, toys):
    """Also with real networks: one image at a time or all at once, and nothing moves."""
    learner = toy.learner()
    toy.play(learner, num_domains=1, num_steps=5)
    before = toys.clone_state(learner)
    split = toy.domains[1].test
    whole = confusion(learner.network, split)
    assert torch.equal(confusion(learner.network, split, batch_size=1), whole)
    expected = learner.network.module.eval()(split.x / 255).argmax(1)
    kept = split.y != 255
    assert int(whole.diagonal().sum()) == int((expected[kept] == split.y[kept]).sum())
    toys.assert_same_bits(learner.state(), before)


def test_testing_by_the_batch_s_own_statistics(toy, toys):
    """As a network in training mode says of six images at a time, and nothing moves."""
    learner = toy.learner(tested_by="batch", batch_size=6)
    toy.play(learner, num_domains=1, num_steps=5)
    before = toys.clone_state(learner)
    split = toy.domains[1].test
    counts = confusion(learner.network, split)
    toys.assert_same_bits(learner.state(), before)
    module = copy.deepcopy(learner.network.module).train()
    said = [module(images / 255) for images in split.x.split(6)]
    wanted = sum(learner.task.confusion(each, y) for each, y in zip(said, split.y.split(6), strict=True))
    assert torch.equal(counts, wanted)
    torch.testing.assert_close(learner.network.logits(split.x[:6]), said[0])
    assert not torch.allclose(module.eval()(split.x[:6] / 255), said[0], atol=1e-3)


class OwnForward(nn.BatchNorm2d):
    """Batch norm as a library may have it, which knows of one batch only."""

    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize(("norm", "apart"), [(nn.BatchNorm2d, False), (OwnForward, True)])
def test_batches_that_are_tested_at_once_do_not_meet(norm, apart):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 4))
    network = Network(copy.deepcopy(module), LABELS, tested_in=5)
    assert network.tested_apart is apart
    split = Split(torch.randint(256, (23, 3, 6, 6), dtype=torch.uint8), torch.randint(4, (23,)))
    wanted = sum(LABELS.confusion(module(x / 255), y) for x, y in zip(split.x.split(5), split.y.split(5), strict=True))
    assert torch.equal(confusion(network, split), wanted)


class Halves(nn.Module):
    """Cuts images in two and looks at each half by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm2d(3), nn.Linear(3, 4)

    def forward(self, x):
        halves = self.norm(torch.cat(x.split(3, dim=2), 1).view(-1, 3, 3, 6))
        return self.last(halves.mean((2, 3))).view(len(x), 2, 4).sum(1)


def test_batches_that_are_tested_at_once_may_be_cut_into_rows():
    torch.manual_seed(0)
    module = Halves()
    network = Network(copy.deepcopy(module), LABELS, tested_in=5)
    x = torch.randint(256, (23, 3, 6, 6), dtype=torch.uint8)
    torch.testing.assert_close(network.logits(x), torch.cat([module(part / 255) for part in x.split(5)]))


def test_a_batch_norm_without_running_statistics_tests_one_batch_at_a_time():
    module = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(108, 4))
    assert Network(module, LABELS, tested_in=5).tested_apart


def test_a_tested_batch_needs_more_than_one_value():
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 4))
    network = Network(module, LABELS, tested_in=5)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        network.logits(torch.zeros(11, 3, 6, 6, dtype=torch.uint8))


# Losses.


def test_loss_on_labels_is_the_mean_cross_entropy():
    logits, y = torch.randn(9, 4, dtype=torch.float64), torch.randint(4, (9,))
    expected = -torch.stack([logits[i].log_softmax(0)[y[i]] for i in range(9)]).mean()
    torch.testing.assert_close(LABELS.loss(logits, y), expected)


def test_loss_on_masks_is_the_mean_over_pixels_that_count():
    _, true = random_masks(2, num_images=3)
    logits = torch.randn(3, 4, 5, 7, dtype=torch.float64)
    places = [(n, i, j) for n, i, j in np.ndindex(3, 5, 7) if true[n, i, j] != 255]
    expected = -torch.stack([logits[n, :, i, j].log_softmax(0)[true[n, i, j]] for n, i, j in places]).mean()
    torch.testing.assert_close(MASKS.loss(logits, true), expected)


def test_loss_where_everything_is_ignored_is_zero_without_a_slope():
    logits = torch.randn(2, 4, 5, 7, requires_grad=True)
    loss = MASKS.loss(logits, torch.full((2, 5, 7), 255))
    (slope,) = torch.autograd.grad(loss, logits)
    assert loss == 0
    assert torch.equal(slope, torch.zeros_like(logits))


def test_gradient_at_ignored_pixels_is_zero():
    _, true = random_masks(3, num_images=2)
    logits = torch.randn(2, 4, 5, 7, requires_grad=True)
    (slope,) = torch.autograd.grad(MASKS.loss(logits, true), logits)
    touched = slope.abs().sum(1) > 0
    assert torch.equal(touched, true != 255)


def test_class_with_the_number_of_ignored_pixels_counts_among_labels():
    """Images have no ignored label: with more than 255 classes, 255 is one like any other."""
    task = Task(num_classes=300)
    y, logits = torch.tensor([255, 3]), torch.zeros(2, 300)
    logits[0, 255] = logits[1, 7] = 5.0
    assert task.check(Domain("many", Split(*blank(2, y)), Split(*blank(2, y)))).name == "many"
    counts = task.confusion(logits, y)
    assert int(counts.sum()) == 2
    assert score(task, counts) == 50.0
    torch.testing.assert_close(task.loss(logits, y), nn.functional.cross_entropy(logits, y))


def blank(num_images: int, y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros(num_images, 3, 4, 4, dtype=torch.uint8), y


@pytest.mark.parametrize(
    ("task", "train", "sentence"),
    [
        (LABELS, (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64)), "must be a uint8 tensor of shape"),
        (LABELS, (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)), "(N, 3, H, W)"),
        (LABELS, blank(2, torch.zeros(3, dtype=torch.int64)), "must be an int64 tensor of shape (2,)"),
        (LABELS, blank(2, torch.zeros(2, dtype=torch.int32)), "Got torch.int32"),
        (LABELS, blank(0, torch.zeros(0, dtype=torch.int64)), "no images"),
        (LABELS, blank(2, torch.tensor([0, 4])), "label 4 is out of range; with 4 classes labels are 0 to 3."),
        (LABELS, blank(2, torch.tensor([0, -1])), "label -1 is out of range"),
        (LABELS, blank(2, torch.tensor([0, 255])), "label 255 is out of range"),
        (MASKS, blank(2, torch.zeros(2, dtype=torch.int64)), "must be an int64 or uint8 tensor of shape (2, 4, 4)"),
        (MASKS, blank(1, torch.full((1, 4, 4), 9)), "0 to 3 or 255 (ignored)"),
    ],
)
def test_domain_that_does_not_fit_the_task_is_refused(task, train, sentence):
    good = blank(1, torch.zeros(1, 4, 4, dtype=torch.int64) if task.on_masks else torch.zeros(1, dtype=torch.int64))
    with pytest.raises(UserError) as error:
        task.check(Domain("d", Split(*train), Split(*good)))
    assert str(error.value).startswith("d/train: ")
    assert sentence in str(error.value)


def test_train_and_test_images_of_two_sizes_are_refused():
    y = torch.zeros(1, dtype=torch.int64)
    other = Split(torch.zeros(1, 3, 8, 4, dtype=torch.uint8), y)
    with pytest.raises(UserError, match="train images are 3x4x4 and test images 3x8x4; they must have one shape"):
        LABELS.check(Domain("d", Split(*blank(1, y)), other))
