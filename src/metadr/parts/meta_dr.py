"""Meta-DR: learn to be resilient to a gradient step on an auxiliary meta-domain."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from metadr.core import Batch, Context
from metadr.parts.randomize import Transforming
from metadr.parts.row import cut, row
from metadr.settings import setting
from metadr.training import Role


@dataclass(frozen=True)
class MetaDR(Transforming):
    """Penalise what a step towards an auxiliary meta-domain costs, and ease adapting to it.  Eq. 2 and Algorithm 1.

    fast_k  = params - inner_lr * grad L(params; T_k(inner batch)), T_k drawn from Psi
    penalty = recall/K sum_k L(fast_k; x) + adapt/K sum_k L(fast_k; T_k(x))

    paper   alpha      beta     gamma   K              theta    theta-hat
    here    inner_lr   recall   adapt   meta_domains   params   fast
    Cost per step and meta-domain: 3 extra forwards, 1 extra backward; the outer backward is second order unless
    `first_order`. With recall = adapt = 0 nothing runs and nothing is drawn.
    Deviations: docs/methods/meta_dr.md.
    """

    name: ClassVar[str] = "meta-dr"
    passes: ClassVar[tuple[str, ...]] = ("inner", "recall", "adapt")
    revision: ClassVar[int] = 3  # what several passes say of the parameters is added in another order

    inner_lr: float = setting(0.1, "size of the simulated gradient step (alpha)", low=0)
    recall: float = setting(1.0, "weight of staying good on the current domain (beta)", low=0)
    adapt: float = setting(1.0, "weight of being good on the meta-domain (gamma)", low=0)
    meta_domains: int = setting(1, "auxiliary meta-domains a step (K)", low=1)
    inner_steps: int = setting(1, "simulated gradient steps on each", low=1)
    first_order: bool = setting(False, "leave the second derivative out")
    inner_replay: bool = setting(True, "with ER, stack memory on the inner batch too, not only on the outer one")

    @property
    def first_pass(self) -> Role:
        return super().first_pass if self.recall or self.adapt else "clean"

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor | float:
        if not self.recall and not self.adapt:
            return 0.0
        terms = []
        for _ in range(self.meta_domains):
            inner = ctx.draw(replay=self.inner_replay)
            # One T for both batches (Algorithm 1, lines 6 to 9); drawn per image, row i of both shares T_i.
            drawn = self.draw_transformation(max(len(inner.x), len(raw.x)), ctx)
            fast = self._adapted(self.transform(drawn, inner, ctx), ctx)
            if self.recall:
                terms.append(self.recall * ctx.loss(batch, cut(fast, ctx.params), role="recall"))
            if self.adapt:
                adapted = self.transform(drawn, raw, ctx)
                terms.append(self.adapt * ctx.loss(adapted, cut(fast, ctx.params), role="adapt"))
        return torch.stack(terms).sum() / self.meta_domains

    def _adapted(self, inner: Batch, ctx: Context) -> Tensor:
        """The parameters after the simulated steps, as a differentiable function of the parameters.

        One row, which every pass cuts anew: what several passes say of it is added once, not once for every parameter.
        """
        fast = row(ctx.params.values())
        for _ in range(self.inner_steps):
            loss = ctx.loss(inner, cut(fast, ctx.params), role="inner")
            (grad,) = torch.autograd.grad(loss, fast, create_graph=not self.first_order)
            fast = fast - self.inner_lr * grad
        return fast
