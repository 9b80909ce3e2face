"""Elastic weight consolidation (EWC): L2 weighted by how much each parameter mattered."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from metadr.core import Batch, Context, Domain, Params, Part, Split
from metadr.parts.quadratic import merge, pull
from metadr.settings import setting


@dataclass(frozen=True)
class EWC(Part):
    """Pull each parameter back as strongly as past domains' likelihood curves along it.  Section 5.2; Kirkpatrick 2017.

    penalty = sum over past domains k of strength/2 F_k (params - params_k)^2
    F_k     = mean over the images of domain k of (d log p(y | x) / d params)^2, one image at a time
    Cost per step: one pass over the parameters; at the end of a domain, one gradient per image.
    Deviations: docs/methods/ewc.md.
    """

    name: ClassVar[str] = "ewc"

    strength: float = setting(1.0, "weight of the pull", low=0)
    anchors: Literal["all", "last"] = setting("all", "pull towards every past domain or the last one only")
    fisher_labels: Literal["true", "sampled"] = setting("true", "labels of the data, or drawn from the model")
    fisher_images: int | None = setting(None, "images that the Fisher is averaged over; none means all", low=1)
    fisher_batch: int = setting(32, "per-image gradients held at once; changes memory, speed and rounding", low=1)

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor | float:
        return self.strength and self.strength * pull(ctx.params, ctx.state)

    def end_domain(self, domain: Domain, ctx: Context) -> dict[str, Tensor]:
        importance = self.fisher(domain.train, ctx)
        return merge(ctx.state if self.anchors == "all" else {}, ctx.params, importance)

    def fisher(self, split: Split, ctx: Context) -> Params:
        """The diagonal of the empirical Fisher information, per sample.

        Squaring the gradient of a batch's mean loss instead would give about 1/B of it, and another number for
        every batch size.
        """
        params = {name: value.detach() for name, value in ctx.params.items()}

        def loss_of_one(params: Params, x: Tensor, y: Tensor) -> Tensor:
            return ctx.loss(Batch(x[None], y[None]), params, role="fisher")

        gradients = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
        totals = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in params.items()}
        images = split.first(self.fisher_images)
        for start in range(0, images.num_images, self.fisher_batch):
            x, y = (part[start : start + self.fisher_batch].to(ctx.rng.device) for part in images)
            if self.fisher_labels == "sampled":
                y = self._sampled_labels(x, y, ctx)
            for name, gradient in gradients(params, x, y).items():
                totals[name] += gradient.double().square().sum(0)
        return {name: (total / images.num_images).to(params[name].dtype) for name, total in totals.items()}

    def _sampled_labels(self, x: Tensor, y: Tensor, ctx: Context) -> Tensor:
        with torch.no_grad():
            chances = ctx.logits(x, role="fisher").softmax(1).movedim(1, -1)
        drawn = torch.multinomial(chances.flatten(0, -2), 1, generator=ctx.rng).view(y.shape)
        return torch.where(y == ctx.task.ignore_index, y, drawn) if ctx.task.on_masks else drawn
