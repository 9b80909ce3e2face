"""Whatever Pillow can open, as the 8-bit RGB that everything here works on; and pictures as files."""

import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from metadr.errors import UserError

DEEP_MODES = ("I", "I;16", "I;16L", "I;16B", "I;16N", "F")
# What Pillow raises on tags that are garbage; seen when fed tags with random damage, and the like.
BAD_TAGS = (SyntaxError, struct.error, OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


def to_rgb(image: Image.Image) -> Image.Image:
    """Any image that Pillow reads as 8-bit RGB, the right way up.

    What is transparent becomes white; 16-bit and float images are brought to 8 bits by their type's range, not by the
    brightest pixel, so that equal scenes stay equally bright. 32-bit images
    do not say what their range is: up to 1 (float) or 255 they are taken for that.
    """
    image.load()  # damaged pixels are an error; damaged tags say nothing of them
    with suppress(*BAD_TAGS):
        image = ImageOps.exif_transpose(image)
    if image.mode in DEEP_MODES:
        values = np.asarray(image, dtype=np.float64)
        scale = 255.0 if image.mode == "F" and values.max(initial=0) <= 1 else 1.0
        if image.mode.startswith("I;16") or values.max(initial=0) > 255:
            scale = 1 / 257
        image = Image.fromarray((values * scale).clip(0, 255).round().astype(np.uint8))
    if image.has_transparency_data:
        above = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", above.size, "white"), above)
    return image.convert("RGB")


def write_picture(path: Path, picture: Image.Image) -> None:
    """Write a picture for people to look at, in the format that its name says."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"Cannot write the picture '{path}': {reason}. Choose a .png or .jpg elsewhere.") from error
