"""L2 regularisation towards the parameters reached on past domains."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from metadr.core import Batch, Context, Domain, Part
from metadr.parts.quadratic import merge, pull
from metadr.settings import setting


@dataclass(frozen=True)
class L2(Part):
    """Pull the parameters towards those reached at the end of each past domain.  Section 5.2; Kirkpatrick 2017.

    penalty = sum over past domains k of strength/2 (params - params_k)^2
    Cost per step: one pass over the parameters.
    Deviations: docs/methods/l2.md.
    """

    name: ClassVar[str] = "l2"
    passes: ClassVar[tuple[str, ...]] = ()
    needs_a_past: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = True

    strength: float = setting(0.01, "weight of the pull", low=0)
    anchors: Literal["all", "last"] = setting("all", "pull towards every past domain's parameters or the last one's")

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor | float:
        return self.strength and self.strength * pull(ctx.params, ctx.state)

    def end_domain(self, domain: Domain, ctx: Context) -> dict[str, Tensor]:
        ones = {name: torch.ones_like(value) for name, value in ctx.params.items()}
        return merge(ctx.state if self.anchors == "all" else {}, ctx.params, ones)
