"""Learning without forgetting: stay close to what the network said before this domain."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import kl_div

from metadr.core import Batch, Context, Domain, Part
from metadr.settings import setting


@dataclass(frozen=True)
class LwF(Part):
    """Keep what the network says of the batch near to what it said at the end of the last domain.  Li and Hoiem 2016.

    penalty = strength * temperature^2 * KL(old(x) || new(x)), of softmax(logits / temperature); mean over images, or
    over pixels that are not ignored
    Not the paper's; with DR both see transformed images, which are farther from the new domain than its own.
    Cost per step: two forward passes and one backward. Deviations: docs/methods/lwf.md.
    """

    name: ClassVar[str] = "lwf"
    passes: ClassVar[tuple[str, ...]] = ()
    needs_a_past: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = True
    later: ClassVar[Mapping[str, Any]] = {"new": 1.0}

    strength: float = setting(1.0, "weight of the distance from what was said before", low=0)
    temperature: float = setting(2.0, "what logits are divided by: the larger, the more small chances count", above=0)
    new: float = setting(1.0, "weight of a new image beside 1 of a replayed one; 0: only those of ER are held", low=0)

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor | float:
        if not ctx.state or not self.strength:
            return 0.0
        with torch.no_grad():
            before = {name: ctx.state[f"params.{name}"] for name in ctx.params}
            old = self._chances(ctx.logits(batch.x, before, role="beside"))
        new = self._chances(ctx.logits(batch.x, role="beside"))
        divergence = kl_div(new, old, log_target=True, reduction="none").sum(1)
        kept = (batch.y != ctx.task.ignore_index).to(divergence) if ctx.task.on_masks else torch.ones_like(divergence)
        fresh = len(batch.x) - batch.replayed
        held = torch.cat((self.new * divergence[:fresh], divergence[fresh:]))
        return self.strength * self.temperature**2 * (held * kept).sum() / kept.sum().clamp(min=1)

    def end_domain(self, domain: Domain, ctx: Context) -> dict[str, Tensor]:
        return {f"params.{name}": value.detach().clone() for name, value in ctx.params.items()}

    def _chances(self, logits: Tensor) -> Tensor:
        return (logits / self.temperature).log_softmax(1)
