"""Draw one digit in print: `rendered` as clean coloured type, `street` as a house number seen by a camera.

Both set a row of digits with the labelled one in the middle, look at it through a warp (size, rotation, shear,
perspective) and lay it over a ground. Nothing keeps a state: an image is a function of its label and random stream.
"""

import colorsys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from metadr.errors import UserError

PRINT_FONTS = (
    "DejaVuSans-BoldOblique.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Bold.ttf",
    "DejaVuSerif-BoldItalic.ttf",
    "STIXGeneralBol.ttf",
    "STIXGeneralBolIta.ttf",
    "cmb10.ttf",
    "cmtt10.ttf",
)
STREET_FONTS = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSansMono-Bold.ttf",
    "STIXGeneralBol.ttf",
    "cmss10.ttf",
)
SIDE = 32
DETAIL = 2  # images are drawn this many times larger, then averaged down: smooth edges
INK = 48  # height of a digit in its row, about its height in an image before averaging
ROW = (192, 144)  # so large that a warped image hardly sees beyond it
RAMP = np.linspace(-1, 1, SIDE, dtype=np.float32)
LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
STREET_HUES = (0.02, 0.07, 0.12, 0.38, 0.58, 0.63)  # brick, clay, sand, paint, slate, enamel

Random = np.random.Generator
Range = tuple[float, float]
Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]


def rendered(label: int, random: Random) -> Pixels:
    """A digit in coloured type, mostly dark on light, on a plain or graded ground, alone or with neighbours."""
    dark, bright = _pair(_vivid, random, contrast=(110, 255))
    ground, ink = (dark, bright) if random.random() < 0.1 else (bright, dark)
    canvas = _gradient(ground, random, reach=25 if random.random() < 0.5 else 0)
    row = _row(label, random, PRINT_FONTS, neighbours=0.25, gap=(6, 16))
    warp = _warp(random, height=(18, 25), shift=1.5, degrees=12, shear=0.1, perspective=0)
    stroke = int(random.choice([0, 0, 0, 1, 2, 4]))
    if stroke == 4:  # so wide a stroke is an outline, a thin one makes the digit bolder
        rim = np.full(3, 0 if ink is bright else 255, dtype=np.float32)
        canvas = _lay(canvas, rim, _view(_set(row, stroke), warp))
        stroke = 0
    canvas = _lay(canvas, ink, _view(_set(row, stroke), warp))
    return _finish(canvas, blur=random.uniform(0, 0.7))


def street(label: int, random: Random) -> Pixels:
    """A digit of a house number: neighbours cut by the border, on a wall or plate, in uneven light, softly focused.

    The number is darker than its ground, the opposite of the handwritten digits.
    """
    ink, behind = _pair(_muted, random, contrast=(65, 140))
    plated = random.random() < 0.45
    wall = _muted(random) if plated else behind
    canvas = _gradient(wall, random, reach=20) + _texture(random, strength=random.uniform(0.1, 0.6))
    row = _row(label, random, STREET_FONTS, neighbours=0.8, gap=(2, 9))
    warp = _warp(random, height=(18, 25), shift=1.5, degrees=7, shear=0.2, perspective=0.005)
    if plated:
        canvas = _lay(canvas, behind, _view(_plate(random), warp))
    mask = _view(_set(row, stroke=int(random.integers(0, 3))), warp)
    aside = int(random.choice([0, 2]))  # the digits' own shadow falls one pixel down, to the left or to the right
    drop = np.pad(mask, ((1, 0), (1, 1)))[:SIDE, aside : aside + SIDE]
    canvas = canvas * (1 - random.uniform(0, 0.35) * drop[:, :, None])
    canvas = _lay(canvas, ink, mask) * _light(random)
    canvas += random.uniform(2, 8) * random.standard_normal(canvas.shape, dtype=np.float32)
    return _smear_colour(_finish(canvas, blur=random.uniform(0.4, 0.9)))


def photo_crop(random: Random, smallest: int, largest: int) -> Pixels:
    """A square piece of one of scikit-learn's photographs, brought to 32x32, mirrored half of the time."""
    photos = _photos()
    photo = photos[int(random.integers(len(photos)))]
    side = int(random.integers(smallest, largest + 1))
    left, top = (int(random.integers(extent - side + 1)) for extent in photo.size)
    crop = photo.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=(left, top, left + side, top + side))
    pixels = np.asarray(crop)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


