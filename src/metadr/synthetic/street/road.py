"""The road: a centre line, what the ground beside it is, and what is painted on it.

A place on the ground is (along, aside): metres along the centre line, and metres to the right of it.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metadr.synthetic.street.texture import Floats, clouds

Vector = tuple[float, float, float]


class Material(NamedTuple):
    """What a stretch of ground is made of; colours in linear light."""

    label: str
    dark: Vector
    light: Vector
    patch: float  # metres across that its noise repeats after
    gloss: float  # how much of it mirrors when wet, 0 to 1
    slab: float = 0.0  # side of paving slabs, metres


MATERIALS: dict[str, Material] = {
    "asphalt": Material("Road", (0.060, 0.061, 0.064), (0.112, 0.112, 0.114), 9.0, 1.0),
    "parking": Material("Road", (0.085, 0.083, 0.082), (0.150, 0.146, 0.142), 7.0, 1.0),
    "kerb": Material("Terrain", (0.26, 0.26, 0.25), (0.36, 0.36, 0.34), 5.0, 0.6),
    "pavement": Material("Terrain", (0.19, 0.182, 0.172), (0.29, 0.28, 0.265), 6.0, 0.7, slab=1.0),
    "grass": Material("Terrain", (0.038, 0.070, 0.016), (0.115, 0.165, 0.040), 11.0, 0.1),
    "meadow": Material("Terrain", (0.080, 0.105, 0.028), (0.215, 0.215, 0.070), 23.0, 0.1),
    "earth": Material("Terrain", (0.060, 0.045, 0.028), (0.140, 0.105, 0.066), 7.0, 0.25),
    "gravel": Material("Terrain", (0.150, 0.140, 0.125), (0.270, 0.255, 0.230), 3.0, 0.3),
}
NAMES = tuple(MATERIALS)
MARK: Vector = (0.62, 0.62, 0.60)
SIDE = 256  # samples of the noise


class Line(NamedTuple):
    """A painted line along the road; with `dash`, so many metres of it and then so many of none."""

    aside: float
    width: float = 0.13
    dash: tuple[float, float] | None = None


class Crossing(NamedTuple):
    """A street across the road; zebra crossings on both sides of it."""

    along: float
    half: float  # of its width


class Road(NamedTuple):
    """`bands`: from left to right, where each one ends (the last does not) and what it is."""

    bands: tuple[tuple[float, str], ...]
    lines: tuple[Line, ...]
    crossings: tuple[Crossing, ...]
    edges: tuple[float, float]  # of the carriageway, left and right
    x: Floats  # of the centre line, every metre
    z: Floats
    heading: Floats

    def pose(self, along: float, aside: float = 0.0) -> tuple[float, float, float]:
        """x, z and heading of a place beside the centre line."""
        at = np.arange(len(self.x))
        x, z, heading = (float(np.interp(along, at, line)) for line in (self.x, self.z, self.heading))
        return x + aside * float(np.cos(heading)), z - aside * float(np.sin(heading)), heading

    @property
    def straight(self) -> bool:
        return not self.heading.any()

    def places(self, x: Floats, z: Floats, guess: Floats) -> tuple[Floats, Floats]:
        """(along, aside) of points of the world, from a guess of how far along they lie."""
        if self.straight:
            return z, x
        along = guess
        for _ in range(3):  # the foot of the perpendicular on the centre line, by Newton's method
            low, part = self._index(along)
            heading = self.heading[low] + part * (self.heading[low + 1] - self.heading[low])
            dx = x - (self.x[low] + part * (self.x[low + 1] - self.x[low]))
            dz = z - (self.z[low] + part * (self.z[low + 1] - self.z[low]))
            sin, cos = np.sin(heading), np.cos(heading)
            along = along + np.clip(dx * sin + dz * cos, -30, 30)
        return along, dx * cos - dz * sin

    def _index(self, along: Floats) -> tuple[NDArray[np.int64], Floats]:
        place = np.clip(along, 0, len(self.x) - 1.001)
        low = place.astype(np.int64)
        return low, (place - low).astype(np.float32)


def centre_line(length: float, curvature: Callable[[Floats], Floats]) -> tuple[Floats, Floats, Floats]:
    """x, z and heading every metre, from the turn per metre."""
    at = np.arange(int(length) + 1, dtype=np.float32)
    heading = np.concatenate([[0], np.cumsum(curvature(at[:-1] + 0.5))])
    middle = (heading[1:] + heading[:-1]) / 2
    x, z = (np.concatenate([[0], np.cumsum(step(middle))]) for step in (np.sin, np.cos))
    return x.astype(np.float32), z.astype(np.float32), heading.astype(np.float32)


class Ground(NamedTuple):
    material: NDArray[np.int64]  # index in NAMES
    colour: Floats  # (N, 3)


def ground(road: Road, along: Floats, aside: Floats, grain_along: Floats, grain_aside: Floats) -> Ground:
    """What the ground is at N places; `grain_*` are the metres that a sample there covers, each way."""
    ends, kinds = zip(*road.bands, strict=True)
    material = np.array([NAMES.index(kind) for kind in kinds])[np.searchsorted(np.array(ends[:-1]), aside)]
    left, right = road.edges
    mark = np.zeros(len(along), dtype=np.float32)
    for line in road.lines:
        cover = _cover(aside - line.aside, line.width / 2, grain_aside)
        if line.dash is not None:
            on, off = line.dash
            phase = np.mod(along, on + off) - (on + off) / 2
            blurred = np.clip(grain_along / (on + off), 0, 1)
            cover = cover * (_cover(phase, on / 2, grain_along) * (1 - blurred) + on / (on + off) * blurred)
        mark = np.maximum(mark, cover)
    asphalt = NAMES.index("asphalt")
    for crossing in road.crossings:
        off = np.abs(along - crossing.along)
        mark = np.where(off < crossing.half + 5.5, 0, mark).astype(np.float32)
        material = np.where(off < crossing.half, asphalt, material)
        on_road = (aside > left + 0.2) & (aside < right - 0.2)
        stripes = _cover(np.mod(aside - left, 1.0) - 0.5, 0.25, grain_aside)
        zebra = _cover(off - crossing.half - 2.6, 1.5, grain_along) * stripes
        halt = _cover(off - crossing.half - 5.2, 0.2, grain_along)
        mark = np.maximum(mark, np.where(on_road, np.maximum(zebra, halt), 0)).astype(np.float32)
    colour = _colour(material, along, aside, np.maximum(grain_along, grain_aside))
    worn = (mark * (0.75 + 0.25 * _noise()[0][_at(along, 3.0), _at(aside, 3.0)]))[:, None]
    return Ground(material, colour * (1 - worn) + worn * np.array(MARK, dtype=np.float32))


def _colour(material: NDArray[np.int64], along: Floats, aside: Floats, grain: Floats) -> Floats:
    dark, light = (
        np.array([getattr(each, name) for each in MATERIALS.values()], np.float32) for name in Material._fields[1:3]
    )
    patch = np.array([each.patch for each in MATERIALS.values()], dtype=np.float32)[material]
    slab = np.array([each.slab for each in MATERIALS.values()], dtype=np.float32)[material]
    fine, coarse = _noise()
    blurred = np.clip(grain / 0.25, 0, 1)  # fine noise fades where a sample covers much of it
    level = fine[_at(along, patch), _at(aside, patch)] * (1 - blurred) + 0.5 * blurred
    level = 0.6 * level + 0.4 * coarse[_at(along, 90.0), _at(aside, 70.0)]
    paved = slab > 0
    if paved.any():
        side = np.maximum(slab, 0.1)
        joint = np.minimum(np.mod(along, side), np.mod(aside, side))
        level = np.where(
            paved, level - 0.8 * np.clip(1 - joint / 0.05, 0, 1) * (1 - np.clip(grain / 0.15, 0, 1)), level
        )
    return np.asarray(dark[material] + level[:, None] * (light - dark)[material], dtype=np.float32)


def _cover(off: Floats, half: float, grain: Floats) -> Floats:
    """How much of a sample lies within `half` of a middle that is `off` away."""
    grain = np.maximum(grain, 0.01)
    return np.clip((half - np.abs(off)) / grain + 0.5, 0, np.minimum(1, 2 * half / grain)).astype(np.float32)


def _at(place: Floats, period: Floats | float) -> NDArray[np.int64]:
    return np.asarray(np.mod(place / period, 1) * SIDE, dtype=np.int64) % SIDE


@cache
def _noise() -> tuple[Floats, Floats]:
    """Fine and coarse, from 0 to 1."""
    random = np.random.default_rng(7)
    return clouds(random, SIDE, 16), clouds(random, SIDE, 4)
