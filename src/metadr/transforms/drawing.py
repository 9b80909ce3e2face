"""Draw T, the random composition of transformations, and apply it to a batch."""

import functools
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from metadr.errors import UserError
from metadr.transforms import fused
from metadr.transforms.geometric import headings
from metadr.transforms.registry import Transform, check_images, check_masks, get_transform
from metadr.transforms.sets import TransformSet
from metadr.transforms.workers import run_all

Per = Literal["image", "batch"]
Pick = Literal["operation", "pair"]
Strategy = Literal["auto", "gather", "masked", "fused"]

# On a CPU, as many values are transformed at a time, so that intermediate results stay in the cache.
CHUNK = 1 << 20


class Drawn(NamedTuple):
    """N transformations, one after the other, for each of B images."""

    operation: Tensor
    """(N, B) int64: which choice of the set."""
    level: Tensor
    """(N, B) float64: at which level."""
    heading: Tensor
    """(2, N, B) float64: cosine and sine of the level as an angle, for a transformation that turns."""
    source: TransformSet
    """The set they were drawn from."""

    @overload
    def apply(
        self,
        images: Tensor,
        rng: torch.Generator | None = None,
        masks: None = None,
        ignore_index: int = 255,
        *,
        strategy: Strategy = "auto",
    ) -> Tensor: ...

    @overload
    def apply(
        self,
        images: Tensor,
        rng: torch.Generator | None,
        masks: Tensor,
        ignore_index: int = 255,
        *,
        strategy: Strategy = "auto",
    ) -> tuple[Tensor, Tensor]: ...

    def apply(
        self,
        images: Tensor,
        rng: torch.Generator | None = None,
        masks: Tensor | None = None,
        ignore_index: int = 255,
        *,
        strategy: Strategy = "auto",
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Transform the images, and with them their masks where pixels move.

        Args:
            images: (B, 3, H, W) uint8; with fewer images than columns were drawn, the first columns are used.
            rng: where noise fields and colour shifts come from: new ones for each image and slot, also when all
                images share one T.
            masks: (B, H, W) labels; `ignore_index` enters where a rotation uncovers a corner.
            strategy: "gather", for CPUs alone, runs each transformation on the images that drew it; "masked" runs
                every one on all images and selects, without the host; "fused", for GPUs alone, does the same in one
                kernel, if it knows all of the set's and no mask moves. "auto" takes the first on a CPU, elsewhere the
                last where it can. Without noise all give the same pixels.
        """
        check_images(images, self.source.name)
        if masks is not None:
            check_masks(masks, self.source.name, images)
        num_drawn, num_images = self.operation.shape[1], len(images)
        if num_images > num_drawn:
            raise UserError(
                f"A draw from '{self.source.name}' for {num_drawn} images cannot transform {num_images}: "
                "draw at least as many as there are images."
            )
        if self.operation.device != images.device:
            raise UserError(
                f"A draw from '{self.source.name}' on {self.operation.device} cannot transform images on "
                f"{images.device}: draw with a generator of that device."
            )
        on_cpu = images.device.type == "cpu"
        if strategy == "gather" and not on_cpu:
            raise UserError("The 'gather' strategy must run on a CPU: use 'masked' or 'auto' elsewhere.")
        transforms = [get_transform(choice.name) for choice in self.source.choices]
        in_one = not on_cpu and fused.fits(transforms, images, masks)
        if strategy == "fused" and not in_one:
            raise UserError("The 'fused' strategy needs a GPU, the paper's transformations, and no mask that moves.")
        if strategy == "auto":
            strategy = "gather" if on_cpu else "fused" if in_one else "masked"
        step = {"gather": _gather, "masked": _masked, "fused": _fused}[strategy]
        columns = (self.operation[:, :num_images], self.level[:, :num_images], self.heading[..., :num_images].unbind(1))
        for operation, level, heading in zip(*columns, strict=True):
            images, masks = step(_Slot(transforms, operation, level, heading, images, masks, rng, ignore_index))
        return images if masks is None else (images, masks)


def draw(source: TransformSet, num_images: int, rng: torch.Generator, *, per: Per, pick: Pick) -> Drawn:
    """Draw T from a set, on the device of `rng` and without waiting for it.

    Args:
        source: the set; its `compositions` slots are drawn with replacement and applied in drawn order.
        num_images: how many columns the draw has.
        rng: the generator; two draws from equal generators are equal.
        per: "image" draws a T for each image, "batch" one for all of them.
        pick: "operation" draws a transformation uniformly, then its level uniformly; "pair" draws uniformly from all
            pairs of transformation and level, so that one with many levels comes up more often.
    """
    if per not in ("image", "batch"):
        raise UserError(f"The 'per' parameter of draw must be 'image' or 'batch'. Got '{per}' instead.")
    if pick not in ("operation", "pair"):
        raise UserError(f"The 'pick' parameter of draw must be 'operation' or 'pair'. Got '{pick}' instead.")
    table = _table(source, rng.device)
    shape = (source.compositions, num_images if per == "image" else 1)
    if pick == "operation":
        operation = torch.randint(len(source.choices), shape, generator=rng, device=rng.device)
        unit = torch.rand(shape, generator=rng, device=rng.device, dtype=torch.float64)
        pair = table.first[operation] + (unit * table.num_levels[operation]).long()
    else:
        pair = torch.randint(len(table.level), shape, generator=rng, device=rng.device)
        operation = table.operation[pair]
    size = (source.compositions, num_images)
    level, heading = table.level[pair].expand(size), table.heading[:, pair].expand(2, *size)
    return Drawn(operation.expand(size), level, heading, source)


class _Table(NamedTuple):
    """All pairs of a set on one device, and where each operation's pairs begin and how many they are."""

    operation: Tensor
    level: Tensor
    heading: Tensor
    first: Tensor
    num_levels: Tensor


@functools.lru_cache(maxsize=256)
def _table(source: TransformSet, device: torch.device) -> _Table:
    # Cached, because a copy from the host may not happen while a CUDA graph is captured: draw once before.
    grids = [choice.grid() for choice in source.choices]
    num_levels = torch.tensor([len(grid) for grid in grids])
    operation = torch.repeat_interleave(torch.arange(len(grids)), num_levels)
    level = torch.tensor([level for grid in grids for level in grid], dtype=torch.float64)
    first = num_levels.cumsum(0) - num_levels
    return _Table(*(column.to(device) for column in (operation, level, headings(level), first, num_levels)))


class _Slot(NamedTuple):
    """One of the transformations that T is composed of, for every image, and what it meets."""

    transforms: list[Transform]
    operation: Tensor
    level: Tensor
    heading: Tensor
    images: Tensor
    masks: Tensor | None
    rng: torch.Generator | None
    ignore_index: int


def _gather(slot: _Slot) -> tuple[Tensor, Tensor | None]:
    """Run each transformation on the images that drew it, a few at a time."""
    transforms, operation, level, _, images, masks, rng, ignore_index = slot
    out = torch.empty(images.shape, dtype=images.dtype)
    moved = None if masks is None else torch.empty(masks.shape, dtype=masks.dtype)

    def run(transform: Transform, rows: list[int], own: torch.Generator | None) -> None:
        # All copies are made in here too: on the calling thread, torch would split each of them over its threads.
        picked = torch.tensor(rows)
        levels = level.index_select(0, picked)
        _put(out, rows, transform.run(images.index_select(0, picked), levels, own))
        if masks is not None and moved is not None:
            labels = masks.index_select(0, picked)
            _put(moved, rows, transform.masks(labels, levels, ignore_index) if transform.masks else labels)

    size = max(1, CHUNK // max(1, images.shape[1:].numel()))
    drawn = operation.tolist()
    tasks = []
    for index, transform in enumerate(transforms):
        hits = [row for row, choice in enumerate(drawn) if choice == index]
        for start in range(0, len(hits), size):
            # Noise comes from a generator of its own, so that it does not depend on which thread is faster.
            own = _fork(rng) if transform.stochastic else None
            tasks.append(functools.partial(run, transform, hits[start : start + size], own))
    run_all(tasks, most=1 if images.numel() <= CHUNK else None)
    return out, moved


def _put(out: Tensor, rows: list[int], values: Tensor) -> None:
    # Row by row: `out[rows] = values` goes element by element and takes ten times as long.
    for row, value in zip(rows, values.unbind(), strict=True):
        out[row] = value


def _fork(rng: torch.Generator | None) -> torch.Generator:
    return torch.Generator().manual_seed(int(torch.randint(1 << 62, (), generator=rng)))


def _fused(slot: _Slot) -> tuple[Tensor, Tensor | None]:
    """What `_masked` makes, in one kernel."""
    made = fused.apply(slot.transforms, slot.operation, slot.level, slot.heading, slot.images, slot.rng)
    return made, slot.masks


def _masked(slot: _Slot) -> tuple[Tensor, Tensor | None]:
    """Run every transformation on all images and keep, for each image, the one it drew."""
    transforms, operation, level, _, images, masks, rng, ignore_index = slot
    out, moved = images, masks
    for index, transform in enumerate(transforms):
        hit = (operation == index).view(-1, 1, 1, 1)
        # A level of another transformation only makes a result that is not kept.
        out = torch.where(hit, transform.run(images, level, rng), out)
        if transform.masks is not None and masks is not None and moved is not None:
            moved = torch.where(hit.squeeze(1), transform.masks(masks, level, ignore_index), moved)
    return out, moved