@cache
def _photos() -> list[Image.Image]:
    from sklearn.datasets import load_sample_images  # takes a second: not before it must

    return [Image.fromarray(photo) for photo in load_sample_images().images]


@cache
def _font(name: str) -> ImageFont.FreeTypeFont:
    """A font at the size that makes its zero `INK` pixels high, laid out without optional libraries."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", name)
    if not path.is_file():
        raise UserError(
            f"No font file '{path}', which matplotlib ships. Reinstall it with 'pip install -I matplotlib'."
        )
    probe = 200
    _, top, _, bottom = ImageFont.truetype(str(path), probe, layout_engine=ImageFont.Layout.BASIC).getbbox("0")
    return ImageFont.truetype(str(path), round(probe * INK / (bottom - top)), layout_engine=ImageFont.Layout.BASIC)


class _Glyph(NamedTuple):
    """A digit as a mask, and where its left, top and right edges lie from the pen on the baseline."""

    mask: Image.Image
    left: int
    top: int
    right: int


@cache
def _glyph(font: str, digit: int, stroke: int) -> _Glyph:
    """A digit grown by `stroke` pixels on every side."""
    face = _font(font)
    left, top, right, bottom = (int(edge) for edge in face.getbbox(str(digit), anchor="ls", stroke_width=stroke))
    mask = Image.new("L", (right - left, bottom - top))
    ImageDraw.Draw(mask).text((-left, -top), str(digit), 255, face, anchor="ls", stroke_width=stroke)
    return _Glyph(mask, left, top, right)


class _Row(NamedTuple):
    """Digits of one font, each with the place of its pen on the baseline."""

    font: str
    digits: tuple[tuple[int, int], ...]


def _row(label: int, random: Random, fonts: tuple[str, ...], *, neighbours: float, gap: Range) -> _Row:
    """Put the label in the middle, and on either side a random digit with probability `neighbours`."""
    font = fonts[int(random.integers(len(fonts)))]
    middle = _glyph(font, label, 0)
    pen = (ROW[0] - middle.left - middle.right) // 2
    digits = [(label, pen)]
    for side in (-1, 1):
        digit, space = int(random.integers(10)), round(random.uniform(*gap))
        other = _glyph(font, digit, 0)
        apart = middle.right + space - other.left if side == 1 else middle.left - space - other.right
        if random.random() < neighbours:
            digits.append((digit, pen + apart))
    return _Row(font, tuple(digits))


def _set(row: _Row, stroke: int) -> Image.Image:
    """Print a row: 255 where there is ink."""
    mask = Image.new("L", ROW)
    for digit, pen in row.digits:
        glyph = _glyph(row.font, digit, stroke)
        mask.paste(255, (pen + glyph.left, (ROW[1] + INK) // 2 + glyph.top), glyph.mask)
    return mask


def _plate(random: Random) -> Image.Image:
    """A number plate behind the whole row, or one that ends beside the middle digit."""
    mask = Image.new("L", ROW)
    half = INK * random.uniform(0.62, 0.85)
    ends = [ROW[0] / 2 + side * INK * (0.65 if random.random() < 0.3 else 2.5) for side in (-1, 1)]
    box = (ends[0], ROW[1] / 2 - half, ends[1], ROW[1] / 2 + half)
    ImageDraw.Draw(mask).rounded_rectangle(box, radius=int(random.integers(0, 12)), fill=255)
    return mask


def _warp(
    random: Random, *, height: Range, shift: float, degrees: float, shear: float, perspective: float
) -> tuple[float, ...]:
    """Coefficients that take a point of the image to a point of the row, for a digit about `height` pixels high."""
    scale = INK / (DETAIL * random.uniform(*height))
    angle = np.deg2rad(random.uniform(-degrees, degrees))
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    slant = np.array([[random.uniform(0.9, 1.1), random.uniform(-shear, shear)], [0, 1]])
    tilt = random.uniform(-perspective, perspective, size=2)
    middle = DETAIL * (SIDE / 2 + random.uniform(-shift, shift, size=2))
    to_middle = np.array([[1, 0, -middle[0]], [0, 1, -middle[1]], [0, 0, 1]])
    bend = np.eye(3)
    bend[:2, :2], bend[2, :2] = scale * slant @ turn, tilt
    to_row = np.array([[1, 0, ROW[0] / 2], [0, 1, ROW[1] / 2], [0, 0, 1]])
    matrix = to_row @ bend @ to_middle
    return tuple((matrix / matrix[2, 2]).ravel()[:8].tolist())


def _view(row: Image.Image, warp: tuple[float, ...]) -> Floats:
    """How much of each pixel of the image the row covers, 0 to 1."""
    large = (DETAIL * SIDE, DETAIL * SIDE)
    seen = row.transform(large, Image.Transform.PERSPECTIVE, warp, Image.Resampling.BILINEAR).reduce(DETAIL)
    return np.asarray(seen, dtype=np.float32) / np.float32(255)


def _vivid(random: Random) -> Floats:
    """Any colour of print."""
    return _colour(random.random(), random.uniform(0.2, 1), random.uniform(0.1, 1))


def _muted(random: Random) -> Floats:
    """A colour of walls and plates."""
    hue = STREET_HUES[int(random.integers(len(STREET_HUES)))] + random.uniform(-0.02, 0.02)
    return _colour(hue % 1, random.uniform(0, 0.8) ** 2, random.uniform(0.15, 0.95))


def _colour(hue: float, saturation: float, value: float) -> Floats:
    return 255 * np.array(colorsys.hsv_to_rgb(hue, saturation, value), dtype=np.float32)


def _pair(draw: Callable[[Random], Floats], random: Random, *, contrast: Range) -> tuple[Floats, Floats]:
    """Draw two colours, the darker first, until their brightness differs by an amount within `contrast`."""
    while True:
        dark, bright = sorted((draw(random), draw(random)), key=lambda colour: float(colour @ LUMA))
        if contrast[0] <= float((bright - dark) @ LUMA) <= contrast[1]:
            return dark, bright


def _gradient(colour: Floats, random: Random, *, reach: float) -> Floats:
    """A ground that changes by up to `reach` grey levels in each channel from one border to the other."""
    across, down = random.uniform(-reach / 2, reach / 2, size=(2, 3)).astype(np.float32)
    ground: Floats = colour + RAMP[None, :, None] * across + RAMP[:, None, None] * down
    return ground


def _texture(random: Random, strength: float) -> Floats:
    """The unevenness of a piece of photograph, around zero."""
    crop = photo_crop(random, 32, 96).astype(np.float32)
    uneven: Floats = np.float32(strength) * (crop - crop.mean(axis=(0, 1)))
    return uneven


def _light(random: Random) -> Floats:
    """Exposure, and a shadow that falls over one side of half of the images."""
    angle = random.uniform(0, 2 * np.pi)
    distance = np.cos(angle) * RAMP[None, :] + np.sin(angle) * RAMP[:, None] - random.uniform(-0.5, 0.5)
    edge = np.clip(distance / random.uniform(0.05, 0.4) + 0.5, 0, 1)
    depth = random.uniform(0.2, 0.5) if random.random() < 0.5 else 0.0
    light: Floats = (random.uniform(0.7, 1.1) * (1 - depth * edge[:, :, None])).astype(np.float32)
    return light


def _lay(canvas: Floats, colour: Floats, mask: Floats) -> Floats:
    return canvas + mask[:, :, None] * (colour - canvas)


def _finish(canvas: Floats, *, blur: float) -> Pixels:
    image = Image.fromarray(np.clip(canvas, 0, 255).round().astype(np.uint8))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(blur)))


def _smear_colour(pixels: Pixels) -> Pixels:
    """Keep the colours at a quarter of the resolution, as strong JPEG compression does."""
    luma, *chroma = Image.fromarray(pixels).convert("YCbCr").split()
    coarse = [channel.reduce(4).resize((SIDE, SIDE), Image.Resampling.BILINEAR) for channel in chroma]
    return np.asarray(Image.merge("YCbCr", (luma, *coarse)).convert("RGB"))
