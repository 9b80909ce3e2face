"""How a network's own layers compute during a pass: other functions in their place, convolutions trimmed."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from metadr import kernels

Layer = TypeVar("Layer", bound=nn.Module)
Pair = tuple[int, int]


@contextmanager
def computing(layers: list[Layer], forward: Callable[[Layer, Tensor], Tensor]) -> Iterator[None]:
    """Let layers compute as `forward` does for the length of a pass."""
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = functools.partial(forward, layer)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            del layer.forward
            if own is not None:
                layer.forward = own


@contextmanager
def trimmed(module: nn.Module, *, products: int) -> Iterator[None]:
    """Let a network's convolutions leave out the taps that only meet padding, for the length of a pass.

    Those whose patches have at most `products` values are matrix products.
    """
    with computing(list(convolutions(module).values()), functools.partial(_convolve, products=products)):
        yield


@torch.no_grad()
def reached(module: nn.Module, images: Iterable[Tensor]) -> dict[str, kernels.Reach]:
    """What such images can reach of a convolution's weights, by name, where that is not all and for all the same.

    The other weights meet nothing but padding: they change no output, and no gradient changes them.
    """
    convs = convolutions(module)
    seen: dict[nn.Conv2d, set[kernels.Reach]] = {layer: set() for layer in convs.values()}

    def note(layer: nn.Conv2d, x: Tensor) -> Tensor:
        seen[layer].add(kernels.reach((x.shape[2], x.shape[3]), *taps_of(layer)))
        return _convolve(layer, x, products=0)

    module.eval()
    with computing(list(convs.values()), note):
        for x in images:
            module(x)
    owners = Counter(id(weight) for layer in module.modules() for weight in layer.parameters(recurse=False))
    return {
        f"{path}.weight": next(iter(seen[layer]))
        for path, layer in convs.items()
        if len(seen[layer]) == 1 and {reach.taps for reach in seen[layer]} != {layer.kernel_size}
        if owners[id(layer.weight)] == 1
    }


def convolutions(module: nn.Module) -> dict[str, nn.Conv2d]:
    return {
        path: layer
        for path, layer in module.named_modules()
        if type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    }


def _convolve(layer: nn.Conv2d, x: Tensor, *, products: int) -> Tensor:
    taps, stride, padding, dilation = taps_of(layer)
    where = (stride, padding, dilation, layer.groups)
    return kernels.conv2d(x, layer.weight, layer.bias, *where, taps=taps, products=products)


def taps_of(layer: nn.Conv2d) -> tuple[Pair, Pair, Pair, Pair]:
    pairs = (layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    return cast(tuple[Pair, Pair, Pair, Pair], pairs)
