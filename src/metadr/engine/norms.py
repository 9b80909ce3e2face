"""Batch norm under a statistics policy."""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from metadr.engine.followed import Followed, normalise
from metadr.engine.layers import computing
from metadr.errors import UserError


class Groups(NamedTuple):
    """Batches that go through a network together."""

    images: int  # in all
    size: int  # of a batch; the last may be smaller


DOMAINS = "domains"  # how many of them have been averaged over


class BatchNorms:
    """The batch norms of a module that keep running statistics."""

    def __init__(self, module: nn.Module, momentum: float | None = None) -> None:
        found = {path: layer for path, layer in module.named_modules() if _keeps_statistics(path, layer)}
        if momentum is not None:
            for layer in found.values():
                layer.momentum = momentum
        self._layers = list(found.values())
        self._plain = [layer for layer in self._layers if type(layer).forward is _BatchNorm.forward and layer.affine]
        self._followed = Followed(module, self._plain)
        self._running: dict[str, Tensor] = {}
        self._counters: dict[str, Tensor] = {}
        for path, layer in found.items():
            prefix = f"{path}." if path else ""
            self._running[f"{prefix}running_mean"] = layer.running_mean
            self._running[f"{prefix}running_var"] = layer.running_var
            self._counters[f"{prefix}num_batches_tracked"] = layer.num_batches_tracked
        self._momenta = [layer.momentum for layer in self._layers for _ in ("mean", "var")]
        every = [layer for layer in module.modules() if isinstance(layer, _BatchNorm)]
        self.know_groups = len(self._plain) == len(every)
        """Whether all batch norms can normalise several batches at once, each by itself."""

    @property
    def names(self) -> set[str]:
        return {*self._running, *self._counters}

    def zeros(self) -> dict[str, Tensor]:
        """Zeroed twins of the running statistics: a pass leaves momentum * statistic in them. One tensor, one fill."""
        if not self._running:
            return {}
        sizes = [value.numel() for value in self._running.values()]
        twins = next(iter(self._running.values())).new_zeros(sum(sizes)).split(sizes)  # type: ignore[no-untyped-call]
        return dict(zip(self._running, twins, strict=True))

    @contextmanager
    def tracking(self, tracked: bool, *, groups: Groups | None = None) -> Iterator[None]:
        """Normalise by the batch in a pass, and write its statistics or leave them out; batches are not counted.

        With `groups`, which leave no statistics, every group is a batch.
        """
        for layer in self._layers:
            layer.track_running_stats, layer.num_batches_tracked = tracked, None
            layer.train()  # in a test too
        try:
            with self._computing(groups):
                yield
        finally:
            for layer, counter in zip(self._layers, self._counters.values(), strict=True):
                layer.track_running_stats, layer.num_batches_tracked = True, counter

    @contextmanager
    def fixed(self) -> Iterator[None]:
        """Normalise by the running statistics in a training pass, and leave them as they are."""
        for layer in self._layers:
            layer.eval()
        yield

    @contextmanager
    def _computing(self, groups: Groups | None) -> Iterator[None]:
        if groups:
            with computing(self._plain, functools.partial(_normalise_groups, groups=groups)):
                yield
            return
        with computing(self._plain, normalise), self._followed.computing():
            yield

    def move(self, statistics: list[Tensor]) -> None:
        """Move the running statistics by what one pass left."""
        self.move_beside(self._running, statistics)
        torch._foreach_add_(list(self._counters.values()), 1)

    def move_beside(self, running: Mapping[str, Tensor], statistics: list[Tensor]) -> None:
        """The same for running statistics that are kept beside: a `copy` of these once."""
        values = list(running.values())
        torch._foreach_mul_(values, [1 - momentum for momentum in self._momenta])
        torch._foreach_add_(values, statistics)

    @property
    def running(self) -> Mapping[str, Tensor]:
        """The running statistics, which the next step moves."""
        return self._running

    def copy(self) -> dict[str, Tensor]:
        """The running statistics as they are."""
        return {name: value.clone() for name, value in self._running.items()}

    def restore(self, statistics: Mapping[str, Tensor]) -> None:
        for name, value in self._running.items():
            value.copy_(statistics[name])

    @contextmanager
    def replaced(self, statistics: Mapping[str, Tensor]) -> Iterator[None]:
        """Other running statistics for as long as a test takes."""
        own = self.copy()
        self.restore(statistics)
        try:
            yield
        finally:
            self.restore(own)

    @torch.no_grad()
    def average(self, past: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Replace the running statistics by those of all domains together, each counting alike.

        `past` is what the last call returned, after the domain before; nothing on the first. A variance is that of the
        mixture: the mean of the variances, and how far the means are apart.
        """
        if not past:
            return self.copy() | {DOMAINS: torch.ones(())}
        before = float(past[DOMAINS])
        share, names = 1 / (before + 1), iter(self._running)
        for mean, var in zip(names, names, strict=True):
            apart = self._running[mean] - past[mean]
            self._running[mean].copy_(past[mean] + share * apart)
            self._running[var].copy_(past[var].lerp(self._running[var], share) + before * share**2 * apart.square())
        return self.copy() | {DOMAINS: past[DOMAINS] + 1}


def _normalise_groups(layer: _BatchNorm, x: Tensor, *, groups: Groups) -> Tensor:
    size = groups.size * len(x) // groups.images  # a network may cut images into several rows
    count = len(x) // size
    whole, rest = x[: count * size].view(count, size, *x.shape[1:]), x[count * size :].unsqueeze(0)
    return torch.cat([_standardised(layer, each).flatten(0, 1) for each in (whole, rest) if each.numel()])


def _standardised(layer: _BatchNorm, groups: Tensor) -> Tensor:
    """(group, image, channel, ...), every group by its own mean and variance."""
    if groups[0].numel() == groups.shape[2]:
        raise ValueError(f"Expected more than 1 value per channel of a batch, got {tuple(groups.shape[1:])}")
    exact = groups.to(layer.weight.dtype)
    over = [dim for dim in range(1, groups.dim()) if dim != 2]
    var, mean = torch.var_mean(exact, over, correction=0, keepdim=True)
    weight, bias = (value.view(-1, *[1] * (groups.dim() - 3)) for value in (layer.weight, layer.bias))
    return ((exact - mean) * (var + layer.eps).rsqrt() * weight + bias).to(groups.dtype)


def _keeps_statistics(path: str, layer: nn.Module) -> bool:
    if isinstance(layer, _InstanceNorm) and layer.running_mean is not None:
        raise UserError(
            f"Instance norm '{path}' keeps running statistics, which no statistics policy covers. "
            "Make it with track_running_stats=False."
        )
    if not isinstance(layer, _BatchNorm) or layer.running_mean is None:
        return False
    if layer.momentum is None:
        raise UserError(
            f"Batch norm '{path}' has momentum=None (a cumulative average), which no statistics policy covers. "
            "Give it a number such as 0.1."
        )
    return True
