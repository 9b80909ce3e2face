"""The five worlds. They take the names of Virtual KITTI's scenes and their kind of place, not their geometry."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metadr.synthetic.street import models
from metadr.synthetic.street.panels import Builder
from metadr.synthetic.street.road import Crossing, Line, Road, centre_line
from metadr.synthetic.street.texture import Random
from metadr.synthetic.street.world import (
    SIDES,
    Along,
    Driver,
    Verge,
    World,
    backdrop,
    drawn,
    flow,
    following,
    steady,
    wavering,
)
from metadr.vkitti2_classes import FRAMES

Curve = Callable[[NDArray[Any]], NDArray[Any]]

TOWN = {"sedan": 0.3, "hatch": 0.26, "estate": 0.18, "van": 0.1, "bus": 0.08, "truck": 0.08}
MOTORWAY = {"sedan": 0.26, "hatch": 0.16, "estate": 0.2, "van": 0.12, "bus": 0.06, "truck": 0.1, "trailer": 0.1}
START = 30.0  # metres along the road of the first frame
AHEAD = 280.0  # metres of world beyond the last frame
LANE = 3.4


@cache
def world(scene: str, seed: int) -> World:
    """One of the five, with everything in it decided by the seed."""
    random = np.random.default_rng([seed, int(scene.removeprefix("Scene"))])
    return _WORLDS[scene](random, FRAMES[scene])


def _urban(random: Random, frames: int) -> World:
    """Scene01: a street of houses and trees, nearly straight, with crossings."""
    speed, edge, walk = 0.9, LANE + 2.2, 3.0
    crossings = tuple(Crossing(at, 4.2) for at in (150.0, 330.0, 520.0))
    curve = _waves((900, 420, 0.4), (1440, 190, 2.0))
    road = _street(START + speed * frames + AHEAD, edge, walk, crossings, curve)
    verge = Verge(road, random)
    verge.houses(edge + 4.2, storeys=(1, 4), empty=0.22)
    verge.parked(LANE + 1.1, share=0.45)
    verge.row(models.leafy, edge + 1.3, every=14, spread=1, scatter=0.5, share=0.6)
    verge.row(models.leafy, edge + 14, every=8, spread=3, scatter=3, share=0.8)
    verge.row(models.bush, edge + 3.6, every=5, spread=0.5, scatter=0.3, share=0.4)
    _furnish(verge, edge, walk)
    drivers = [
        *flow(random, -LANE / 2, START, 2 * verge.length, speed=-0.9, every=(16, 60), kinds=TOWN),
        *flow(random, LANE / 2, START + 17, START + 250, speed=1.0, every=(14, 50), kinds=TOWN),
    ]
    trees = backdrop(random, 0.02, 0.05, (0.055, 0.085, 0.035))
    return World(road, trees, verge.done(), tuple(drivers), _camera(LANE / 2, steady(START, speed)))


def _blocks(random: Random, frames: int) -> World:
    """Scene02: a wide road between blocks, with wide crossings, traffic lights and much traffic."""
    speed, edge = 0.8, 2 * LANE
    crossings = tuple(Crossing(at, 7.5) for at in (95.0, 190.0, 320.0, 460.0))
    bands = _mirrored("asphalt", (edge, "kerb"), (edge + 0.2, "pavement"), (edge + 4.2, "grass"))
    lines = (
        *(Line(side * 0.12) for side in SIDES),
        *(Line(side * LANE, dash=(3.0, 3.0)) for side in SIDES),
        *(Line(side * (edge - 0.15)) for side in SIDES),
    )
    length = START + speed * frames + AHEAD
    road = Road(bands, lines, crossings, (-edge, edge), *centre_line(length, np.zeros_like))
    verge = Verge(road, random)
    verge.houses(edge + 5, storeys=(3, 7), empty=0.12)
    verge.row(models.leafy, edge + 1.6, every=19, spread=1.5, scatter=0.5, share=0.6)
    verge.fence(models.hedge, edge + 4.0, start=30)
    for crossing in crossings:
        for side in SIDES:  # houses and a car down the streets that cross
            for offset in (24.0, 44.0, 66.0):
                place = crossing.along + 10 + 4 * random.random()
                house = models.building(random, 15, int(random.integers(2, 6)))
                verge.put(house, place, offset if side > 0 else -offset - 16)
            waiting = models.vehicle(random, drawn(random, TOWN))
            verge.put(waiting, crossing.along + 2.2 * side, side * (edge + random.uniform(5, 9)), -side * np.pi / 2)
    _furnish(verge, edge, 4.0)
    ahead = wavering(START, speed, 150, 0.6)
    drivers = [
        *flow(random, -LANE / 2, START, 2 * length, speed=-0.75, every=(14, 40), kinds=TOWN),
        *flow(random, -1.5 * LANE, START, 2 * length, speed=-0.6, every=(16, 55), kinds=TOWN),
        *flow(random, 1.5 * LANE, START - 20, START + 300, speed=0.72, every=(14, 34), kinds=TOWN),
        *(
            Driver(models.vehicle(random, drawn(random, TOWN)), LANE / 2, following(ahead, gap))
            for gap in (19.0, 44.0, 61.0)
        ),
    ]
    trees = backdrop(random, 0.015, 0.04, (0.055, 0.08, 0.04))
    return World(road, trees, verge.done(), tuple(drivers), _camera(LANE / 2, ahead))


def _parked(random: Random, frames: int) -> World:
    """Scene06: a narrow street with cars parked along both sides."""
    speed, edge, walk = 0.55, LANE + 2.1, 2.2
    crossings = (Crossing(120.0, 3.5), Crossing(300.0, 3.5))
    road = _street(START + speed * frames + AHEAD, edge, walk, crossings, _waves((1500, 420, 0.4), (2400, 190, 2.0)))
    verge = Verge(road, random)
    verge.houses(edge + 2.8, storeys=(2, 5), empty=0.06)
    verge.parked(LANE + 1.0, share=0.9)
    verge.row(models.leafy, edge + 0.9, every=22, spread=1.5, share=0.5)
    verge.row(models.bush, edge + 2.3, every=7, spread=0.3, share=0.3)
    _furnish(verge, edge, walk)
    drivers = [
        *flow(random, -LANE / 2, START, 2 * verge.length, speed=-0.6, every=(18, 60), kinds=TOWN),
        *flow(random, LANE / 2, START + 22, START + 200, speed=0.62, every=(20, 60), kinds=TOWN),
    ]
    trees = backdrop(random, 0.01, 0.03, (0.06, 0.08, 0.04))
    return World(road, trees, verge.done(), tuple(drivers), _camera(LANE / 2, wavering(START, speed, 180, 0.3)))


def _forest(random: Random, frames: int) -> World:
    """Scene18: a country road that winds through a forest."""
    speed, lane = 1.1, 3.5
    bands = _mirrored("asphalt", (3.6, "gravel"), (4.3, "grass"), (7.5, "earth"))
    lines = (Line(0.0, dash=(4.0, 6.0)), *(Line(side * 3.35) for side in SIDES))
    curve = _waves((150, 260, 0.0), (260, 110, 1.0))
    road = Road(bands, lines, (), (-3.6, 3.6), *centre_line(START + speed * frames + AHEAD, curve))
    verge = Verge(road, random)
    for aside, every in ((9.5, 6.0), (14.0, 5.0), (20.0, 5.0), (28.0, 6.0), (38.0, 7.0)):
        verge.row(models.conifer, aside, every=1.5 * every, spread=2, scatter=2, share=0.85)
        verge.row(models.leafy, aside + 2, every=2.5 * every, spread=2, scatter=2, share=0.85)
    verge.row(models.leafy, 8.5, every=17, spread=1.2, scatter=0.8, share=0.7)
    verge.row(models.bush, 7.2, every=3.2, spread=1, scatter=1, share=0.7)
    verge.row(models.sign, 4.9, start=25, every=42, spread=8, share=0.8)
    for start in np.arange(20, verge.length - 60, 120).tolist():
        verge.fence(models.guard_rail, 4.6, start=start, stop=start + 64, sides=(int(random.choice(SIDES)),))
    for start, side in ((160.0, 1), (330.0, -1)):
        verge.houses(15, storeys=(0, 1), empty=0, start=start, stop=start + 20, sides=(side,))
    drivers = [
        *flow(random, -lane / 2, START, 2 * verge.length, speed=-1.1, every=(25, 80), kinds=MOTORWAY),
        *flow(random, lane / 2, START + 25, START + 250, speed=1.2, every=(25, 70), kinds=MOTORWAY),
    ]
    trees = backdrop(random, 0.05, 0.10, (0.030, 0.050, 0.022))
    return World(road, trees, verge.done(), tuple(drivers), _camera(lane / 2, steady(START, speed)))


def _motorway(random: Random, frames: int) -> World:
    """Scene20: a motorway through fields, with crash barriers, lorries and signs overhead."""
    speed, lane, middle = 1.5, 3.7, 2.2
    outer = middle + 3 * lane
    shoulder = outer + 2.6
    bands = _mirrored("grass", (middle, "asphalt"), (shoulder, "grass"), (shoulder + 9, "meadow"))
    lines = tuple(
        line
        for side in SIDES
        for line in (
            Line(side * (middle + 0.3), 0.18),
            Line(side * (middle + lane), 0.15, (6.0, 9.0)),
            Line(side * (middle + 2 * lane), 0.15, (6.0, 9.0)),
            Line(side * outer, 0.22),
        )
    )
    curve = _waves((1100, 900, 0.3), (1500, 380, 1.7))
    road = Road(bands, lines, (), (-shoulder, shoulder), *centre_line(START + speed * frames + AHEAD, curve))
    verge = Verge(road, random)
    verge.fence(models.guard_rail, 0.5)
    for start in np.arange(0, verge.length - 160, 200).tolist():
        for side in SIDES:
            stop = start + random.uniform(80, 180)
            verge.fence(models.guard_rail, shoulder + 0.6, start=start, stop=stop, sides=(side,))
    verge.row(models.bush, shoulder + 5, every=5, spread=2.5, scatter=2.5, share=0.5)
    verge.row(models.leafy, shoulder + 12, every=11, spread=5, scatter=5, share=0.5)
    verge.row(models.conifer, shoulder + 22, every=12, spread=6, scatter=6, share=0.5)
    verge.row(models.lamp_post, shoulder + 1.5, start=20, every=75, share=0.6)
    verge.row(models.sign, shoulder + 1.8, start=60, every=95, spread=20)
    verge.row(models.clutter, shoulder + 2.5, start=40, every=90, spread=20)
    verge.houses(shoulder + 45, storeys=(1, 3), empty=0.75, start=100)
    for along in np.arange(140, verge.length - 50, 330).tolist():
        verge.put(models.gantry(shoulder - middle + 3), along, middle - 1)
    lanes = [middle + (number + 0.5) * lane for number in range(3)]
    far = 2.2 * verge.length
    drivers = [
        *flow(random, -lanes[0], START, far, speed=-1.7, every=(30, 110), kinds=TOWN),
        *flow(random, -lanes[1], START, far, speed=-1.6, every=(20, 70), kinds=MOTORWAY),
        *flow(random, -lanes[2], START, far, speed=-1.5, every=(20, 70), kinds=MOTORWAY),
        *flow(random, lanes[2], START - 60, START + 700, speed=1.28, every=(24, 80), kinds=MOTORWAY),
        *flow(random, lanes[0], START - 400, START + 300, speed=1.75, every=(35, 110), kinds=TOWN),
        *flow(random, lanes[1], START + 28, START + 400, speed=1.56, every=(30, 90), kinds=MOTORWAY),
    ]
    hills = backdrop(random, 0.012, 0.055, (0.060, 0.085, 0.050))
    return World(road, hills, verge.done(), tuple(drivers), _camera(lanes[1], steady(START, speed)))


def _street(length: float, edge: float, walk: float, crossings: tuple[Crossing, ...], curve: Curve) -> Road:
    """Two lanes, space to park up to `edge`, pavements `walk` wide."""
    bands = _mirrored(
        "asphalt", (LANE, "parking"), (edge, "kerb"), (edge + 0.2, "pavement"), (edge + 0.2 + walk, "grass")
    )
    lines = (Line(0.0, dash=(3.0, 4.0)), *(Line(side * (LANE - 0.1)) for side in SIDES))
    return Road(bands, lines, crossings, (-LANE, LANE), *centre_line(length, curve))


def _furnish(verge: Verge, edge: float, walk: float) -> None:
    """Lamps, signs, bins and traffic lights, as any street has them."""
    verge.row(models.lamp_post, edge + 0.6, start=12, every=34)
    verge.row(models.sign, edge + 0.5, start=20, every=27, spread=6, share=0.75)
    verge.row(models.clutter, edge + walk - 0.7, start=16, every=23, spread=4, share=0.6)
    for crossing in verge.road.crossings:
        lit = int(verge.random.choice([0, 2]))
        for side in SIDES:
            before, after = (crossing.along + part * side * (crossing.half + 5) for part in (-1, 1))
            turn = 0.0 if side > 0 else np.pi
            verge.put(models.signal(lit, arm=3.6), before, side * (edge + 0.5), turn)
            verge.put(models.signal(lit), after, side * (edge + 0.5), turn)


def _camera(aside: float, along: Along) -> Driver:
    return Driver(Builder().done(), aside, along)


def _mirrored(middle: str, *beside: tuple[float, str]) -> tuple[tuple[float, str], ...]:
    """The bands of a road that is alike on both sides: what the middle is, then where each band begins."""
    starts = [start for start, _ in beside]
    kinds = [kind for _, kind in beside]
    left = [(-start, kind) for start, kind in zip(starts[::-1], kinds[::-1], strict=True)]
    right = list(zip([*starts, np.inf], [middle, *kinds], strict=True))
    return (*left, *right)


def _waves(*waves: tuple[float, float, float]) -> Curve:
    """A turn per metre: the sum of sines of (radius, period, phase), in metres and radians."""

    def curve(at: NDArray[Any]) -> NDArray[Any]:
        each = [np.sin(2 * np.pi * at / period + phase) / radius for radius, period, phase in waves]
        return np.asarray(np.sum(each, axis=0))

    return curve


_WORLDS: dict[str, Callable[[Random, int], World]] = {
    "Scene01": _urban,
    "Scene02": _blocks,
    "Scene06": _parked,
    "Scene18": _forest,
    "Scene20": _motorway,
}
