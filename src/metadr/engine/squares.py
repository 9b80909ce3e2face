"""Every image's own gradient, squared and summed over images: an ordinary pass over a batch, and what its layers saw.

Images of a tested network do not meet, so one backward pass over a batch leaves at each layer what every image's
gradient is made of: the layer's input, and the derivative by its output. For the layers in LAYOUTS the rest is a matrix
product. Parameters that are used in any other way get their gradients from torch.func, image by image: it knows every
operation, and takes long for convolutions.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from metadr import kernels
from metadr.core import Batch, Params
from metadr.engine.ground import full_precision
from metadr.engine.layers import convolutions, taps_of
from metadr.engine.network import Network

FEW_PLACES = 4  # up to these, pairs of places are fewer numbers than a gradient for each image
CACHED, HELD = 1 << 20, 1 << 26  # values of single images at once, on a CPU and on a GPU
IMAGES_BY_IMAGE = 32  # at once with torch.func, unless more fit
Lone = Mapping[nn.Module, Mapping[str, str]]  # layer -> its own name of a parameter -> the network's


def squared_gradients(network: Network, batches: Iterable[Batch]) -> Params:
    """The sum over images of each one's squared gradient of the loss, for every parameter, in float64.

    The network is as it is tested, and computes in full precision, whatever the run's.
    """
    params = {name: value.detach() for name, value in network.params.items()}
    totals = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in params.items()}
    lone: Lone | None = None
    with full_precision(next(iter(params.values())).device):
        for batch in batches:
            lone = lone_layers(network, batch.x) if lone is None else lone
            squares = _by_layer(network, params, batch, lone)
            squares |= _by_image(network, params, [name for name in params if name not in squares], batch)
            torch._foreach_add_([totals[name] for name in squares], list(squares.values()))
    return totals


def lone_layers(network: Network, x: Tensor) -> Lone:
    """The layers in LAYOUTS that are all there is to their parameters: called once, and nothing else uses these.

    What they are called on must have the images along its first dimension, for any number of images, and must stay as
    it is until the backward pass.
    """
    lone = _known_layers(network)
    for num_images in (2, 3) if lone else ():
        seen: list[tuple[nn.Module, Tensor, int]] = []
        with _hooked(lone, functools.partial(_note, seen)):
            logits = network.logits(x.new_zeros(num_images, *x.shape[1:]), role="fisher")
        calls, uses = Counter(layer for layer, _, _ in seen), _uses(logits)
        fitting = {layer for layer, given, version in seen if len(given) == num_images and given._version == version}
        lone = {
            layer: names
            for layer, names in lone.items()
            if calls[layer] == 1 and layer in fitting
            if all(uses[id(network.params[name])] <= 1 for name in names.values())
        }
    return lone


def _note(seen: list[tuple[nn.Module, Tensor, int]], layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
    x = inputs[0] if inputs else out[:0]  # given by keyword, it is not seen
    seen.append((layer, x, x._version))


def _known_layers(network: Network) -> Lone:
    """The layers in LAYOUTS with parameters that are trained and that no other layer has."""
    layers = list(network.module.modules())
    if any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in layers):
        return {}  # it normalises a batch by its own statistics: there, images meet
    owners = Counter(id(value) for layer in layers for value in layer.parameters(recurse=False))
    usual = set(convolutions(network.module).values())
    known = {}
    for path, layer in network.module.named_modules():
        own = dict(layer.named_parameters(recurse=False))
        names = {name: f"{path}.{name}" if path else name for name in own}
        trained = {name: full for name, full in names.items() if full in network.params}
        understood = (
            type(layer) in LAYOUTS and {*own} <= {"weight", "bias"} and (type(layer) is not nn.Conv2d or layer in usual)
        )
        if understood and trained and all(owners[id(value)] == 1 for value in own.values()):
            known[layer] = trained
    return known


def _uses(output: Tensor) -> Counter[int]:
    """How many operations of those that made a tensor take each leaf, by the leaf's id."""
    uses: Counter[int] = Counter()
    nodes: list[Any] = [output.grad_fn]
    known = set(nodes)
    while nodes:
        for node, _ in nodes.pop().next_functions:
            if hasattr(node, "variable"):
                uses[id(node.variable)] += 1
            elif node is not None and node not in known:
                known.add(node)
                nodes.append(node)
    return uses


@contextmanager
def _hooked(layers: Iterable[nn.Module], hook: Callable[..., Any]) -> Iterator[None]:
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _by_layer(network: Network, params: Params, batch: Batch, lone: Lone) -> Params:
    """Squares of the parameters of lone layers, from one pass over the batch."""
    if not lone:
        return {}
    left = _Left(params, lone)
    with _hooked(lone, left.watch):
        logits = network.logits(batch.x, params, role="fisher")
    if logits.requires_grad:
        slopes = network.slopes(logits.detach(), batch.y)
        torch.autograd.grad(logits, left.anchor, slopes, allow_unused=True)
    return left.squares()


def _by_image(network: Network, params: Params, chosen: list[str], batch: Batch) -> Params:
    """Squares of some parameters, by a gradient for each image."""
    if not chosen:
        return {}

    def loss_of_one(varied: Params, x: Tensor, y: Tensor) -> Tensor:
        return network.loss(Batch(x[None], y[None]), {**params, **varied}, role="fisher")

    varied = {name: params[name] for name in chosen}
    gradients = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
    squares: Params = {}
    size = sum(value.numel() for value in varied.values())
    for some in _slices(batch.x, size, at_least=IMAGES_BY_IMAGE):
        _add(squares, {name: _squared(each) for name, each in gradients(varied, batch.x[some], batch.y[some]).items()})
    return squares


