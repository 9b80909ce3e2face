"""A contact sheet of synthetic numbers: the same digits in each variant, one below the other."""

import numpy as np
from PIL import Image

from metadr.synthetic.syn_digits import RANGES, render

COLUMNS, ROWS = 20, 2
GAP = 4  # white pixels between variants
ENLARGED = 2


def contact_sheet(*, seed: int = 0) -> Image.Image:
    """The first training images: easy on top, then standard, then hard."""
    bands = []
    for variant in RANGES:
        images, _ = render(ROWS * COLUMNS, split="train", seed=seed, variant=variant)
        rows = images.reshape(ROWS, COLUMNS, *images.shape[1:]).swapaxes(1, 2)
        bands.append(rows.reshape(ROWS * images.shape[1], -1, 3))
    white = np.full((GAP, bands[0].shape[1], 3), 255, np.uint8)
    sheet = Image.fromarray(np.concatenate([bands[0], *(part for band in bands[1:] for part in (white, band))]))
    return sheet.resize((ENLARGED * sheet.width, ENLARGED * sheet.height), Image.Resampling.NEAREST)
