"""Textures: small pictures with an outline, at every sharpness that a distance may ask for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Floats = NDArray[np.floating[Any]]
Random = np.random.Generator
Colour = tuple[int, int, int]
Point = tuple[float, float]
Box = tuple[float, float, float, float]

GAMMA = 2.2
SMOOTH = 4  # a picture is drawn this many times larger, then averaged down
WHITE: Colour = (255, 255, 255)


_LINEAR = ((np.arange(256, dtype=np.float32) / 255) ** GAMMA).astype(np.float32)


class Texture(NamedTuple):
    """`levels[i][j]` has rows halved i times and columns j times: (rows, columns, 5), all in linear light.

    Red, green, blue; how much of the texel is there, 0 to 1; and how much of its panel's tint is added.
    """

    levels: tuple[tuple[Floats, ...], ...]

    def at(self, rows_per_sample: float, columns_per_sample: float) -> Floats:
        """The level with about one texel to a sample, each way."""
        down = min(_halvings(rows_per_sample), len(self.levels) - 1)
        across = min(_halvings(columns_per_sample), len(self.levels[0]) - 1)
        return self.levels[down][across]


def _halvings(texels: float) -> int:
    return max(0, int(np.log2(max(texels, 1.0)) + 0.5))


class Canvas:
    """A picture in the making: places from (0, 0), top left, to (1, 1); what is not drawn on is not there.

    What is `painted` takes the tint of its panel, as light or dark as it is grey.
    """

    def __init__(self, columns: int, rows: int) -> None:
        self._size = (columns * SMOOTH, rows * SMOOTH)
        self._layers = (Image.new("RGB", self._size), Image.new("L", self._size), Image.new("L", self._size))
        self._pens = [ImageDraw.Draw(layer) for layer in self._layers]

    def fill(self, colour: Colour = WHITE, *, painted: bool = False) -> None:
        self.box((0, 0, 1, 1), colour, painted=painted)

    def box(self, box: Box, colour: Colour = WHITE, *, painted: bool = False) -> None:
        left, top, right, bottom = self._scaled(box)
        for pen, ink in self._inked(colour, painted):
            pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), fill=ink)

    def disc(self, box: Box, colour: Colour = WHITE, *, painted: bool = False) -> None:
        for pen, ink in self._inked(colour, painted):
            pen.ellipse(self._scaled(box), fill=ink)

    def polygon(self, points: Sequence[Point], colour: Colour = WHITE, *, painted: bool = False) -> None:
        width, height = self._size
        places = [(x * width, y * height) for x, y in points]
        for pen, ink in self._inked(colour, painted):
            pen.polygon(places, fill=ink)

    def done(self, grain: Floats | None = None) -> Texture:
        """The texture; `grain` (rows, columns) makes it lighter and darker."""
        colour, there, painted = (np.asarray(layer) for layer in self._layers)
        linear = _LINEAR[colour]
        is_painted = painted > 0
        own = np.where(is_painted[..., None], np.float32(0), linear)
        tint = np.where(is_painted, linear.mean(axis=2), np.float32(0))
        finest = _shrunk(np.dstack([own, there > 0, tint]).astype(np.float32))
        finest[..., [0, 1, 2, 4]] /= np.maximum(finest[..., 3:4], 1e-6)  # the ground of a picture counts for nothing
        if grain is not None:
            finest[..., [0, 1, 2, 4]] *= grain[..., None]
        return with_levels(finest)

    def _scaled(self, box: Box) -> tuple[float, float, float, float]:
        width, height = self._size
        left, top, right, bottom = box
        return left * width, top * height, right * width, bottom * height

    def _inked(self, colour: Colour, painted: bool) -> list[tuple[ImageDraw.ImageDraw, Colour | int]]:
        """What each layer is drawn with."""
        inks: tuple[Colour | int, ...] = (colour, 255, 255 if painted else 0)
        return list(zip(self._pens, inks, strict=True))


def _shrunk(drawn: Floats) -> Floats:
    """The means of squares of SMOOTH x SMOOTH."""
    rows, columns, depth = drawn.shape
    squares = drawn.reshape(rows // SMOOTH, SMOOTH, columns // SMOOTH, SMOOTH, depth)
    return np.asarray(squares.mean(axis=(1, 3)))


def with_levels(finest: Floats) -> Texture:
    """Halve both ways, independently, while the size is even."""
    rows, levels = finest, []
    while True:
        columns, line = rows, []
        while True:
            line.append(np.ascontiguousarray(columns))
            if columns.shape[1] % 2:
                break
            columns = _averaged(columns, 1)
        levels.append(tuple(line))
        if rows.shape[0] % 2:
            return Texture(tuple(levels))
        rows = _averaged(rows, 0)


def _averaged(pixels: Floats, axis: int) -> Floats:
    """Neighbours averaged; colours weigh as much as there is of them."""
    even, odd = (np.take(pixels, range(start, pixels.shape[axis], 2), axis) for start in (0, 1))
    there = even[..., 3:4] + odd[..., 3:4]
    colour = (even * even[..., 3:4] + odd * odd[..., 3:4]) / np.maximum(there, 1e-6)
    colour[..., 3:4] = there / 2
    return colour.astype(np.float32)


def clouds(random: Random, side: int, coarsest: int) -> Floats:
    """Smooth noise that tiles: (side, side) from 0 to 1, in patches from `side / coarsest` samples down to two."""
    total, weight, patches = np.zeros((side, side)), 1.0, coarsest
    while patches <= side // 2:
        lattice = random.random((patches, patches))
        place = np.arange(side) * patches / side
        low = place.astype(int)
        part = place - low
        part = part * part * (3 - 2 * part)
        high = (low + 1) % patches
        rows = lattice[low] * (1 - part)[:, None] + lattice[high] * part[:, None]
        total += weight * (rows[:, low] * (1 - part) + rows[:, high] * part)
        weight, patches = weight / 2, patches * 2
    total -= total.min()
    return np.asarray(total / total.max(), dtype=np.float32)
