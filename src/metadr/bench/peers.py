"""The Meta-DR step as users would write it elsewhere: with plain autograd, and with the library `higher`.

Same model, batches, transformations, precision and optimiser as ours; batch norm as torch has it.
"""

import contextlib
import importlib.util
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from metadr.core import Split
from metadr.transforms import draw, get_set

INNER_LR = 0.1


class Batches(NamedTuple):
    """What one step sees: the batch, the inner batch, and both transformed by one T."""

    outer: Split
    inner_transformed: Split
    outer_transformed: Split


def draw_batches(train: Split, batch_size: int, rng: torch.Generator, transforms: str = "psi3") -> Batches:
    outer, inner = train.sample(batch_size, rng), train.sample(batch_size, rng)
    drawn = draw(get_set(transforms), batch_size, rng, per="batch", pick="operation")
    return Batches(
        Split(outer.x, outer.y),
        Split(drawn.apply(inner.x, rng), inner.y),
        Split(drawn.apply(outer.x, rng), outer.y),
    )


class Peer:
    """A training loop of its own; `step` is what is timed."""

    def __init__(
        self, module: nn.Module, train: Split, *, method: str, batch_size: int, precision: str, lr: float = 3e-4
    ) -> None:
        self.module, self.train, self.method, self.batch_size = module.train(), train, method, batch_size
        self.half = precision == "bf16"
        self.optimizer = torch.optim.Adam(module.parameters(), lr=lr)
        self.rng = torch.Generator(train.x.device).manual_seed(0)

    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.method == "meta-dr":
                self.backward(draw_batches(self.train, self.batch_size, self.rng))
            else:
                batch = self.train.sample(self.batch_size, self.rng)
                x = batch.x
                if self.method == "dr":
                    x = draw(get_set("psi3"), len(x), self.rng, per="batch", pick="operation").apply(x, self.rng)
                self.loss(self.module, Split(x, batch.y)).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()

    def loss(self, network: nn.Module, batch: Split) -> Tensor:
        kind = batch.x.device.type
        with torch.autocast(kind, torch.bfloat16) if self.half else contextlib.nullcontext():
            logits = network(batch.x.to(_dtype(self.module)) / 255)
        return F.cross_entropy(logits.float() if self.half else logits, batch.y)

    def backward(self, batches: Batches) -> None:
        raise NotImplementedError


class Eager(Peer):
    """Plain autograd: `create_graph=True` and a functional call at the fast weights."""

    def backward(self, batches: Batches) -> None:
        params = dict(self.module.named_parameters())
        inner = self.loss(self.module, batches.inner_transformed)
        grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
        fast = {name: value - INNER_LR * grad for (name, value), grad in zip(params.items(), grads, strict=True)}

        def network(x: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.module, fast, (x,))
            return logits

        clean = self.loss(self.module, batches.outer)
        recall = self.loss(network, batches.outer)  # type: ignore[arg-type]
        adapt = self.loss(network, batches.outer_transformed)  # type: ignore[arg-type]
        (clean + recall + adapt).backward()  # type: ignore[no-untyped-call]


class Higher(Peer):
    """The library `higher`: a patched copy of the module and a differentiable SGD."""

    def backward(self, batches: Batches) -> None:
        import higher

        inner = torch.optim.SGD(self.module.parameters(), lr=INNER_LR)
        with higher.innerloop_ctx(self.module, inner, copy_initial_weights=False) as (fast, stepper):
            stepper.step(self.loss(fast, batches.inner_transformed))
            recall = self.loss(fast, batches.outer)
            adapt = self.loss(fast, batches.outer_transformed)
            (self.loss(self.module, batches.outer) + recall + adapt).backward()  # type: ignore[no-untyped-call]


def peers_of(method: str) -> dict[str, type[Peer]]:
    """Who can be compared with: `higher` has nothing to do in a step without an inner one."""
    found: dict[str, type[Peer]] = {"eager": Eager}
    if method == "meta-dr" and importlib.util.find_spec("higher") is not None:
        found["higher"] = Higher
    return found


def _dtype(module: nn.Module) -> torch.dtype:
    return next(module.parameters()).dtype
