"""What finished runs say of test images with masks: a sheet of inputs, truths and each run's answer."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from metadr.benchmarks import benchmark_of, prepare, training_of, with_settings
from metadr.core import Benchmark, Recipe, Split
from metadr.domains import load_domains
from metadr.engine.ground import Ground, pick_device
from metadr.errors import UserError
from metadr.progress import Watch
from metadr.rescore import finished_run, network_of
from metadr.store import RunDirectory
from metadr.sweep import settings_of, told_apart
from metadr.vkitti2_classes import CLASSES

GAP, TEXT = 6, 13  # pixels
LEAST = 256  # pixels across that a picture is enlarged to, at least
LINE, SWATCH = TEXT + GAP, TEXT + GAP  # the height of a line of text, and the room of a square of colour before it
PAPER, INK, IGNORED = (255, 255, 255), (30, 30, 30), (0, 0, 0)


def prediction_sheet(
    runs: Sequence[str | Path],
    *,
    num_images: int = 2,
    device: str = "auto",
    data: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> Image.Image:
    """A row for each of some test images of every domain: the input, the truth, and what each run says at its end.

    Args:
        runs: directories of finished runs on the same domains.
        num_images: of each domain, evenly spread over its test images.
        device: auto, cpu, cuda or cuda:N.
        data: settings of the benchmark's data that the runs were started with, as text.
        watch: told of decoding.
    """
    chosen = pick_device(device)
    rows: dict[tuple[str, int], list[Image.Image]] = {}
    shown: list[tuple[RunDirectory, Recipe]] = []
    for place in runs:
        directory, recipe = finished_run(Path(place), data or {})
        benchmark = benchmark_of(recipe)
        if not benchmark.task.on_masks:
            raise UserError(f"{place} is a run on labels; only predictions of masks can be shown. Give runs on masks.")
        if shown and recipe.order != shown[0][1].order:
            raise UserError(
                f"{place} is a run on {', '.join(recipe.order)}, the runs before it are on others. Give runs of one "
                "order of domains."
            )
        shown.append((directory, recipe))
        prepare(with_settings(recipe, weights=None), watch)  # the run's own are in its checkpoint
        colours = palette(benchmark.classes, benchmark.task.num_classes, benchmark.task.ignore_index)
        with Ground(training_of(recipe), chosen).held(), torch.no_grad():
            residents = load_domains(recipe, chosen)
            network = network_of(directory, recipe, residents, chosen)
            for resident in residents[: len(recipe.order)]:
                test = resident.domain.test
                for row in spread_over(test, num_images):
                    cells = rows.setdefault((resident.domain.name, row), [])
                    if not cells:
                        image = test.x[row].permute(1, 2, 0).cpu().contiguous().numpy()
                        cells += [Image.fromarray(image), painted(test.y[row], colours)]
                    cells.append(painted(network.logits(test.x[row : row + 1]).argmax(1)[0], colours))
    captioned = {f"{name}, test image {row}": cells for (name, row), cells in enlarged(rows).items()}
    return lay_out(["input", "truth", *titles_of(shown)], captioned, legend(benchmark_of(shown[0][1])))


def titles_of(runs: Sequence[tuple[RunDirectory, Recipe]]) -> list[str]:
    """The method of every run, and what tells those of one method apart: settings, the seed, else the run's key."""
    methods = [
        (recipe.method_name, {**settings_of(recipe), **asdict(training_of(recipe)), "seed": directory.identity["seed"]})
        for directory, recipe in runs
    ]
    keys = [{"run": directory.key} for directory, _ in runs]  # such as those from two files of weights
    return told_apart(list(zip(told_apart(methods), keys, strict=True)))


def legend(benchmark: Benchmark) -> dict[str, tuple[int, ...]]:
    """Every class with its colour, by name where it has one, and what is ignored."""
    task = benchmark.task
    names = [*benchmark.classes, *map(str, range(len(benchmark.classes), task.num_classes))]
    colours = palette(benchmark.classes, task.num_classes, task.ignore_index)
    return {**{name: tuple(colours[label].tolist()) for label, name in enumerate(names)}, "ignored": IGNORED}


