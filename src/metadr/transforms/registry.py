"""What a transformation is, and the table of all of them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor

from metadr.errors import UserError, unknown

LIST_HINT = "List all with 'metadr list transforms'."

Function = TypeVar("Function", bound=Callable[..., Tensor])
MaskTwin = Callable[[Tensor, Tensor, int], Tensor]


@dataclass(frozen=True, eq=False)
class Transform:
    """One registered transformation: its function, the paper's grid of levels, and what else a caller must know."""

    name: str
    function: Callable[..., Tensor]
    """The bare function, without checks of its arguments."""
    low: float
    high: float
    levels: int
    """How many levels the paper's grid has; 1 for a transformation without a range."""
    whole: bool
    """Levels are whole numbers."""
    stochastic: bool
    """Draws random numbers: the function takes `rng`."""
    masks: MaskTwin | None
    """How a segmentation mask follows, for a transformation that moves pixels."""
    revision: int
    """Enters the key of every run that uses it: raise it when an edit changes results."""

    @property
    def geometric(self) -> bool:
        return self.masks is not None

    @property
    def ranged(self) -> bool:
        """Whether the level means anything."""
        return self.levels > 1

    def run(self, images: Tensor, level: Tensor, rng: torch.Generator | None) -> Tensor:
        """Call the function without checks, for batches that were checked once already."""
        return self.function(images, level, rng=rng) if self.stochastic else self.function(images, level)


TRANSFORMS: dict[str, Transform] = {}


def transform(
    *,
    low: float = 0.0,
    high: float = 0.0,
    levels: int = 1,
    whole: bool = False,
    stochastic: bool = False,
    masks: MaskTwin | None = None,
    revision: int = 1,
) -> Callable[[Function], Function]:
    """Register `function(images, level)`, or with a keyword `rng` if `stochastic`, under its own name.

    A transformation is geometric exactly if it names the function that moves `masks` along with its images, so
    that none can be registered which would leave the labels behind.
    """

    def register(function: Function) -> Function:
        name = function.__name__
        if name in TRANSFORMS:
            raise UserError(f"A transformation '{name}' exists already: give the new one another name.")
        TRANSFORMS[name] = Transform(name, function, low, high, levels, whole, stochastic, masks, revision)

        @functools.wraps(function)
        def checked(images: Tensor, level: Tensor, **options: torch.Generator | None) -> Tensor:
            check_images(images, name)
            check_level(images, level, name)
            return function(images, level, **options)

        return cast(Function, checked)

    return register


def get_transform(name: str, *, within: str = "") -> Transform:
    """Look a transformation up by name."""
    try:
        return TRANSFORMS[name]
    except KeyError:
        raise unknown("transformation", name, TRANSFORMS, within=within, hint=LIST_HINT) from None


def check_images(images: Tensor, owner: str) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
        raise UserError(f"The images of '{owner}' must be (B, 3, H, W) uint8. Got {_describe(images)} instead.")


def check_level(images: Tensor, level: Tensor, owner: str) -> None:
    if level.shape != images.shape[:1]:
        raise UserError(
            f"The level of '{owner}' must be one number per image, ({len(images)},). Got {_describe(level)} instead."
        )
    if level.device != images.device:
        raise UserError(
            f"The level of '{owner}' must be on {images.device} with the images. Got {level.device} instead."
        )


def check_masks(masks: Tensor, owner: str, images: Tensor | None = None) -> None:
    integral = not (masks.is_floating_point() or masks.is_complex() or masks.dtype == torch.bool)
    expected = masks.shape if images is None else (len(images), *images.shape[2:])
    if masks.ndim != 3 or not integral or masks.shape != expected:
        raise UserError(
            f"The masks of '{owner}' must be (B, H, W) whole numbers, as large as the images. "
            f"Got {_describe(masks)} instead."
        )


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"
