"""Gradient episodic memory (GEM): never step in a direction that raises the loss on a memory."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from metadr.core import Context, Part
from metadr.settings import setting


@dataclass(frozen=True)
class GEM(Part):
    """Project the gradient so that it agrees with every past domain's memory.  Section 5.2; Lopez-Paz 2017.

    gradient = g + G^T v, with v = argmin over v >= margin of 1/2 v^T G G^T v + v^T G g,
    where the rows of G are the gradients on the memories; untouched where G g >= 0.
    Cost per step: a forward and a backward pass over the whole memory of each past domain.
    Deviations: docs/methods/gem.md.
    """

    name: ClassVar[str] = "gem"
    passes: ClassVar[tuple[str, ...]] = ("memory",)
    needs_a_past: ClassVar[bool] = True
    uses_memory: ClassVar[bool] = True

    margin: float = setting(0.5, "lower bound of the dual variables ('memory strength')", low=0)
    ridge: float = setting(0.0, "added to the diagonal of the dual (the reference code: 1e-3)", low=0)

    def gradient(self, grads: list[Tensor], ctx: Context) -> list[Tensor]:
        if not ctx.memory.batches:
            return grads
        params = list(ctx.params.values())
        rows = []
        for memory in ctx.memory.batches:
            loss = ctx.loss(ctx.view(memory), role="memory")
            rows.append(flatten(torch.autograd.grad(loss, params, materialize_grads=True)))
        return unflatten(project(flatten(grads), torch.stack(rows), self.margin, self.ridge), grads)


def project(gradient: Tensor, memories: Tensor, margin: float, ridge: float) -> Tensor:
    """The gradient, moved as little as the memories' gradients (K, P) demand; in float64, without a host sync."""
    g, rows = gradient.double(), memories.double()
    products = rows @ g
    gram = rows @ rows.T + ridge * torch.eye(len(rows), dtype=torch.float64, device=rows.device)
    # With v = u + margin the bound becomes u >= 0.
    dual = nonnegative_minimum(gram, products + margin * gram.sum(1)) + margin
    return torch.where((products < 0).any(), g + dual @ rows, g).to(gradient.dtype)


def nonnegative_minimum(gram: Tensor, linear: Tensor) -> Tensor:
    """argmin over u >= 0 of 1/2 u^T gram u + linear^T u, by block principal pivoting (Judice and Pires 1994).

    Guess which entries are free, solve for them, exchange every entry that breaks a sign condition; when exchanging
    all stops helping, exchange only the last one, which cannot cycle. The number of rounds is fixed, so that a step
    has the same shape whatever the data: it settles in a handful and then stays.
    """
    scale = gram.diagonal().clamp(min=torch.finfo(gram.dtype).tiny).rsqrt()
    unit, slope = gram * scale[:, None] * scale, linear * scale
    identity = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    # Equal memories make the matrix singular; this much keeps the solution finite and moves it by less than 1e-9.
    unit = unit + 1e-12 * identity
    tolerance = 1e-12 * slope.abs().max()
    position = torch.arange(len(gram), device=gram.device)
    free = torch.zeros_like(position, dtype=torch.bool)
    fewest, patience = torch.full_like(position[:1], len(gram) + 1), torch.full_like(position[:1], 3)
    u = torch.zeros_like(slope)
    for _ in range(4 * len(gram) + 8):
        both = free[:, None] & free
        u = torch.linalg.solve_ex(torch.where(both, unit, identity), torch.where(free, -slope, 0.0))[0]
        wrong = torch.where(free, u < -tolerance, unit @ u + slope < -tolerance)
        count = wrong.sum()
        better = count < fewest
        fewest, patience = torch.where(better, count, fewest), torch.where(better, 3, patience - 1)
        last = position == torch.where(wrong, position, -1).max()
        free = free ^ torch.where(patience >= 0, wrong, last)
    return u.clamp(min=0) * scale


def flatten(tensors: "list[Tensor] | tuple[Tensor, ...]") -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflatten(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    pieces = torch.split(flat, [tensor.numel() for tensor in like])
    return [piece.view_as(tensor) for piece, tensor in zip(pieces, like, strict=True)]
