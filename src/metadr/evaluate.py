"""Scores: exact counts per domain, and what a whole sequence comes to, each defined once."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metadr.core import Split, Task
from metadr.engine.network import Network

MOST_PIXELS = 1 << 21  # in a batch on a GPU, where few large ones are faster
MASK_BATCH, MASK_PIXELS = 500, 1 << 22  # images, and pixels, whose masks are told at once: at 1242x375 nine of them


class Told(NamedTuple):
    """What a network said of a batch, counted."""

    confusion: Tensor  # of (true, predicted), (C, C) int64
    hits: Tensor | None = None  # of masks, by image, as `suite_iou` counts
    unions: Tensor | None = None


def confusion(network: Network, split: Split, *, batch_size: int | None = None) -> Tensor:
    """Counts of (true, predicted) over the whole split, (C, C) int64. No image is padded, dropped or counted twice."""
    answers = _answers(network, split, batch_size)
    return torch.stack([network.task.confusion(logits, y) for logits, y in answers]).sum(0)


def tell(network: Network, split: Split) -> Iterator[Told]:
    """All counts of a split, a batch at a time, for who wants to do something else in between."""
    for logits, y in _answers(network, split):
        counts = network.task.confusion(logits, y)
        yield Told(counts, *_suite_counts(network.task, logits, y)) if network.task.on_masks else Told(counts)


@contextmanager
def by_batches(network: Network, images: int, size: int) -> Iterator[None]:
    """Test so many images by the statistics of each tested batch, of `size` images or, where one alone would be left
    over, a few more."""
    before = network.tested_in
    network.tested_in = next((each for each in range(size, size + images) if images % each != 1), size)
    try:
        yield
    finally:
        network.tested_in = before


def suite_iou(told: Sequence[Told], *, group: int) -> float:
    """The IoU of the suite that the paper used, as it was in 2020, in percent; ignored pixels left out.

    Of all classes together, where what has a chance above 0.5 counts as predicted; of each `group` of images in turn,
    and then the mean over groups.
    """
    by_image = ([counts for each in told if (counts := getattr(each, name)) is not None] for name in ("hits", "unions"))
    groups = zip(*(torch.split(torch.cat(counts), group) for counts in by_image), strict=True)
    return 100 * statistics.fmean(float(hit.sum() / union.sum().clamp(min=1)) for hit, union in groups)


def _suite_counts(task: Task, logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    true = y.unsqueeze(1) == torch.arange(task.num_classes, device=y.device).view(-1, 1, 1)
    said = (logits.softmax(1) > 0.5) & (y != task.ignore_index).unsqueeze(1)
    return (true & said).flatten(1).sum(1), (true | said).flatten(1).sum(1)


def _answers(network: Network, split: Split, batch_size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """What the network says of every image, in their order, and what is true; the images may be on the host."""
    batch_size = batch_size or _batch_size(network, split)
    for start in range(0, split.num_images, batch_size):
        with torch.no_grad():
            logits = network.logits(split.x[start : start + batch_size])
        yield logits, split.y[start : start + batch_size].to(logits.device)


def _batch_size(network: Network, split: Split) -> int:
    pixels = split.x[0, 0].numel()
    if network.task.on_masks:
        most = max(1, min(MASK_BATCH, MASK_PIXELS // pixels))
    else:
        most = max(100, MOST_PIXELS // pixels) if network.on_gpu else 500  # wherever the images are
    if network.tested_in is None:
        return most
    return network.tested_in * (1 if network.tested_apart else max(1, most // network.tested_in))


def score(task: Task, counts: Tensor) -> float:
    """The task's score in percent: accuracy, or mean IoU over the classes that occur in the split."""
    if task.score == "accuracy":
        return float(100 * counts.diagonal().sum().double() / counts.sum())
    return float(100 * _ious(counts).nanmean())


def details(task: Task, counts: Tensor) -> dict[str, Any]:
    """What a row keeps of masks beside their score: the counts, the IoU of each class that occurs, and `micro`, that of
    all classes together, in percent."""
    if not task.on_masks:
        return {}
    hits, pixels = int(counts.diagonal().sum()), int(counts.sum())
    classes = [None if iou != iou else 100 * iou for iou in _ious(counts).tolist()]
    # Every wrong pixel is in two unions: that of its true class and that of the predicted one.
    return {"micro": 100 * hits / (2 * pixels - hits), "iou": classes, "confusion": counts.tolist()}


def _ious(counts: Tensor) -> Tensor:
    """Hits / (true + predicted - hits) of each class; not a number where a class has no true pixel."""
    hits = counts.diagonal().double()
    union = counts.sum(0) + counts.sum(1) - counts.diagonal()
    return torch.where(counts.sum(1) > 0, hits / union, torch.nan)


class Summary(NamedTuple):
    """What a sequence of N domains comes to. R[i][j] is the score on domain j after i domains; R[0] is untrained."""

    acc: float  # mean over j of R[N][j]
    bwt: float  # mean over j < N of R[N][j] - R[j][j]: backward transfer, negative where the model forgot
    fwt: float  # mean over j > 1 of R[j-1][j] - R[0][j]: forward transfer, over the untrained model
    forgetting: float  # mean over j < N of max over i in j..N-1 of R[i][j], minus R[N][j]
    kept: float  # mean over j < N of R[N][j]: what is left of the domains that are gone


def summarise(scores: list[list[float]]) -> Summary:
    """Reduce the full matrix R, N + 1 rows of N scores, to the figures of the continual-learning literature."""
    last = len(scores) - 1
    final = scores[last]
    past = range(last - 1)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0

    return Summary(
        acc=mean(final),
        bwt=mean([final[j] - scores[j + 1][j] for j in past]),
        fwt=mean([scores[j][j] - scores[0][j] for j in range(1, last)]),
        forgetting=mean([max(scores[i][j] for i in range(j + 1, last)) - final[j] for j in past]),
        kept=mean([final[j] for j in past]),
    )
