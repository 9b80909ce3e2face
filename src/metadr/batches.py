"""Labelled images as tensors: a batch, a set on one device, a memory of past domains."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Batch(NamedTuple):
    """Images and what is known of them; the last `replayed` rows come from memory."""

    x: Tensor  # (B, 3, H, W) uint8
    y: Tensor  # (B,) labels, int64, or (B, H, W) masks, uint8 or int64
    replayed: int = 0

    @classmethod
    def stack(cls, *batches: "Batch") -> "Batch":
        """One batch of all rows, in order; what follows the first batch counts as replayed."""
        x, y = torch.cat([batch.x for batch in batches]), torch.cat([batch.y for batch in batches])
        return cls(x, y, len(x) - len(batches[0].x) + batches[0].replayed)


class Split(NamedTuple):
    """A set of labelled images resident on one device."""

    x: Tensor
    y: Tensor

    @property
    def num_images(self) -> int:
        return len(self.x)

    def sample(self, num_images: int, rng: torch.Generator) -> Batch:
        """Draw uniformly with replacement (Algorithm 1, lines 5 and 8)."""
        rows = torch.randint(len(self.x), (num_images,), generator=rng, device=self.x.device)
        return Batch(self.x[rows], self.y[rows])

    def first(self, num_images: int | None) -> "Split":
        return Split(self.x[:num_images], self.y[:num_images])

    def to(self, device: torch.device | str) -> "Split":
        return Split(self.x.to(device), self.y.to(device))

    @classmethod
    def union(cls, splits: "Sequence[Split]") -> "Split":
        if len(splits) == 1:  # as it is, without a copy
            return splits[0]
        return cls(torch.cat([split.x for split in splits]), torch.cat([split.y for split in splits]))


class Memory:
    """M images of every past domain: one budget, shared by the parts that replay (ER) and that constrain (GEM).

    Its tensors have room for all that will be added and are written in place, so that what samples from them has the
    same shape, and finds them in the same place, on every domain.
    """

    def __init__(self, room: int = 0) -> None:
        self.batches: list[Batch] = []
        self.room = room
        self._rows: Split
        self._count: Tensor  # of the rows that are filled, on the device

    @property
    def num_images(self) -> int:
        return sum(len(batch.x) for batch in self.batches)

    @property
    def pool(self) -> Batch | None:
        """All memories together."""
        filled = self._rows.first(self.num_images) if self.batches else None
        return filled and Batch(*filled, replayed=filled.num_images)

    def add(self, batch: Batch) -> None:
        start, stop = self.num_images, self.num_images + len(batch.x)
        if not self.batches:
            size = max(self.room, stop)
            self._rows = Split(*(part.new_zeros(size, *part.shape[1:]) for part in (batch.x, batch.y)))
            self._count = torch.zeros((), dtype=torch.int64, device=batch.x.device)
        if stop > self._rows.num_images:
            raise RuntimeError(f"a memory with room for {self._rows.num_images} images was given {stop}")
        self._rows.x[start:stop], self._rows.y[start:stop] = batch.x, batch.y
        self._count.fill_(stop)
        kept = Batch(self._rows.x[start:stop], self._rows.y[start:stop], len(batch.x))
        self.batches.append(kept)

    def sample(self, num_images: int, rng: torch.Generator) -> Batch:
        """Draw uniformly with replacement from all memories together."""
        if not self.batches:
            raise RuntimeError("sampled an empty memory")
        # In float64 a number below one times the count is below the count.
        unit = torch.rand(num_images, generator=rng, device=self._count.device, dtype=torch.float64)
        rows = (unit * self._count).long()
        return Batch(self._rows.x[rows], self._rows.y[rows], num_images)
