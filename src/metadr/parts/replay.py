"""Experience replay (ER): stack a batch from memory on every batch."""

from dataclasses import dataclass
from typing import ClassVar

from metadr.core import Batch, Context, Part
from metadr.settings import setting


@dataclass(frozen=True)
class Replay(Part):
    """Train on the current batch and one from the memories of all past domains together.  Section 5.2; Chaudhry 2019.

    loss = L(params; [x, memory], [y, memory])
    Cost per step: twice the images, from the second domain on.
    Deviations: docs/methods/er.md.
    """

    name: ClassVar[str] = "er"
    passes: ClassVar[tuple[str, ...]] = ()
    needs_a_past: ClassVar[bool] = True
    revision: ClassVar[int] = 2
    uses_memory: ClassVar[bool] = True
    samples_memory: ClassVar[bool] = True

    replay_batch: int | None = setting(None, "images from memory in a batch; none means as many as new ones", low=1)

    def extend(self, batch: Batch, ctx: Context) -> Batch:
        if not ctx.memory.batches:
            return batch
        return Batch.stack(batch, ctx.memory.sample(self.replay_batch or ctx.batch_size, ctx.rng))
