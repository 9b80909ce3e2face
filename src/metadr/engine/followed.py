"""What follows batch norm and is computed with it: a ReLU, and before that what a residual block adds.

Only where it is known that one follows the other: in a Sequential, at the beginning of a ResNet and in its blocks. Each
would read and write all images once more by itself.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from metadr import kernels
from metadr.engine.layers import computing


class Followed:
    """The batch norms of a network that a ReLU follows, and the blocks of a ResNet, which add before it."""

    def __init__(self, module: nn.Module, plain: Collection[_BatchNorm]) -> None:
        """`plain` are the batch norms that `normalise` can compute."""
        held = Counter(child for each in module.modules() for child in each._modules.values())
        pairs = [
            (norm, relu)
            for each in module.modules()
            for norm, relu in _one_after_the_other(each)
            if norm in plain and type(relu) is nn.ReLU and held[relu] == held[norm] == 1
        ]
        self.norms = {norm for norm, _ in pairs}
        self._relus = [relu for _, relu in pairs]
        self._blocks = [
            each for each in module.modules() if _is_block(each) and all(norm in plain for _, norm in _layers(each))
        ]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Let batch norm do what follows it, for the length of a pass."""
        with (
            computing(list(self.norms), partial(normalise, relu=True)),
            computing(self._relus, _nothing),
            computing(self._blocks, _block),
        ):
            yield


def normalise(layer: _BatchNorm, x: Tensor, *, plus: Tensor | None = None, relu: bool = False) -> Tensor:
    """Batch norm by the batch's own statistics, of which a tracked layer keeps a part; then an addition and a ReLU."""
    layer._check_input_dim(x)  # type: ignore[no-untyped-call]
    momentum = cast(float, layer.momentum)
    mean, var = (layer.running_mean, layer.running_var) if layer.track_running_stats else (None, None)
    if x.dtype == layer.weight.dtype and (plus is None or plus.dtype == x.dtype):
        affine = (layer.weight, layer.bias)
        return kernels.batch_norm(x, *affine, mean, var, momentum, layer.eps, plus=plus, relu=relu)
    y = F.batch_norm(x, mean, var, layer.weight, layer.bias, True, momentum, layer.eps)
    y = y if plus is None else y + plus
    return F.relu(y) if relu else y


def _nothing(layer: nn.Module, x: Tensor) -> Tensor:
    return x


def _block(block: Any, x: Tensor) -> Tensor:
    """A block of a ResNet as torchvision has it."""
    *inner, (conv, norm) = _layers(block)
    y = x
    for each, norm_of_it in inner:
        y = normalise(norm_of_it, each(y), relu=True)
    y = conv(y)
    return normalise(norm, y, plus=x if block.downsample is None else block.downsample(x), relu=True)


def _layers(block: Any) -> list[tuple[nn.Module, _BatchNorm]]:
    """The convolutions of a block, each with its batch norm."""
    count = 3 if isinstance(block, Bottleneck) else 2
    return [(getattr(block, f"conv{i}"), getattr(block, f"bn{i}")) for i in range(1, count + 1)]


def _is_block(module: nn.Module) -> bool:
    known = type(module).forward in (BasicBlock.forward, Bottleneck.forward)
    return known and type(module.relu) is nn.ReLU


def _one_after_the_other(module: nn.Module) -> Iterator[tuple[nn.Module, nn.Module]]:
    if type(module).forward is nn.Sequential.forward:
        yield from itertools.pairwise(module.children())
    elif isinstance(module, ResNet):  # segmentation-models-pytorch's too
        yield module.bn1, module.relu
