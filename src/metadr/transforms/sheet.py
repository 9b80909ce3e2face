"""Contact sheets: what a transformation set does to images, for people to look at."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError
from torch import Tensor

from metadr.errors import UserError
from metadr.images import to_rgb, write_picture
from metadr.transforms.drawing import Drawn, draw
from metadr.transforms.registry import get_transform
from metadr.transforms.sets import get_set

FONT_SIZE = 11
GAP = 8
INK, PAPER = (60, 60, 60), (255, 255, 255)


def contact_sheet(
    set_name: str, images: Sequence[Image.Image], *, columns: int = 8, seed: int = 0, cell: int = 96
) -> Image.Image:
    """Show random draws of a set: one row per image, the original first, with a caption under each.

    A larger image is first shrunk to fit the cell, so that noise and blur look as strong as they are at that size; a
    smaller one is transformed as it is and then enlarged without smoothing.

    Args:
        set_name: a name or text that `get_set` reads.
        images: the sources, converted to RGB.
        columns: cells in a row, the original included.
        seed: equal seeds give equal sheets.
        cell: width and height of a picture, in pixels.
    """
    source = get_set(set_name)
    if not images:
        raise UserError("A contact sheet must have at least one image. Got none.")
    for name, value, least in (("columns", columns, 2), ("cell", cell, 8)):
        if value < least:
            raise UserError(f"The '{name}' of a contact sheet must be a whole number >= {least}. Got {value} instead.")
    rng = torch.Generator().manual_seed(seed)
    rows: list[list[tuple[Image.Image, list[str]]]] = []
    for image in images:
        shown = to_rgb(image)
        shown.thumbnail((cell, cell))
        batch = _to_tensor(shown).expand(columns - 1, -1, -1, -1)
        drawn = draw(source, columns - 1, rng, per="image", pick="operation")
        results = drawn.apply(batch, rng)
        cells = [(shown, ["original"])]
        cells += [(_to_image(result), _caption(drawn, column)) for column, result in enumerate(results)]
        rows.append(cells)
    return _lay_out(rows, cell)


def write_contact_sheet(
    set_name: str,
    folder: str | Path,
    out: str | Path,
    *,
    rows: int = 6,
    columns: int = 8,
    seed: int = 0,
    cell: int = 96,
) -> Path:
    """Write the contact sheet of the first `rows` images of a folder, by name, as a picture file."""
    images = _read_images(Path(folder), rows)
    sheet = contact_sheet(set_name, images, columns=columns, seed=seed, cell=cell)
    path = Path(out)
    write_picture(path, sheet)
    return path


def _read_images(folder: Path, limit: int) -> list[Image.Image]:
    if not folder.is_dir():
        raise UserError(f"No folder '{folder}': a contact sheet needs a folder of images.")
    readable = Image.registered_extensions()
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in readable and path.is_file())
    if not paths:
        raise UserError(f"No images in '{folder}': expected files such as .png or .jpg directly in it.")
    images = []
    for path in paths[: max(1, limit)]:
        try:
            with Image.open(path) as image:
                images.append(to_rgb(image))
        except (OSError, UnidentifiedImageError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise UserError(f"Cannot read the image '{path}': repair or remove it.") from error
    return images


def _caption(drawn: Drawn, column: int) -> list[str]:
    lines = []
    for operation, level in zip(drawn.operation[:, column].tolist(), drawn.level[:, column].tolist(), strict=True):
        name = drawn.source.choices[operation].name
        lines.append(name.replace("_", " ") + (f" {level:.3g}" if get_transform(name).ranged else ""))
    return lines


def _lay_out(rows: list[list[tuple[Image.Image, list[str]]]], cell: int) -> Image.Image:
    font = ImageFont.load_default(FONT_SIZE)
    captions = [caption for row in rows for _, caption in row]
    widest = max(font.getlength(line) for caption in captions for line in caption)
    line_height = FONT_SIZE + 3
    below = GAP + line_height * max(len(caption) for caption in captions) + GAP
    width = max(cell, int(widest) + 1) + GAP
    heights = [_scale(row[0][0], cell) * row[0][0].height for row in rows]
    sheet = Image.new("RGB", (GAP + width * len(rows[0]), GAP + sum(height + below for height in heights)), PAPER)
    pen = ImageDraw.Draw(sheet)
    top = GAP
    for row, height in zip(rows, heights, strict=True):
        for column, (picture, caption) in enumerate(row):
            scale = _scale(picture, cell)
            picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
            centre = GAP + column * width + (width - GAP) // 2
            sheet.paste(picture, (centre - picture.width // 2, top))
            for number, line in enumerate(caption):
                place = (centre, top + height + GAP // 2 + number * line_height)
                pen.text(place, line, fill=INK, font=font, anchor="ma")
        top += height + below
    return sheet


def _scale(picture: Image.Image, cell: int) -> int:
    return max(1, cell // max(picture.size))


def _to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def _to_image(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())
