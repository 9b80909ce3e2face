"""What follows batch norm and is computed with it: a ReLU, and before that what a residual block adds.

Each would read and write all images once more by itself. It is done by the modules that are known to call one after the
other, and only while they do: a Sequential, a ResNet at its beginning, its blocks. Called by anyone else a layer is
itself, and so is one with hooks, which want to see what comes out of it.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from metadr import kernels
from metadr.engine.layers import computing

# Known by name: to import torchvision takes a second or two, which most commands need not spend.
RESNET, ENCODER = "torchvision.models.resnet", "segmentation_models_pytorch.encoders.resnet"


class Followed:
    """The modules of a network that call a batch norm and then a ReLU."""

    def __init__(self, module: nn.Module, norms: Collection[_BatchNorm]) -> None:
        """`norms` are the batch norms that `normalise` can compute."""
        own = [each for each in module.modules() if "forward" not in vars(each)]
        self._norms = {norm for norm in norms if "forward" not in vars(norm)}
        self._relus = {each for each in own if type(each) is nn.ReLU}
        self.sequences = [each for each in own if _is_sequence(each) and self._norms & {*each.children()}]
        self.blocks = [each for each in own if _is_block(each) and self._know(each, *(n for _, n in _layers(each)))]
        self.beginnings = [each for each in own if _is_resnet(each) and self._know(each, each.bn1)]

    def _know(self, module: Any, *norms: Any) -> bool:
        return module.relu in self._relus and self._norms.issuperset(norms)

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Let batch norm do what follows it, for the length of a pass."""
        with (
            computing(self.sequences, self._sequence),
            computing(self.blocks, _block),
            computing(self.beginnings, _beginning),
        ):
            yield

    def _sequence(self, sequence: Any, x: Tensor) -> Tensor:
        layers = list(sequence)
        while layers:
            layer = layers.pop(0)
            if layer in self._norms and layers and layers[0] in self._relus and _unwatched(layer, layers[0]):
                layers.pop(0)
                x = normalise(layer, x, relu=True)
            else:
                x = layer(x)
        return x


def normalise(layer: _BatchNorm, x: Tensor, *, plus: Tensor | None = None, relu: bool = False) -> Tensor:
    """Batch norm by the batch's own statistics, of which a tracked layer keeps a part; then an addition and a ReLU."""
    layer._check_input_dim(x)  # type: ignore[no-untyped-call]
    momentum = cast(float, layer.momentum)
    mean, var = (layer.running_mean, layer.running_var) if layer.track_running_stats else (None, None)
    if x.dtype == layer.weight.dtype and (plus is None or plus.dtype == x.dtype):
        affine = (layer.weight, layer.bias)
        return kernels.batch_norm(x, *affine, mean, var, momentum, layer.eps, plus=plus, relu=relu)
    y = F.batch_norm(x, mean, var, layer.weight, layer.bias, True, momentum, layer.eps)
    if plus is not None:
        y += plus
    return F.relu(y) if relu else y


def _block(block: Any, x: Tensor) -> Tensor:
    """A block of a ResNet as torchvision has it."""
    layers = _layers(block)
    if not _unwatched(block.relu, *(norm for _, norm in layers)):
        return cast(Tensor, type(block).forward(block, x))
    y = x
    for conv, norm in layers[:-1]:
        y = normalise(norm, conv(y), relu=True)
    conv, norm = layers[-1]
    y = conv(y)
    return normalise(norm, y, plus=x if block.downsample is None else block.downsample(x), relu=True)


def _beginning(resnet: Any, x: Tensor) -> Any:
    """A whole ResNet, which has a ReLU behind its first batch norm and calls neither again."""
    if not _unwatched(resnet.bn1, resnet.relu):
        return type(resnet).forward(resnet, x)
    with computing([resnet.bn1], partial(normalise, relu=True)), computing([resnet.relu], lambda relu, y: y):
        return type(resnet).forward(resnet, x)


def _layers(block: Any) -> list[tuple[nn.Module, _BatchNorm]]:
    """The convolutions of a block, each with its batch norm."""
    count = 3 if _whose(type(block).forward) == (RESNET, "Bottleneck.forward") else 2
    return [(getattr(block, f"conv{i}"), getattr(block, f"bn{i}")) for i in range(1, count + 1)]


def _is_sequence(module: Any) -> bool:
    return type(module).forward is nn.Sequential.forward and type(module).__iter__ is nn.Sequential.__iter__


def _is_block(module: nn.Module) -> bool:
    return _whose(type(module).forward) in ((RESNET, "BasicBlock.forward"), (RESNET, "Bottleneck.forward"))


def _is_resnet(module: Any) -> bool:
    """torchvision's, or the encoder that segmentation-models-pytorch makes of it."""
    forward = _whose(type(module).forward)
    if forward == (RESNET, "ResNet.forward"):
        return _whose(type(module)._forward_impl) == (RESNET, "ResNet._forward_impl")
    return forward == (ENCODER, "ResNetEncoder.forward")


def _whose(method: Any) -> tuple[str | None, str | None]:
    return getattr(method, "__module__", None), getattr(method, "__qualname__", None)


def _unwatched(*layers: nn.Module) -> bool:
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(getattr(layer, each) for layer in layers for each in hooks)
