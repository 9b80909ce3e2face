"""What finished runs say of test images with masks: a sheet of inputs, truths and each run's answer."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from metadr.benchmarks import benchmark_of, prepare, training_of, with_settings
from metadr.core import Split
from metadr.domains import load_domains
from metadr.engine.ground import Ground, pick_device
from metadr.errors import UserError
from metadr.progress import Watch
from metadr.rescore import finished_run, network_of
from metadr.vkitti2_classes import CLASSES

GAP, TEXT = 6, 13  # pixels
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
    titles = ["input", "truth"]
    orders = set()
    for place in runs:
        directory, recipe = finished_run(Path(place), data or {})
        benchmark = benchmark_of(recipe)
        if not benchmark.task.on_masks:
            raise UserError(f"{place} is a run on labels; only predictions of masks can be shown. Give runs on masks.")
        orders.add(recipe.order)
        if len(orders) > 1:
            raise UserError(
                f"{place} is a run on {', '.join(recipe.order)}, the runs before it are on others. Give runs of one "
                "order of domains."
            )
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
        titles.append(recipe.method_name)
    return _lay_out(titles, {f"{name}, test image {row}": cells for (name, row), cells in rows.items()})


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


def _lay_out(titles: list[str], rows: dict[str, list[Image.Image]]) -> Image.Image:
    """A grid with a head over its columns and a caption under each row."""
    font = ImageFont.load_default(TEXT)
    line = TEXT + GAP
    width = max(picture.width for cells in rows.values() for picture in cells)
    heights = [max(picture.height for picture in cells) + line for cells in rows.values()]
    sheet = Image.new("RGB", (GAP + len(titles) * (width + GAP), GAP + line + sum(heights) + GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    for column, title in enumerate(titles):
        pen.text((GAP + column * (width + GAP), GAP), title, fill=INK, font=font)
    top = GAP + line
    for (caption, cells), height in zip(rows.items(), heights, strict=True):
        for column, picture in enumerate(cells):
            sheet.paste(picture, (GAP + column * (width + GAP), top))
        pen.text((GAP, top + height - line + 1), caption, fill=INK, font=font)
        top += height
    return sheet
