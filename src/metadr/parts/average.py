"""Go on with a mean of the weights before a domain and after it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from metadr.core import Context, Domain, Params, Part
from metadr.settings import setting


@dataclass(frozen=True)
class Average(Part):
    """Average the weights that a domain ended with and those that it began with.  After Wortsman et al. 2022.

    weights = past * begun + (1 - past) * ended, of parameters and of batch norm's running statistics
    Not the paper's. It costs nothing while training: a learner moves as it likes, and then goes back part of the way.
    Deviations: docs/methods/average.md.
    """

    name: ClassVar[str] = "average"
    passes: ClassVar[tuple[str, ...]] = ()
    needs_a_past: ClassVar[bool] = True
    keeps_weights: ClassVar[bool] = True

    past: float = setting(0.3, "share of the weights before a later domain in those after it", low=0, below=1)

    def weights(self, ended: Params, ctx: Context) -> Params:
        if not ctx.state or not self.past:
            return ended
        return {name: value.lerp(ctx.state[f"weights.{name}"], self.past) for name, value in ended.items()}

    def end_domain(self, domain: Domain, ctx: Context) -> dict[str, Tensor]:
        kept = {**ctx.params, **ctx.statistics}
        return {f"weights.{name}": value.detach().clone() for name, value in kept.items()}
