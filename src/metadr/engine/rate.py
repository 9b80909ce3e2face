"""The learning rate along a domain, where it falls."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class FallingRate:
    """Half a cosine: from a domain's rate at its first step to almost nothing at its last."""

    def __init__(self) -> None:
        self._first, self._num_steps, self._taken = 0.0, 1, 0

    def begin_domain(self, lr: float, num_steps: int) -> None:
        self._first, self._num_steps, self._taken = lr, num_steps, 0

    def next_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Call before every step, and outside any recording, which reads the rate from the device."""
        rate = self._first * (1 + math.cos(math.pi * self._taken / self._num_steps)) / 2
        self._taken += 1
        group = optimizer.param_groups[0]
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate

    def state(self) -> dict[str, Tensor]:
        return {"taken": torch.tensor(self._taken)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._taken = int(tensors["taken"])