def spread_over(split: Split, num_images: int) -> list[int]:
    """Rows evenly spread over a split."""
    count = min(num_images, split.num_images)
    return [split.num_images * (2 * number + 1) // (2 * count) for number in range(count)]


def palette(classes: Sequence[str], num_classes: int, ignore_index: int) -> NDArray[np.uint8]:
    """A colour for every label: a class's own where Virtual KITTI 2 has it, else one of its colours in turn."""
    known = dict(CLASSES)
    others = [colour for _, colour in CLASSES[:-1]]
    table = np.full((256, 3), IGNORED, np.uint8)
    for label in range(num_classes):
        name = classes[label] if label < len(classes) else ""
        table[label] = known.get(name, others[label % len(others)])
    table[ignore_index] = IGNORED
    return table


def painted(labels: Tensor, colours: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(colours[labels.cpu().numpy()])


def enlarged(rows: Mapping[tuple[str, int], Sequence[Image.Image]]) -> dict[tuple[str, int], list[Image.Image]]:
    """Small pictures as many times larger, all of them alike, as makes them easy to see: every pixel a square."""
    widest = max(picture.width for cells in rows.values() for picture in cells)
    times = math.ceil(LEAST / widest)
    return {
        row: [each.resize((times * each.width, times * each.height), Image.Resampling.NEAREST) for each in cells]
        for row, cells in rows.items()
    }


def lay_out(
    titles: Sequence[str], rows: Mapping[str, Sequence[Image.Image]], colours: Mapping[str, tuple[int, ...]]
) -> Image.Image:
    """A grid with a head over its columns and a caption under each row; below, what the colours mean."""
    font = ImageFont.load_default(TEXT)

    def length(text: str) -> int:
        return math.ceil(font.getlength(text))

    words = [title.split() for title in titles]
    widths = [picture.width for cells in rows.values() for picture in cells]
    width = max(*widths, *(length(word) for each in words for word in each))
    heads = [_flow([length(word) for word in each], width, length(" ")) for each in words]
    named = _flow([SWATCH + length(name) for name in colours], len(titles) * (width + GAP) - GAP, 2 * GAP)
    heights = [max(picture.height for picture in cells) + LINE for cells in rows.values()]
    top = GAP + LINE * _num_lines(heads)
    size = (GAP + len(titles) * (width + GAP), top + sum(heights) + GAP + LINE * _num_lines([named]) + GAP)
    sheet = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(sheet)
    for column, (each, places) in enumerate(zip(words, heads, strict=True)):
        for word, (line, x) in zip(each, places, strict=True):
            pen.text((GAP + column * (width + GAP) + x, GAP + line * LINE), word, fill=INK, font=font)
    for (caption, cells), height in zip(rows.items(), heights, strict=True):
        for column, picture in enumerate(cells):
            sheet.paste(picture, (GAP + column * (width + GAP), top))
        pen.text((GAP, top + height - LINE + 1), caption, fill=INK, font=font)
        top += height
    for (name, colour), (line, x) in zip(colours.items(), named, strict=True):
        left, upper = GAP + x, top + GAP + line * LINE
        pen.rectangle((left, upper, left + TEXT, upper + TEXT), fill=colour, outline=INK)
        pen.text((left + SWATCH, upper), name, fill=INK, font=font)
    return sheet


def _flow(lengths: Sequence[int], room: int, gap: int) -> list[tuple[int, int]]:
    """Where things stand one after another: the line, and the place in it; on a new line where there is no room."""
    places, line, x = [], 0, 0
    for length in lengths:
        if x and x + length > room:
            line, x = line + 1, 0
        places.append((line, x))
        x += length + gap
    return places


def _num_lines(flows: Sequence[Sequence[tuple[int, int]]]) -> int:
    return 1 + max(line for places in flows for line, _ in places)
