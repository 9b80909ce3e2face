"""Synthetic numbers as pictures: what is planned of an image, and how it is drawn, without any randomness."""

import math
from functools import cache
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps, ImageStat

Colour = tuple[int, int, int]

SIDE = 32
DETAIL = 2  # images are drawn this many times larger, then averaged down: smooth edges
INK = 48  # mean height of a font's ten digits in the row that they are set in, about their size before averaging
ROW = (224, 176)  # so large that no image sees beyond it


class Plan(NamedTuple):
    """All that is random about one image."""

    label: int
    left: int | None  # the neighbours, where there are any
    right: int | None
    font: int
    height: float
    stretch: float
    shift: tuple[float, float]
    degrees: float
    slant: float
    weight: float
    gap: float
    ground: Colour
    ink: Colour
    rim: Colour | None  # of the outline
    outline: float
    blur: float


def draw(plan: Plan, paths: tuple[str, ...]) -> Image.Image:
    """Draw what is planned. The middle of the labelled digit's box lies `shift` from the middle of the image."""
    font = paths[plan.font]
    row = _row(font, plan)
    canvas = Image.new("RGB", (SIDE, SIDE), plan.ground)
    weight = int(plan.weight * _thickness(font))  # towards none: a thin stroke would be worn away
    if plan.rim is not None:
        stroke = weight + max(1, round(plan.outline * row.scale))
        canvas.paste(plan.rim, mask=_view(_set(font, row, stroke), row, plan))
    canvas.paste(plan.ink, mask=_view(_set(font, row, weight), row, plan))
    return canvas.filter(ImageFilter.GaussianBlur(plan.blur))


@cache
def _font(path: str) -> ImageFont.FreeTypeFont:
    """A font at the size that makes its digits `INK` pixels high on average, laid out without optional libraries."""
    probe = 200
    face = ImageFont.truetype(path, probe, layout_engine=ImageFont.Layout.BASIC)
    boxes = [face.getbbox(str(digit)) for digit in range(10)]
    mean = sum(bottom - top for _, top, _, bottom in boxes) / 10
    return ImageFont.truetype(path, round(probe * INK / mean), layout_engine=ImageFont.Layout.BASIC)


class _Glyph(NamedTuple):
    """A digit as a mask, and where the edges of its ink lie from the pen on the baseline."""

    mask: Image.Image
    left: int
    top: int
    right: int
    bottom: int


@cache
def _glyph(path: str, digit: int, stroke: int) -> _Glyph:
    """A digit grown by `stroke` pixels on every side.

    The box is measured on the drawn ink: the font's own would take in the space to the next letter.
    """
    canvas, pen = Image.new("L", (4 * INK, 4 * INK)), (INK, 3 * INK)
    ImageDraw.Draw(canvas).text(pen, str(digit), 255, _font(path), anchor="ls", stroke_width=stroke)
    box = canvas.getbbox() or (*pen, *pen)
    left, top, right, bottom = box
    return _Glyph(canvas.crop(box), left - pen[0], top - pen[1], right - pen[0], bottom - pen[1])


@cache
def _thickness(path: str) -> float:
    """How wide a font's strokes are, in pixels: twice its ink to what a pixel less on every side takes away."""
    masks = [_glyph(path, digit, 0).mask for digit in range(10)]
    framed = [ImageOps.expand(mask, 1) for mask in masks]
    ink, left = (sum(ImageStat.Stat(mask).sum[0] for mask in each) for each in (framed, map(_worn, framed)))
    return 2 * ink / (ink - left)


def _worn(mask: Image.Image, pixels: int = 1) -> Image.Image:
    return mask.filter(ImageFilter.MinFilter(2 * pixels + 1))


class _Row(NamedTuple):
    """Digits and the place of each one's pen, all on one baseline."""

    baseline: int
    digits: tuple[tuple[int, int], ...]
    middle: tuple[float, float]  # of the labelled digit
    scale: float  # pixels of the row to a pixel of the image


def _row(font: str, plan: Plan) -> _Row:
    """Put the labelled digit in the middle of the row and its neighbours beside it."""
    label = _glyph(font, plan.label, 0)
    pen, baseline = (ROW[0] - label.left - label.right) // 2, (ROW[1] - label.top - label.bottom) // 2
    gap = round(plan.gap * INK)
    digits = [(plan.label, pen)]
    if plan.left is not None:
        digits.append((plan.left, pen + label.left - gap - _glyph(font, plan.left, 0).right))
    if plan.right is not None:
        digits.append((plan.right, pen + label.right + gap - _glyph(font, plan.right, 0).left))
    middle = pen + (label.left + label.right) / 2, baseline + (label.top + label.bottom) / 2
    return _Row(baseline, tuple(digits), middle, (label.bottom - label.top) / plan.height)


def _set(font: str, row: _Row, stroke: int) -> Image.Image:
    """Print a row: 255 where there is ink, which is grown by `stroke` pixels on every side, or worn off by as many."""
    mask = Image.new("L", ROW)
    for digit, pen in row.digits:
        glyph = _glyph(font, digit, max(stroke, 0))
        mask.paste(255, (pen + glyph.left, row.baseline + glyph.top), glyph.mask)
    return _worn(mask, -stroke) if stroke < 0 else mask


def _view(printed: Image.Image, row: _Row, plan: Plan) -> Image.Image:
    """How much of each pixel of the image the printed row covers, 0 to 255."""
    down, angle = row.scale / DETAIL, math.radians(plan.degrees)
    across = down / plan.stretch
    a, b = across * math.cos(angle), -across * math.sin(angle)
    d, e = down * math.sin(angle), down * math.cos(angle)
    a, b = a + plan.slant * d, b + plan.slant * e
    x, y = (DETAIL * (SIDE / 2 + shift) for shift in plan.shift)
    affine = (a, b, row.middle[0] - a * x - b * y, d, e, row.middle[1] - d * x - e * y)
    large = (DETAIL * SIDE, DETAIL * SIDE)
    return printed.transform(large, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR).reduce(DETAIL)
