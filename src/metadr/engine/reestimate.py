"""Batch norm's running statistics, estimated anew on given images."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from metadr.engine.network import Network

BATCH = 500  # images in a pass, as in a test


class Tally:
    """The mean and variance of numbers that come in pieces, per channel, as if they had come at once."""

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor
        self._squares: Tensor  # summed squares of deviations from the mean

    def add(self, count: int, mean: Tensor, var: Tensor) -> None:
        """Add a piece by its own mean and (biased) variance."""
        mean, squares = mean.double(), var.double() * count
        if not self.count:
            self.count, self.mean, self._squares = count, mean, squares
            return
        total, apart = self.count + count, mean - self.mean
        self._squares = self._squares + squares + apart.square() * (self.count * count / total)
        self.mean = self.mean + apart * (count / total)
        self.count = total

    @property
    def var(self) -> Tensor:
        """With n - 1 in the denominator, as batch norm's running variance."""
        return self._squares / max(self.count - 1, 1)


def norms_of(network: Network) -> list[_BatchNorm]:
    """The layers whose running statistics can be estimated."""
    layers = network.module.modules()
    return [layer for layer in layers if isinstance(layer, _BatchNorm) and layer.running_mean is not None]


@torch.no_grad()
def reestimate(network: Network, x: Tensor, *, batch_size: int = BATCH) -> None:
    """Replace batch norm's running statistics by those of the images `x`; nothing else of the network changes.

    The images pass once, in their order, in the fewest batches of at most `batch_size`, all of one size but for one
    image. In a pass every batch norm normalises by its batch, as in training, and all other layers are those of a
    test: nothing is drawn. A layer's new mean and variance are those of all that came in, over the whole of `x`,
    merged in float64. What ran before leaves no trace: statistics are overwritten before they are used.
    """
    tallies = {layer: Tally() for layer in norms_of(network)}

    def observe(layer: Any, inputs: tuple[Tensor, ...]) -> None:
        values = inputs[0] if inputs[0].dtype == torch.float64 else inputs[0].float()
        over = [dim for dim in range(values.ndim) if dim != 1]
        var, mean = torch.var_mean(values, over, correction=0)
        # A tested layer normalises by its running statistics: for this pass they are those of the batch.
        _write(layer, mean, var)
        tallies[layer].add(values.numel() // values.shape[1], mean, var)

    handles = [layer.register_forward_pre_hook(observe) for layer in tallies]
    try:
        for batch in x.tensor_split(-(-len(x) // batch_size)):
            network.logits(batch)
    finally:
        for handle in handles:
            handle.remove()
    for layer, tally in tallies.items():
        if tally.count:  # not a layer that no image passes
            _write(layer, tally.mean, tally.var)


def _write(layer: Any, mean: Tensor, var: Tensor) -> None:
    layer.running_mean.copy_(mean)
    layer.running_var.copy_(var)
