"""Second derivatives, which Meta-DR takes through its simulated step: of operations that have none."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from metadr.errors import UserError

# What torch and its extensions say of an operation without a second derivative; of the first it speaks otherwise.
NO_SECOND_DERIVATIVE = re.compile(r"_backward\w*'? is not implemented|double backward|differentiate twice")


def hardsigmoid(x: Tensor, inplace: bool = False) -> Tensor:
    """Torch's, in operations that have a second derivative: its own kernel has none."""
    found = F.relu6(x + 3) / 6
    return x.copy_(found) if inplace else found


class TwiceDifferentiable(TorchFunctionMode):
    """Lets functions that have no second derivative compute as others that have one, called by a layer or not."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (hardsigmoid if func is F.hardsigmoid else func)(*args, **(kwargs or {}))


def check_derivatives(terms: list[Tensor]) -> None:
    """Refuse functions marked with @once_differentiable where a gradient through them is differentiated again.

    Torch itself would leave out what they add to it, without a word, unless nothing else is left.
    """
    left = [term.grad_fn for term in terms]
    seen = set(left)
    while left:
        node = left.pop()
        if node is None:
            continue
        if node.name() == "torch::autograd::Error":
            raise RuntimeError("trying to differentiate twice a function that was marked with @once_differentiable")
        new = {following for following, _ in node.next_functions} - seen
        seen |= new
        left += new


@contextmanager
def second_derivatives_of(model: str) -> Iterator[None]:
    """Tells in one sentence of an operation that has none; only the step that needs it shows which have one."""
    try:
        yield
    except RuntimeError as error:
        if not NO_SECOND_DERIVATIVE.search(str(error)):
            raise
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(
            f"Model '{model}' has an operation without a second derivative ({reason}), which meta-dr needs. Choose "
            "another model, another method, or leave that derivative out with --set first_order=true."
        ) from error
