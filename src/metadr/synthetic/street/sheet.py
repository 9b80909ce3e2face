"""A contact sheet of streets: a row for each scene, a column for each condition, the classes last."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from metadr.errors import UserError
from metadr.synthetic.street.frames import render
from metadr.synthetic.street.writing import COLOURS, condition_named, scene_named
from metadr.vkitti2_classes import CONDITIONS, FRAMES

GAP, LINE = 4, 18
INK, PAPER = (60, 60, 60), (255, 255, 255)


def contact_sheet(
    *,
    size: tuple[int, int],
    scenes: Sequence[str] = tuple(FRAMES),
    conditions: Sequence[str] = CONDITIONS,
    part: float = 0.5,
    seed: int = 0,
) -> Image.Image:
    """Render the moment at `part` of each scene, 0 being its beginning and 1 its end, as Camera_0 sees it."""
    if not 0 <= part <= 1:
        raise UserError(f"The 'part' of a scene must be a number from 0 to 1. Got {part} instead.")
    scenes, conditions = [scene_named(scene) for scene in scenes], [condition_named(each) for each in conditions]
    width, height = size[0] + GAP, size[1] + GAP
    sheet = Image.new("RGB", (GAP + width * (len(conditions) + 1), LINE + height * len(scenes)), PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(12)
    for column, name in enumerate((*conditions, "classes")):
        pen.text((GAP + column * width, 2), name, fill=INK, font=font)
    for row, scene in enumerate(scenes):
        frame = render(scene, round(part * (FRAMES[scene] - 1)), 0, conditions, size=size, seed=seed)
        for column, pixels in enumerate((*frame.pictures.values(), COLOURS[frame.labels])):
            sheet.paste(Image.fromarray(np.asarray(pixels)), (GAP + column * width, LINE + row * height))
    return sheet
