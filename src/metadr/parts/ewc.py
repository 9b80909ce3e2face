"""Elastic weight consolidation (EWC): L2 weighted by how much each parameter mattered."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from metadr.core import Batch, Context, Domain, Params, Part, Split
from metadr.parts.quadratic import merge, pull
from metadr.settings import setting

# In a pass of the Fisher: few passes where images are small, and little memory where they are large.
IMAGES_AT_ONCE, PIXELS_AT_ONCE = 256, 32 * 224**2


@dataclass(frozen=True)
class EWC(Part):
    """Pull each parameter back as strongly as past domains' likelihood curves along it.  Section 5.2; Kirkpatrick 2017.

    penalty = sum over past domains k of strength/2 F_k (params - params_k)^2
    F_k     = mean over the images of domain k of (d log p(y | x) / d params)^2, one image at a time
    Cost per step: one pass over the parameters; at the end of a domain, one gradient per image.
    Deviations: docs/methods/ewc.md.
    """

    name: ClassVar[str] = "ewc"
    passes: ClassVar[tuple[str, ...]] = ()
    needs_a_past: ClassVar[bool] = True
    revision: ClassVar[int] = 2  # its Fisher is added up in another order, and in full precision also in runs in TF32

    strength: float = setting(0.1, "weight of the pull", low=0)
    anchors: Literal["all", "last"] = setting("all", "pull towards every past domain or the last one only")
    fisher_labels: Literal["true", "sampled"] = setting("true", "labels of the data, or drawn from the model")
    fisher_images: int | None = setting(None, "images that the Fisher is averaged over; none means all", low=1)

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
        images = split.first(self.fisher_images)
        total = ctx.squared_gradients(self._batches(images, ctx))
        return {name: (total[name] / images.num_images).to(value.dtype) for name, value in ctx.params.items()}

    def _batches(self, images: Split, ctx: Context) -> Iterator[Batch]:
        at_once = max(1, min(IMAGES_AT_ONCE, PIXELS_AT_ONCE // images.x[0, 0].numel()))
        for start in range(0, images.num_images, at_once):
            x, y = (part[start : start + at_once].to(ctx.rng.device) for part in images)
            yield Batch(x, self._sampled_labels(x, y, ctx) if self.fisher_labels == "sampled" else y)

    def _sampled_labels(self, x: Tensor, y: Tensor, ctx: Context) -> Tensor:
        with torch.no_grad():
            chances = ctx.logits(x, role="fisher").softmax(1).movedim(1, -1)
        drawn = torch.multinomial(chances.flatten(0, -2), 1, generator=ctx.rng).view(y.shape)
        return torch.where(y == ctx.task.ignore_index, y, drawn) if ctx.task.on_masks else drawn
