"""What a benchmark of speed steps: a method with its settings, and images that are noise."""

import dataclasses
import re
from typing import NamedTuple

import torch

from metadr.benchmarks import get_benchmark
from metadr.core import Part, Split, Task, Training
from metadr.errors import UserError
from metadr.parts import parse_method

NUM_CLASSES = 10  # where no benchmark says how many
SIZES = {
    "vkitti2": "1242x375",
    "vkitti2-rendered": "416x128",
    "pacs": "224",
}  # of benchmarks whose images are not 32x32
MOST_IMAGES, MOST_BYTES = 2000, 1 << 29


class Work(NamedTuple):
    """A step of a method: its parts, how it is trained, what is predicted, and on which images."""

    parts: tuple[Part, ...]
    training: Training
    task: Task
    train: Split


def task_of(benchmark: str | None) -> Task:
    return get_benchmark(benchmark).task if benchmark else Task(NUM_CLASSES)


def training_on(benchmark: str | None) -> Training:
    """As a benchmark trains, from weights drawn at random (what they are takes no time), with images on the device."""
    usual = get_benchmark(benchmark).training if benchmark else Training()
    return dataclasses.replace(
        usual, weights=None, epochs=None, later_epochs=None, kept_epoch="last", limit=None, stream=False
    )


def parts_of(benchmark: str | None, method: str) -> tuple[Part, ...]:
    return parse_method(method, get_benchmark(benchmark).part_defaults if benchmark else {})


def size_of(text: str) -> tuple[int, int]:
    """(224, 224) for "224"; width and height of "1242x375"."""
    found = re.fullmatch(r"(\d{1,5})(?:[xX](\d{1,5}))?", text.strip())
    size = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if min(size) < 8:
        raise UserError(
            f"The size of images must be a side, as 224, or WIDTHxHEIGHT, as 1242x375, 8 pixels or more. "
            f"Got {text!r} instead."
        )
    return size


def noise(task: Task, size: tuple[int, int], batch: int, images: int | None, device: torch.device) -> Split:
    """Images of noise with labels, or masks, of noise; unless told otherwise as many as half a GiB holds."""
    width, height = size
    count = images or max(batch, min(MOST_IMAGES, MOST_BYTES // (3 * width * height)))
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(256, (count, 3, height, width), generator=rng, dtype=torch.uint8)
    shape, dtype = ((count, height, width), torch.uint8) if task.on_masks else ((count,), torch.int64)
    return Split(x, torch.randint(task.num_classes, shape, generator=rng, dtype=dtype)).to(device)
