"""A slot of a draw on a GPU: all transformations of a set in one kernel, instead of each on all images in turn."""

import functools
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from metadr.transforms.registry import Transform

BLOCK = 1024
MOST_SIDES = 32_767  # beyond, coordinates need more than 32 bits


def fits(transforms: list[Transform], images: Tensor, masks: Tensor | None) -> bool:
    """Whether the kernel knows all of them. It moves no masks."""
    moving = masks is not None and any(transform.masks for transform in transforms)
    known = images.is_cuda and _has_triton() and all(_code(transform) is not None for transform in transforms)
    return known and not moving and images.shape[2] + images.shape[3] < MOST_SIDES


def apply(
    transforms: list[Transform],
    operation: Tensor,
    level: Tensor,
    heading: Tensor,
    images: Tensor,
    rng: torch.Generator | None,
) -> Tensor:
    """What `_masked` makes of one slot, to the last bit: random numbers are drawn in the same order and shapes.

    `heading` is that of each level, taken for an angle.
    """
    images, codes = images.contiguous(), _codes(tuple(transforms), images.device)
    num_images, _, height, width = images.shape
    area, names = height * width, [transform.name for transform in transforms]
    # What no transformation of the set reads is some other tensor of such numbers.
    unit, noise, sums = level, level, codes
    for name in names:
        if name == "rgb_rand":
            unit = torch.rand((num_images, 3, 1, 1), generator=rng, device=images.device)
        elif name == "gaussian_noise":
            noise = torch.randn(images.shape, generator=rng, device=images.device)
    kernels = _kernels()
    if "contrast" in names:
        sums = torch.empty(num_images, dtype=torch.int64, device=images.device)
        kernels.grey_sum_kernel[(num_images,)](images, sums, area, BLOCK=BLOCK)
    (cosine, sine), apart = heading, level.stride(0)
    if (cosine.stride(0), sine.stride(0)) != (apart, apart):
        raise ValueError("A heading must lie in memory as its level does.")
    out, drawn = torch.empty_like(images), (operation, operation.stride(0), level, cosine, sine, apart)
    kernels.pixels_kernel[num_images, -(-area // BLOCK)](
        images, out, *drawn, codes, sums, unit, noise, height, width, area, BLOCK=BLOCK, enable_fp_fusion=False
    )
    return out


@functools.lru_cache(maxsize=256)
def _codes(transforms: tuple[Transform, ...], device: torch.device) -> Tensor:
    # Cached, because a copy from the host may not happen while a CUDA graph is captured: apply once before.
    return torch.tensor([_code(transform) for transform in transforms], dtype=torch.int32, device=device)


def _code(transform: Transform) -> int | None:
    """The kernel's number of a transformation, unless somebody has registered another of that name."""
    if not transform.function.__module__.startswith("metadr.transforms."):
        return None
    found = getattr(_kernels(), transform.name.upper(), None)
    return None if found is None else int(found.value)


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _kernels() -> ModuleType | Any:
    """Imported no earlier than at the first call: a CPU needs no Triton."""
    from metadr.transforms import triton_pixels

    return triton_pixels
