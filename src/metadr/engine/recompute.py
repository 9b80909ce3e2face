"""Activations that are computed again instead of kept: of a network's blocks only what goes in stays in memory.

A derivative of a block computes the block again, and so does the derivative of that derivative: the second order of
Meta-DR keeps what enters a block, forwards and backwards, and never more than one block's graph at a time. That is what
torch.utils.checkpoint does not do, which keeps all that the first derivative computed again. Nor can that be recorded:
it sets the state of generators. Here the numbers that a block draws are kept themselves.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from metadr.engine.layers import computing
from metadr.engine.second_order import check_derivatives
from metadr.errors import UserError

MOST_LAYERS = 8  # with weights of their own in a block: what a ResNet's blocks have at most

Function = Callable[..., tuple[Tensor, ...]]


class Blocks:
    """The blocks of a network: its outermost modules of two to eight layers."""

    def __init__(self, module: nn.Module) -> None:
        self._blocks = list(_blocks(module))
        if not self._blocks:
            raise UserError(
                f"Network '{type(module).__name__}' has no block of 2 to {MOST_LAYERS} layers that could be computed "
                "again. Leave it with --set recompute=false, or group its layers in modules."
            )

    @contextmanager
    def recomputing(self, again: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        """Let a pass keep only what enters a block; `again` is how its layers compute when it is computed again."""
        with computing(self._blocks, partial(_keep_inputs, again=again)):
            yield


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        layers = sum(any(True for _ in each.parameters(recurse=False)) for each in child.modules())
        called = type(child).forward is not nn.Module.forward and "forward" not in vars(child)
        if called and 2 <= layers <= MOST_LAYERS:
            yield child
        elif layers > 1:
            yield from _blocks(child)


def _keep_inputs(block: nn.Module, *args: Any, again: Callable[[], AbstractContextManager[None]], **named: Any) -> Any:
    """What a block says, as a function of the tensors that go in and of its weights."""
    weights = dict(block.named_parameters())
    leaves, shape = tree_flatten((args, named))
    one_pass = _Pass(block, list(weights), leaves, shape, again)
    found = _Recomputed.apply(one_pass, *one_pass.tensors, *weights.values())
    return tree_unflatten(list(found), one_pass.made)


class _Pass:
    """A block's pass: the first time as the network stands, and again as it stood."""

    made: TreeSpec  # how its outputs are arranged

    def __init__(
        self,
        block: nn.Module,
        names: list[str],
        leaves: list[Any],
        shape: TreeSpec,
        again: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._block, self._names, self._shape, self._again = block, names, shape, again
        self._places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.tensors = [leaves[place] for place in self._places]
        self._rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._drawn: list[Tensor] | None = None

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        leaves, count = list(self._rest), len(self._places)
        for place, tensor in zip(self._places, tensors, strict=False):
            leaves[place] = tensor
        args, named = tree_unflatten(leaves, self._shape)
        if self._drawn is None:
            del self.tensors  # only the graph holds on to them
            with _Unchanged(self._block, tensors), _Drawing() as drawing:
                outputs = type(self._block).forward(self._block, *args, **named)
            self._drawn = drawing.kept
        else:
            weights = dict(zip(self._names, tensors[count:], strict=True))
            with self._again(), _Redrawing(self._drawn) if self._drawn else nullcontext():
                outputs = functional_call(self._block, weights, args, named)
        found, self.made = tree_flatten(outputs)
        return tuple(found)


class _Recomputed(torch.autograd.Function):
    """A function of tensors that keeps nothing else for its derivatives, of any order."""

    @staticmethod
    def forward(ctx: Any, function: Function, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        wanted = ctx.needs_input_grad[1:]
        derivative = partial(_derivative, ctx.function, wanted, len(grads))
        found = iter(_Recomputed.apply(derivative, *grads, *ctx.saved_tensors))
        return None, *(next(found) if want else None for want in wanted)


def _derivative(function: Function, wanted: Sequence[bool], num_grads: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The gradients of the wanted inputs of a function: itself a function, of the outputs' gradients and the inputs."""
    grads, inputs = tensors[:num_grads], tensors[num_grads:]
    differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        if not differentiable:
            inputs = tuple(tensor.detach().requires_grad_(want) for tensor, want in zip(inputs, wanted, strict=True))
        outputs = function(*inputs)
        reached = [(output, grad) for output, grad in zip(outputs, grads, strict=True) if output.requires_grad]
        found = torch.autograd.grad(
            [output for output, _ in reached],
            [tensor for tensor, want in zip(inputs, wanted, strict=True) if want],
            [grad for _, grad in reached],
            create_graph=differentiable,
            materialize_grads=True,
        )
        if differentiable:  # this graph exists here alone: who searches that of the step does not see it
            check_derivatives(list(found))
        return found


class _Unchanged:
    """Refuses a block that writes into what goes in, or into a buffer: computed again, it would be another."""

    def __init__(self, block: nn.Module, tensors: Sequence[Tensor]) -> None:
        self._block, self._tensors = block, [*tensors, *_steady_buffers(block)]

    def __enter__(self) -> None:
        self._versions = [tensor._version for tensor in self._tensors]

    def __exit__(self, kind: object, *rest: object) -> None:
        if kind is None and self._versions != [tensor._version for tensor in self._tensors]:
            raise UserError(
                f"A block '{type(self._block).__name__}' of the network writes into what goes in, or into a buffer: it "
                "cannot be computed again. Use --set recompute=false."
            )


def _steady_buffers(block: nn.Module) -> list[Tensor]:
    """All buffers but running statistics, which are not written again."""
    norms = [layer for layer in block.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    running = {id(value) for layer in norms for value in layer.buffers(recurse=False)}
    return [value for value in block.buffers() if id(value) not in running]


class _Drawing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps what is drawn: masks as such, other numbers as they are."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kept: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if _draws(func, args, kwargs or {}):
            if func is torch.ops.aten.native_dropout.default:
                self.kept.append(found[1])
            else:
                binary = func.overloadpacket in (torch.ops.aten.bernoulli, torch.ops.aten.bernoulli_)
                self.kept += [each.bool() if binary else each.clone() for each in tree_flatten(found)[0]]
        return found


class _Redrawing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives again what was drawn, in the same order."""

    def __init__(self, kept: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kept = iter(kept)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _draws(func, args, kwargs or {}):
            return func(*args, **(kwargs or {}))
        if func is torch.ops.aten.native_dropout.default:
            mask = next(self._kept)
            return args[0] * mask * (1 / (1 - args[1])), mask
        if func._schema.is_mutable:
            return args[0].copy_(next(self._kept))
        made = [next(self._kept) for _ in func._schema.returns]
        if func.overloadpacket is torch.ops.aten.bernoulli:
            made = [each.to(args[0].dtype) for each in made]
        return made[0].clone() if len(made) == 1 else tuple(made)


def _draws(func: Any, args: Sequence[Any], named: dict[str, Any]) -> bool:
    """Whether an operation draws: attention is said to, and does not where nothing is dropped."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == "dropout_p":
            return bool(args[place] if place < len(args) else named.get("dropout_p", argument.default_value))
    return True
