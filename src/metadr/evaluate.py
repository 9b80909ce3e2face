"""Scores: exact counts per domain, and what a whole sequence comes to, each defined once."""

from typing import NamedTuple

import torch
from torch import Tensor

from metadr.core import Split, Task
from metadr.engine.network import Network

MOST_PIXELS = 1 << 21  # in a batch on a GPU, where few large ones are faster


@torch.no_grad()
def confusion(network: Network, split: Split, *, batch_size: int | None = None) -> Tensor:
    """Counts of (true, predicted) over the whole split, (C, C) int64. No image is padded, dropped or counted twice."""
    if batch_size is None:
        batch_size = max(100, MOST_PIXELS // split.x[0, 0].numel()) if split.x.is_cuda else 500
    total = torch.zeros(network.task.num_classes, network.task.num_classes, dtype=torch.int64, device=split.x.device)
    for start in range(0, split.num_images, batch_size):
        rows = slice(start, start + batch_size)
        total += network.task.confusion(network.logits(split.x[rows]), split.y[rows])
    return total


def score(task: Task, counts: Tensor) -> float:
    """The task's score in percent: accuracy, or mean IoU over the classes that occur in the split."""
    counts = counts.double()
    hits = counts.diagonal()
    if task.score == "accuracy":
        return float(100 * hits.sum() / counts.sum())
    present = counts.sum(1) > 0
    union = counts.sum(0) + counts.sum(1) - hits
    return float(100 * (hits[present] / union[present]).mean())


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
