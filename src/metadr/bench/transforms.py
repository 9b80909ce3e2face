"""Time the transformations of a batch against Pillow, one image at a time, with the same draws and the same pixels."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch import Tensor

from metadr.bench.timing import quartiles
from metadr.provenance import environment
from metadr.transforms import Drawn, Per, TransformSet, draw, get_set, get_transform

PillowCall = Callable[[Image.Image, float], Image.Image]


def _noise(image: Image.Image, level: float) -> Image.Image:
    x = np.asarray(image)
    noisy = x + np.float32(level) * _NOISE.standard_normal(x.shape, dtype=np.float32)
    return Image.fromarray(noisy.clip(0, 255).round().astype(np.uint8))


def _shift(image: Image.Image, level: float) -> Image.Image:
    shifted = np.asarray(image) + _NOISE.uniform(-level, level, 3).astype(np.float32)
    return Image.fromarray(shifted.clip(0, 255).round().astype(np.uint8))


_NOISE = np.random.default_rng(0)

PILLOW: dict[str, PillowCall] = {
    "identity": lambda image, level: image,
    "brightness": lambda image, level: ImageEnhance.Brightness(image).enhance(level),
    "color": lambda image, level: ImageEnhance.Color(image).enhance(level),
    "contrast": lambda image, level: ImageEnhance.Contrast(image).enhance(level),
    "rgb_rand": _shift,
    "solarize": lambda image, level: ImageOps.solarize(image, threshold=int(level)),
    "grayscale": lambda image, level: ImageOps.grayscale(image).convert("RGB"),
    "invert": lambda image, level: ImageOps.invert(image),
    "rotate": lambda image, level: image.rotate(level),
    "gaussian_noise": _noise,
    "blur": lambda image, level: image.filter(ImageFilter.BLUR),
}
"""The calls that define the transformations, one image at a time."""


def apply_with_pillow(drawn: Drawn, images: Tensor) -> Tensor:
    """What `Drawn.apply` does, written with Pillow and numpy."""
    results = []
    columns = zip(drawn.operation.T.tolist(), drawn.level.T.tolist(), strict=True)
    arrays = np.ascontiguousarray(images.numpy().transpose(0, 2, 3, 1))
    for array, (operations, levels) in zip(arrays, columns, strict=False):
        image = Image.fromarray(array)
        for operation, level in zip(operations, levels, strict=True):
            image = PILLOW[drawn.source.choices[operation].name](image, level)
        results.append(np.asarray(image))
    return torch.from_numpy(np.ascontiguousarray(np.stack(results).transpose(0, 3, 1, 2)))


def bench_transforms(
    sizes: Sequence[int | tuple[int, int]] = (32, 224), batch: int = 64, repeats: int = 20, set_name: str = "psi3"
) -> dict[str, Any]:
    """Measure both on this machine's CPU, turn by turn, on the same draws.

    Args:
        sizes: side of square images, or (height, width).
        batch: images in a batch.
        repeats: draws that are timed for each size and granularity.
        set_name: the set T is drawn from.

    Returns:
        The setting, and one row per size and granularity: medians in ms, quartiles, the ratio Pillow / metadr (of
        the times of all repeats together, and the quartiles of single repeats) and whether the pixels are the same.
    """
    source = get_set(set_name)
    shapes = [(size, size) if isinstance(size, int) else size for size in sizes]
    rows = [_measure(source, shape, batch, repeats, per) for shape in shapes for per in get_args(Per)]
    return {"set": set_name, "batch": batch, "n": repeats, "environment": environment(), "rows": rows}


def _measure(source: TransformSet, shape: tuple[int, int], batch: int, repeats: int, per: Per) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(256, (batch, 3, *shape), generator=rng, dtype=torch.uint8)
    same = _same_pixels(source, images, rng)  # Also warms both up.
    ours: list[float] = []
    pillow: list[float] = []
    for _ in range(repeats):
        drawn = draw(source, batch, rng, per=per, pick="operation")
        ours.append(_milliseconds(lambda drawn=drawn: drawn.apply(images, rng)))  # type: ignore[misc]
        pillow.append(_milliseconds(lambda drawn=drawn: apply_with_pillow(drawn, images)))  # type: ignore[misc]
    return {
        "height": shape[0],
        "width": shape[1],
        "per": per,
        "metadr_ms": statistics.median(ours),
        "metadr_quartiles_ms": quartiles(ours),
        "pillow_ms": statistics.median(pillow),
        "pillow_quartiles_ms": quartiles(pillow),
        "ratio": sum(pillow) / sum(ours),
        "ratio_quartiles": quartiles([theirs / mine for theirs, mine in zip(pillow, ours, strict=True)]),
        "same_pixels": same,
    }


def _same_pixels(source: TransformSet, images: Tensor, rng: torch.Generator) -> bool | None:
    """Compare on a draw without noise; None if the set has nothing else."""
    choices = tuple(choice for choice in source.choices if not get_transform(choice.name).stochastic)
    if not choices:
        return None
    drawn = draw(
        TransformSet(source.name, choices, source.compositions), len(images), rng, per="image", pick="operation"
    )
    return torch.equal(drawn.apply(images), apply_with_pillow(drawn, images))


def _milliseconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)
