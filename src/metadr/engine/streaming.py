"""Batches of a domain that stays on the host: gathered by workers, copied while the device computes."""

import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from metadr.core import Batch, Split

WORKERS = 4  # threads that gather; copying rows lets go of the interpreter


class Streamed:
    """The batches that a step draws, each in a place of its own on the device: the outer one, then the inner ones.

    `next_step` fills the places between two steps, from pinned memory, and has workers gather those of the step after;
    a recorded step finds them where they were. How many a step draws, the first one shows.

    Rows are drawn on the host, by a seed made of the run's, of the step's number and of the place. So nothing has to be
    remembered but that number, and what was gathered ahead may be dropped. Where the images lie makes no difference:
    those of a domain that is on the device are gathered there, between two steps.
    """

    def __init__(self, batch_size: int, device: torch.device, seed: Callable[..., int]) -> None:
        self._batch_size, self._device, self._seed = batch_size, device, seed
        self._places: list[Batch] = []
        self._ahead: list[Callable[[], Batch]] = []
        self._drawn = 0  # places that the step at hand has asked for
        self._step = 0  # of the run, from its first domain on
        self._epoch_start = 0  # the step that this epoch began with
        self._epoch_steps: int | None = None
        self._train: Split
        self._on_device: bool  # whether the images are

    def open(self, train: Split, epoch_steps: int | None) -> None:
        """Begin on a domain; with `epoch_steps` outer batches are a shuffled domain in turn."""
        if self._places and self._places[0].x.shape[1:] != train.x.shape[1:]:
            self._places = []
        self._train, self._epoch_steps, self._ahead, self._epoch_start = train, epoch_steps, [], self._step
        self._on_device = train.x.device.type != "cpu"

    def next_step(self) -> None:
        """Call before every step, and outside any recording."""
        if self._epoch_steps is not None and self._step - self._epoch_start == self._epoch_steps:
            self._epoch_start = self._step
        ahead = self._ahead or [self._order(place, self._step) for place in range(len(self._places))]
        for place, gathered in zip(self._places, ahead, strict=True):
            batch = gathered()
            place.x.copy_(batch.x, non_blocking=True)
            place.y.copy_(batch.y, non_blocking=True)
        self._step += 1
        ends = self._epoch_steps is not None and self._step - self._epoch_start == self._epoch_steps
        # The next epoch is shuffled when it begins.
        self._ahead = [] if ends else [self._order(place, self._step) for place in range(len(self._places))]

    def begin(self) -> None:
        """Call at the beginning of a step, also of one that is recorded."""
        self._drawn = 0

    def batch(self) -> Batch:
        """The next batch of this step."""
        if self._drawn == len(self._places):
            self._places.append(self._made(self._gathered(self._rows(self._drawn, self._step - 1))))
            self._ahead = []
        self._drawn += 1
        return self._places[self._drawn - 1]

    def state(self) -> dict[str, Tensor]:
        return {"step": torch.tensor(self._step), "epoch_start": torch.tensor(self._epoch_start)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._step, self._epoch_start = int(tensors["step"]), int(tensors["epoch_start"])
        self._ahead = []

    def _made(self, host: Batch) -> Batch:
        return Batch(host.x.to(self._device, copy=True), host.y.to(self._device, copy=True))

    def _order(self, place: int, step: int) -> Callable[[], Batch]:
        rows = self._rows(place, step)
        if self._on_device:
            return partial(self._gathered, rows)
        return _workers(os.getpid()).submit(self._gathered, rows).result

    def _rows(self, place: int, step: int) -> Tensor:
        """The rows of a batch: of an outer one where they are shuffled, the next of its epoch; else drawn."""
        if place or self._epoch_steps is None:
            rng = torch.Generator().manual_seed(self._seed("stream", place, step))
            return torch.randint(self._train.num_images, (self._batch_size,), generator=rng)
        rng = torch.Generator().manual_seed(self._seed("stream", "epoch", self._epoch_start))
        order = torch.randperm(self._train.num_images, generator=rng)
        first = (step - self._epoch_start) * self._batch_size
        return order[first : first + self._batch_size]

    def _gathered(self, rows: Tensor) -> Batch:
        if self._on_device:
            rows = (rows.pin_memory() if self._device.type == "cuda" else rows).to(self._device, non_blocking=True)
            return Batch(self._train.x[rows], self._train.y[rows])
        pinned = self._device.type == "cuda"  # torch keeps pinned memory until copies from it are through

        def gathered(tensor: Tensor) -> Tensor:
            room = torch.empty((len(rows), *tensor.shape[1:]), dtype=tensor.dtype, pin_memory=pinned)
            return torch.index_select(tensor, 0, rows, out=room)

        return Batch(gathered(self._train.x), gathered(self._train.y))


@functools.cache
def _workers(process: int) -> ThreadPoolExecutor:
    """A process that was forked has its own: threads stay with their parent."""
    return ThreadPoolExecutor(WORKERS, thread_name_prefix="metadr-stream")
