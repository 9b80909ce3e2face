"""What happens to batches before a part sees them: whose turn it is in an epoch, and mirroring."""

from collections.abc import Mapping

import torch
from torch import Tensor

from metadr.core import Batch


class Turns:
    """A domain's images in shuffled order, batch by batch, shuffled anew when an epoch's whole batches are through.

    The order and the place in it lie on the device, so that a recorded step finds its rows there and moves on by
    itself. The host counts along: it knows when an epoch ends without asking, and refills the order between two steps.
    """

    def __init__(self, num_images: int, epoch_steps: int, batch_size: int, rng: torch.Generator) -> None:
        self._epoch_steps, self._batch_size, self._rng = epoch_steps, batch_size, rng
        self._order = torch.zeros(num_images, dtype=torch.int64, device=rng.device)
        self._place = torch.zeros(1, dtype=torch.int64, device=rng.device)
        self._step = 0  # of the epoch

    def restart(self) -> None:
        """Begin an epoch with the next step, whatever was left of the last one."""
        self._step = 0
        self._place.zero_()  # a checkpoint that is taken now says so

    def next_step(self) -> None:
        """Call before every step, and outside any recording."""
        if self._step == 0:
            self._order.copy_(torch.randperm(len(self._order), generator=self._rng, device=self._order.device))
            self._place.zero_()
        self._step = (self._step + 1) % self._epoch_steps

    def rows(self) -> Tensor:
        """The rows of this step's batch."""
        rows = self._order[self._place + torch.arange(self._batch_size, device=self._order.device)]
        self._place += self._batch_size
        return rows

    def state(self) -> dict[str, Tensor]:
        return {"order": self._order, "place": self._place}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._order.copy_(tensors["order"])
        self._place.copy_(tensors["place"])
        self._step = int(tensors["place"]) // self._batch_size % self._epoch_steps


def mirrored(batch: Batch, rng: torch.Generator, *, masks: bool) -> Batch:
    """Each image flipped left to right with probability 0.5, and its mask alike."""
    flip = torch.rand(len(batch.x), generator=rng, device=batch.x.device) < 0.5
    x = torch.where(flip.view(-1, 1, 1, 1), batch.x.flip(3), batch.x)
    y = torch.where(flip.view(-1, 1, 1), batch.y.flip(2), batch.y) if masks else batch.y
    return batch._replace(x=x, y=y)
