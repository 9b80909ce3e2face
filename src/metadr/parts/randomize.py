"""Domain randomisation (DR): train on images changed by random transformations."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from metadr.core import Batch, Context, Part
from metadr.settings import setting
from metadr.transforms import Drawn, TransformSet, draw, get_set


@dataclass(frozen=True)
class Transforming(Part):
    """What the parts that transform images have in common: the set Psi, and how T is drawn from it."""

    transforms: str = setting("psi3", "transformation set (Psi), by name or as 'brightness+rotate:-30:30:7'")
    compositions: int | None = setting(None, "transformations composed into one T (N); none: as the set says, 2", low=1)
    per: Literal["batch", "image"] = setting("image", "one T for the whole step, or one for every image")
    pick: Literal["operation", "pair"] = setting(
        "operation", "draw an operation, then its level; or uniformly over all pairs of both"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        get_set(self.transforms)

    @property
    def chosen(self) -> TransformSet:
        found = get_set(self.transforms)
        return replace(found, compositions=self.compositions or found.compositions)

    def content(self) -> dict[str, Any]:
        return {**super().content(), "set": self.chosen.spec}

    def draw_transformation(self, num_images: int, ctx: Context) -> Drawn:
        return draw(self.chosen, num_images, ctx.rng, per=self.per, pick=self.pick)

    def transform(self, drawn: Drawn, batch: Batch, ctx: Context) -> Batch:
        """T applied to the images, and to the masks where it moves pixels."""
        if not ctx.task.on_masks:
            return batch._replace(x=drawn.apply(batch.x, ctx.rng))
        x, y = drawn.apply(batch.x, ctx.rng, batch.y, ctx.task.ignore_index)
        return batch._replace(x=x, y=y)


@dataclass(frozen=True)
class Randomize(Transforming):
    """Replace the batch by T(batch), T drawn from Psi.  Section 4.1.

    loss = L(params; T(x), y)
    Cost per step: the transformations.
    Deviations: docs/methods/dr.md.
    """

    name: ClassVar[str] = "dr"
    passes: ClassVar[tuple[str, ...]] = ()
    of_later_domains: ClassVar[tuple[str, ...]] = ("replayed",)

    replayed: bool = setting(True, "transform images from memory too")

    def view(self, batch: Batch, ctx: Context) -> Batch:
        kept = 0 if self.replayed else batch.replayed
        fresh = len(batch.x) - kept
        if not kept:
            return self.transform(self.draw_transformation(fresh, ctx), batch, ctx)
        changed = Batch(batch.x[:fresh], batch.y[:fresh])
        changed = self.transform(self.draw_transformation(fresh, ctx), changed, ctx)
        return Batch.stack(changed, Batch(batch.x[fresh:], batch.y[fresh:]))