class _Left:
    """What the lone layers of one pass leave behind."""

    def __init__(self, params: Params, lone: Lone) -> None:
        self.anchor = next(iter(params.values())).new_zeros(()).requires_grad_()
        self._params, self._lone, self._waiting = params, lone, set(lone)
        self._squares: Params = {}
        self._rows: dict[str, list[Tensor]] = {}  # gradients of few values, image by image: squared all together

    def watch(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        self._waiting.remove(layer)
        # Without the anchor the first layers have no derivative; a view that is written into later loses its hook.
        output = output if output.requires_grad and output._base is None else output + self.anchor
        x = inputs[0].detach()
        output.register_hook(lambda derivative: self._take(layer, x, derivative))  # type: ignore[no-untyped-call]
        return output

    def _take(self, layer: Any, x: Tensor, derivative: Tensor) -> None:
        names = self._lone[layer]
        shape = self._params[names["weight"]].shape if "weight" in names else layer.weight.shape
        for some in _slices(x, _values(shape, x, derivative)):
            seen, given = LAYOUTS[type(layer)](layer, shape, x[some], derivative[some])
            if "bias" in names:
                self._rows.setdefault(names["bias"], []).append(given.sum(-1).flatten(1))
            if "weight" not in names:
                continue
            if seen.ndim == 3:
                self._rows.setdefault(names["weight"], []).append((seen * given).sum(-1))
            else:
                _add(self._squares, {names["weight"]: _squared_products(given, seen)})

    def squares(self) -> Params:
        """By name and shape of the parameters; zero where the loss does not depend on a layer."""
        rows = {name: torch.cat(each) for name, each in self._rows.items()}
        found = dict(self._squares)
        if rows:
            sums = _squared(torch.cat(list(rows.values()), 1))
            sizes = [row.shape[1] for row in rows.values()]
            found |= dict(zip(rows, sums.split(sizes), strict=True))  # type: ignore[no-untyped-call]
        zero = self.anchor.detach().double()
        values = {name: self._params[name] for names in self._lone.values() for name in names.values()}
        return {
            name: found[name].reshape(value.shape) if name in found else zero.expand(value.shape)
            for name, value in values.items()
        }


def _conv(layer: Any, shape: torch.Size, x: Tensor, derivative: Tensor) -> tuple[Tensor, Tensor]:
    taps, stride, padding, dilation = taps_of(layer)
    patches = kernels.patches(x, (shape[2], shape[3]), stride, padding, dilation, taps=taps)
    groups, images = layer.groups, len(x)
    return patches.view(images, groups, -1, patches.shape[2]), derivative.reshape(images, groups, -1, patches.shape[2])


def _linear(layer: Any, shape: torch.Size, x: Tensor, derivative: Tensor) -> tuple[Tensor, Tensor]:
    return x.reshape(len(x), 1, -1, shape[1]).mT, derivative.reshape(len(x), 1, -1, shape[0]).mT


def _batch_norm(layer: Any, shape: torch.Size, x: Tensor, derivative: Tensor) -> tuple[Tensor, Tensor]:
    normal = F.batch_norm(x, layer.running_mean, layer.running_var, eps=layer.eps)
    return normal.flatten(2), derivative.flatten(2)


def _layer_norm(layer: Any, shape: torch.Size, x: Tensor, derivative: Tensor) -> tuple[Tensor, Tensor]:
    normal = F.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    return normal.reshape(len(x), -1, shape.numel()).mT, derivative.reshape(len(x), -1, shape.numel()).mT


# What a layer saw, and the derivative by what it said: (image, group, in, place) and (image, group, out, place), whose
# product is the gradient of its weight; or (image, channel, place) twice, where that is the sum over places.
LAYOUTS: dict[type[nn.Module], Callable[[Any, torch.Size, Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.BatchNorm2d: _batch_norm,
    nn.LayerNorm: _layer_norm,
}


def _squared_products(given: Tensor, seen: Tensor) -> Tensor:
    """The sum over images of (given seen^T)^2, for each group, in float64.

    With few places it is one product over images b and pairs of places p, q, the sum of (d_bp d_bq) (x_bp x_bq), and no
    image's gradient is ever made.
    """
    if given.shape[-1] > FEW_PLACES:
        return _squared(given @ seen.mT)
    left, right = _pairs(given.double(), 2), _pairs(seen.double(), 1)
    return (left @ right.mT).clamp_(min=0)  # where a gradient is zero, rounding may leave it below


def _pairs(values: Tensor, twice: int) -> Tensor:
    """(image, group, channel, place) to (group, channel, (image, pair)); those of two places stand for two pairs."""
    places = values.shape[-1]
    pairs = [values.square()]
    pairs += [twice * values[..., lag:] * values[..., : places - lag] for lag in range(1, places)]
    return torch.cat(pairs, -1).permute(1, 2, 0, 3).flatten(2)


def _squared(gradients: Tensor) -> Tensor:
    """The sum over images of squares, in float64; the gradients may be written over."""
    return gradients.double().square_().sum(0)


def _values(shape: torch.Size, x: Tensor, derivative: Tensor) -> int:
    """How many values a layer holds for each image: what its taps see, and a gradient, where one is made."""
    taps, places = shape[2:].numel(), derivative[0].numel() // shape[0]
    return max(taps * x[0].numel(), shape.numel() if places > FEW_PLACES else 0)


def _slices(x: Tensor, size: int, *, at_least: int = 1) -> list[slice]:
    """Images, as many at once as hold few enough values."""
    step = max(at_least, (HELD if x.is_cuda else CACHED) // size)
    return [slice(start, start + step) for start in range(0, len(x), step)]


def _add(totals: Params, more: Params) -> None:
    for name, value in more.items():
        totals[name] = totals[name] + value if name in totals else value
