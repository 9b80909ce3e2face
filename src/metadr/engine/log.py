"""What steps leave to look at: losses and their terms, kept on the device until a row of steps is through."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

LOOK_EVERY = 256  # the most steps that may be taken before somebody looks at their losses


class Terms(NamedTuple):
    """The loss of a step and the terms that it is the sum of, as device tensors."""

    loss: Tensor
    by_name: dict[str, Tensor]


class Turn(NamedTuple):
    """Some steps that were sent to a GPU one right after another."""

    began: torch.cuda.Event
    ended: torch.cuda.Event


class Taken(NamedTuple):
    """What a row of steps left to look at, on its way to the host; reading it waits for those steps alone."""

    names: tuple[str, ...]
    values: Tensor
    turns: tuple[Turn, ...] = ()  # on a GPU
    ready: torch.cuda.Event | None = None

    @property
    def seconds(self) -> float:
        """How long the device took for them, whatever the host did meanwhile; once they are read, and on a GPU.

        What passed between two turns, while others had theirs, is not counted.
        """
        return sum(float(turn.began.elapsed_time(turn.ended)) for turn in self.turns) / 1e3

    def read(self) -> tuple[list[dict[str, float]], bool]:
        """The loss and its terms at every step, and whether all weights are finite after the last."""
        if self.ready is not None:
            self.ready.synchronize()
        *values, finite = self.values.tolist()
        width = len(self.names)
        rows = [values[start : start + width] for start in range(0, len(values), width)]
        return [dict(zip(self.names, row, strict=True)) for row in rows], bool(finite)


class StepLog:
    """The terms of the last steps, kept on the device."""

    def __init__(self, device: torch.device) -> None:
        self.names: tuple[str, ...] = ()
        self.values: Tensor
        self.num_steps = 0  # launched since the last look
        self._turns: list[Turn] = []
        self.position = torch.arange(LOOK_EVERY, device=device)[:, None]
        self.cursor = torch.zeros(1, dtype=torch.int64, device=device)

    @contextmanager
    def turn(self, num_steps: int) -> Iterator[None]:
        """Make room for so many steps more, and time them."""
        if (wanted := self.num_steps + num_steps) > LOOK_EVERY:
            raise ValueError(f"At most {LOOK_EVERY} steps may be taken before a look. Got {wanted}.")
        self.num_steps = wanted
        began = now(self.cursor.device)
        yield
        ended = now(self.cursor.device)
        if began is not None and ended is not None:
            self._turns.append(Turn(began, ended))

    def write(self, terms: Terms) -> None:
        names = ("loss", *terms.by_name)
        row = torch.stack([terms.loss, *terms.by_name.values()]).double()
        if names != self.names:
            self.names, self.values = names, row.new_zeros(LOOK_EVERY, len(names))
        self.values.copy_(torch.where(self.position == self.cursor, row, self.values))
        self.cursor += 1

    def taken(self, weights: list[Tensor]) -> Taken:
        """Send the terms of the steps since the last look to the host, and begin anew."""
        # The last step's own update shows in no loss before the next row of steps, and that may never come.
        finite = torch.stack(torch._foreach_norm(weights, float("inf"))).isfinite().all()
        values = torch.cat((self.values[: self.num_steps].flatten(), finite.double()[None]))
        self.cursor.zero_()
        self.num_steps = 0
        turns, self._turns = tuple(self._turns), []
        if not values.is_cuda:
            return Taken(self.names, values)
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        return Taken(self.names, host, turns, now(values.device))


def now(device: torch.device) -> torch.cuda.Event | None:
    """This moment of the work that is on its way to a GPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def steps_in(available: float, num_steps: int, seconds: float) -> int:
    """How many steps fit into a time, after so many took the device so long.

    Its time, not the clock's: a lane that waited for others would take fewer steps at once, wait for the others again,
    and never catch up.
    """
    return min(LOOK_EVERY, max(1, int(available * num_steps / seconds)))
