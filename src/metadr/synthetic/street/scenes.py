"""The five worlds. They take the names of Virtual KITTI's scenes and their kind of place, not their geometry."""

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from metadr.synthetic.street import models
from metadr.synthetic.street.panels import Builder
from metadr.synthetic.street.road import Crossing, Line, Road, centre_line
from metadr.synthetic.street.world import Driver, Verge, World, backdrop, flow, steady, wavering
from metadr.vkitti2_classes import FRAMES

Random = np.random.Generator
Floats = np.ndarray

TOWN = {"sedan": 0.3, "hatch": 0.26, "estate": 0.2, "van": 0.1, "bus": 0.08, "truck": 0.06}
MOTORWAY = {"sedan": 0.26, "hatch": 0.16, "estate": 0.2, "van": 0.12, "bus": 0.06, "truck": 0.1, "trailer": 0.1}
START = 30.0  # metres along the road of the first frame
LANE = 3.4
AHEAD = 280.0  # metres of world beyond the last frame


@cache
def world(scene: str, seed: int) -> World:
    """One of the five, with everything in it decided by the seed."""
    random = np.random.default_rng([seed, int(scene.removeprefix("Scene"))])
    return _WORLDS[scene](random, FRAMES[scene])


def _camera(aside: float, along: Callable[[float], float]) -> Driver:
    return Driver(Builder().done(), aside, along)


def _waves(*waves: tuple[float, float, float]) -> Callable[[Floats], Floats]:
    """A curvature: the sum of sines of (radius, period, phase), in metres and radians."""
    return lambda at: sum(np.sin(2 * np.pi * at / period + phase) / radius for radius, period, phase in waves)


def _street(length: float, random: Random, *, park: float, walk: float, crossings: tuple[Crossing, ...] = (), bend: float = 0.0) -> Road:
    """Two lanes, space to park, pavements."""
    edge = LANE + park
    bands = (
        (-edge - walk - 0.2, "grass"),
        (-edge - 0.2, "pavement"),
        (-edge, "kerb"),
        (-LANE, "parking"),
        (LANE, "asphalt"),
        (edge, "parking"),
        (edge + 0.2, "kerb"),
        (edge + 0.2 + walk, "pavement"),
        (np.inf, "grass"),
    )
    lines = (Line(0.0, dash=(3.0, 4.0)), Line(-LANE + 0.1), Line(LANE - 0.1))
    curve = _waves((bend, 420, 0.4), (1.6 * bend, 190, 2.0)) if bend else np.zeros_like
    return Road(bands, lines, crossings, (-LANE, LANE), *centre_line(length, curve))


def _town(verge: Verge, length: float, edge: float, walk: float) -> None:
    """Lamps, signs, bins and traffic lights, as any street has them."""
    random = verge.random
    for side in (-1, 1):
        turn = 0.0 if side > 0 else np.pi
        verge.row(models.lamp_post, side, 12 + 11 * side, length, edge + 0.6, every=34, turn=turn)
        draw_sign = partial(_any_sign, random)
        verge.row(draw_sign, side, 20, length, edge + 0.5, every=27, spread=6, share=0.75, turn=turn)
        verge.row(lambda: models.clutter(random), side, 16, length, edge + walk - 0.7, every=23, spread=4, share=0.6, turn=side * np.pi / 2)
    for crossing in verge.road.crossings:
        lit = int(random.choice([0, 2]))
        near, far = crossing.along - crossing.half - 5, crossing.along + crossing.half + 5
        verge.put(models.signal(lit, arm=3.6), near, edge + 0.5)
        verge.put(models.signal(lit), far, edge + 0.5)
        verge.put(models.signal(lit, arm=3.6), far, -edge - 0.5, np.pi)
        verge.put(models.signal(lit), near, -edge - 0.5, np.pi)


def _any_sign(random: Random) -> models.Panels:
    return models.sign(int(random.integers(6)))


def _urban(random: Random, frames: int) -> World:
    """Scene01: a street of houses and trees, nearly straight, with a crossing."""
    speed = 0.9
    length = START + speed * frames + AHEAD
    crossings = tuple(Crossing(at, 4.2) for at in (150.0, 330.0, 520.0))
    road = _street(length, random, park=2.2, walk=3.0, crossings=crossings, bend=900)
    verge, edge = Verge(road, random), LANE + 2.2
    for side in (-1, 1):
        verge.houses(side, 0, length, edge + 4.2, storeys=(1, 4), gap=0.22)
        verge.row(lambda: models.tree(random, "leafy"), side, 8, length, edge + 1.3, every=14, spread=1.0, share=0.6)
        verge.row(lambda: models.tree(random, "leafy"), side, 8, length, edge + 14, every=8, spread=3, share=0.8)
        verge.row(lambda: models.bush(random), side, 4, length, edge + 3.6, every=5, spread=0.5, share=0.4)
        verge.parked(side, 5, length, LANE + 1.1, share=0.45)
    _town(verge, length, edge, 3.0)
    drivers = flow(random, -LANE / 2, START, length * 2, speed=-0.9, every=(16, 60), kinds=TOWN, oncoming=True)
    drivers += flow(random, LANE / 2, START + 17, START + 250, speed=0.93, every=(14, 50), kinds=TOWN)
    return World(road, backdrop(random, 0.02, 0.05, (0.055, 0.085, 0.035)), verge.done(), tuple(drivers), _camera(LANE / 2, steady(START, speed)))


def _crossing(random: Random, frames: int) -> World:
    """Scene02: a wide road between blocks, with crossings, traffic lights and much traffic."""
    speed = 0.8
    length = START + speed * frames + AHEAD
    crossings = tuple(Crossing(at, 7.5) for at in (95.0, 190.0, 320.0, 460.0))
    edge = 2 * LANE
    bands = (
        (-edge - 4.2, "grass"),
        (-edge - 0.2, "pavement"),
        (-edge, "kerb"),
        (edge, "asphalt"),
        (edge + 0.2, "kerb"),
        (edge + 4.2, "pavement"),
        (np.inf, "grass"),
    )
    lines = (Line(-0.12), Line(0.12), Line(-LANE, dash=(3.0, 3.0)), Line(LANE, dash=(3.0, 3.0)), Line(-edge + 0.15), Line(edge - 0.15))
    road = Road(bands, lines, crossings, (-edge, edge), *centre_line(length, np.zeros_like))
    verge = Verge(road, random)
    for side in (-1, 1):
        verge.houses(side, 0, length, edge + 5, storeys=(3, 7), gap=0.12)
        verge.row(lambda: models.tree(random, "leafy"), side, 8, length, edge + 1.6, every=19, spread=1.5, share=0.6)
        verge.along(models.hedge(0.9), side, 30, length, edge + 4.0)
        for crossing in crossings:  # houses and cars down the streets that cross
            for offset in (24.0, 44.0, 66.0):
                verge.put(models.building(random, 15, int(random.integers(2, 6))), crossing.along + 10 + 4 * random.random(), side * (offset + 16 * (side < 0)), 0.0)
            verge.put(models.vehicle(random, str(random.choice(["sedan", "van", "hatch", "truck"]))), crossing.along + 2.2 * side, side * (edge + random.uniform(5, 9)), -side * np.pi / 2)
    _town(verge, length, edge, 4.0)
    drivers = flow(random, -LANE / 2, START, length * 2, speed=-0.75, every=(14, 40), kinds=TOWN, oncoming=True)
    drivers += flow(random, -1.5 * LANE, START, length * 2, speed=-0.6, every=(16, 55), kinds=TOWN, oncoming=True)
    drivers += flow(random, 1.5 * LANE, START - 20, START + 300, speed=0.72, every=(14, 34), kinds=TOWN)
    ahead = wavering(START, speed, 150, 0.6)
    for gap in (19.0, 44.0, 61.0):
        kind = str(random.choice(["sedan", "van", "hatch", "truck"]))
        drivers.append(Driver(models.vehicle(random, kind), LANE / 2, lambda moment, gap=gap: ahead(moment + 6) + gap))  # type: ignore[misc]
    return World(road, backdrop(random, 0.015, 0.04, (0.055, 0.08, 0.04)), verge.done(), tuple(drivers), _camera(LANE / 2, ahead))


def _parked(random: Random, frames: int) -> World:
    """Scene06: a narrow street with cars parked along both sides."""
    speed = 0.55
    length = START + speed * frames + AHEAD
    road = _street(length, random, park=2.1, walk=2.2, crossings=(Crossing(120.0, 3.5), Crossing(300.0, 3.5)), bend=1500)
    verge, edge = Verge(road, random), LANE + 2.1
    for side in (-1, 1):
        verge.houses(side, 0, length, edge + 2.8, storeys=(2, 5), gap=0.06)
        verge.parked(side, 3, length, LANE + 1.0, share=0.9)
        verge.row(lambda: models.tree(random, "leafy"), side, 10, length, edge + 0.9, every=22, spread=1.5, share=0.5)
        verge.row(lambda: models.bush(random), side, 4, length, edge + 2.3, every=7, spread=0.3, share=0.3)
    _town(verge, length, edge, 2.2)
    drivers = flow(random, -LANE / 2, START, length * 2, speed=-0.6, every=(25, 90), kinds=TOWN, oncoming=True)
    drivers += flow(random, LANE / 2, START + 22, START + 200, speed=0.58, every=(25, 80), kinds=TOWN)
    return World(road, backdrop(random, 0.01, 0.03, (0.06, 0.08, 0.04)), verge.done(), tuple(drivers), _camera(LANE / 2, wavering(START, speed, 180, 0.3)))


def _forest(random: Random, frames: int) -> World:
    """Scene18: a country road that winds through a forest."""
    speed = 1.1
    length = START + speed * frames + AHEAD
    bands = ((-7.5, "earth"), (-4.3, "grass"), (-3.6, "gravel"), (3.6, "asphalt"), (4.3, "gravel"), (7.5, "grass"), (np.inf, "earth"))
    lines = (Line(0.0, dash=(4.0, 6.0)), Line(-3.35), Line(3.35))
    road = Road(bands, lines, (), (-3.6, 3.6), *centre_line(length, _waves((150, 260, 0.0), (260, 110, 1.0))))
    verge = Verge(road, random)
    for side in (-1, 1):
        for aside, every in ((9.5, 6.0), (14.0, 5.0), (20.0, 5.0), (28.0, 6.0), (38.0, 7.0)):
            kind = "conifer" if random.random() < 0.65 else "leafy"
            verge.row(lambda kind=kind: models.tree(random, kind), side, 4, length, aside, every=every, spread=2.0, share=0.85)  # type: ignore[misc]
        verge.row(lambda: models.tree(random, "leafy"), side, 6, length, 8.5, every=17, spread=1.2, share=0.7)
        verge.row(lambda: models.bush(random), side, 4, length, 7.2, every=3.2, spread=1.0, share=0.7)
        verge.row(partial(_any_sign, random), side, 25, length, 4.9, every=42, spread=8, share=0.8, turn=0.0 if side > 0 else np.pi)
    for start in np.arange(20, length - 60, 120).tolist():
        side = int(random.choice([-1, 1]))
        verge.along(models.guard_rail(), side, start, start + 64, 4.6)
    verge.houses(1, 160, 176, 15, storeys=(0, 1), gap=0)
    verge.houses(-1, 330, 350, 15, storeys=(0, 1), gap=0)
    drivers = flow(random, -1.75, START, length * 2, speed=-1.1, every=(40, 130), kinds=TOWN, oncoming=True)
    drivers += flow(random, 1.75, START + 25, START + 250, speed=1.13, every=(35, 100), kinds=TOWN)
    return World(road, backdrop(random, 0.05, 0.10, (0.030, 0.050, 0.022)), verge.done(), tuple(drivers), _camera(1.75, steady(START, speed)))


def _motorway(random: Random, frames: int) -> World:
    """Scene20: a motorway through fields, with crash barriers, lorries and signs overhead."""
    speed = 1.5
    length = START + speed * frames + AHEAD
    lane, middle = 3.7, 2.2
    outer, shoulder = middle + 3 * lane, middle + 3 * lane + 2.6
    bands = (
        (-shoulder - 9, "meadow"),
        (-shoulder, "grass"),
        (-middle, "asphalt"),
        (middle, "grass"),
        (shoulder, "asphalt"),
        (shoulder + 9, "grass"),
        (np.inf, "meadow"),
    )
    lines = tuple(
        line
        for side in (-1, 1)
        for line in (
            Line(side * (middle + 0.3), 0.18),
            Line(side * (middle + lane), 0.15, (6.0, 9.0)),
            Line(side * (middle + 2 * lane), 0.15, (6.0, 9.0)),
            Line(side * outer, 0.22),
        )
    )
    road = Road(bands, lines, (), (-shoulder, shoulder), *centre_line(length, _waves((1100, 900, 0.3), (1500, 380, 1.7))))
    verge = Verge(road, random)
    for side in (-1, 1):
        verge.along(models.guard_rail(), side, 0, length, 0.5)
        for start in np.arange(0, length - 160, 200).tolist():
            verge.along(models.guard_rail(), side, start, start + float(random.uniform(80, 180)), shoulder + 0.6)
        verge.row(lambda: models.bush(random), side, 3, length, shoulder + 5, every=5, spread=2.5, share=0.5)
        verge.row(lambda: models.tree(random, "leafy"), side, 5, length, shoulder + 12, every=11, spread=5, share=0.5)
        verge.row(lambda: models.tree(random, "conifer"), side, 5, length, shoulder + 22, every=12, spread=6, share=0.5)
        verge.row(models.lamp_post, side, 20, length, shoulder + 1.5, every=75, share=0.6, turn=0.0 if side > 0 else np.pi)
        verge.row(partial(_any_sign, random), side, 60, length, shoulder + 1.8, every=95, spread=20, turn=0.0 if side > 0 else np.pi)
        verge.houses(side, 100, length, shoulder + 45, storeys=(1, 3), gap=0.75)
    for along in np.arange(140, length - 50, 330).tolist():
        verge.put(models.gantry(shoulder - middle + 3), along, middle - 1)
    drivers = []
    for number in range(3):
        kinds = MOTORWAY if number else TOWN
        every = (20.0, 70.0) if number else (30.0, 110.0)
        drivers += flow(random, -(middle + (number + 0.5) * lane), START, length * 2.2, speed=-1.5 - 0.1 * (2 - number), every=every, kinds=kinds, oncoming=True)
    drivers += flow(random, middle + 2.5 * lane, START - 60, START + 700, speed=1.28, every=(24, 80), kinds=MOTORWAY)
    drivers += flow(random, middle + 0.5 * lane, START - 400, START + 300, speed=1.75, every=(35, 110), kinds=TOWN)
    drivers += flow(random, middle + 1.5 * lane, START + 28, START + 400, speed=1.52, every=(30, 90), kinds=MOTORWAY)
    return World(road, backdrop(random, 0.012, 0.055, (0.060, 0.085, 0.050)), verge.done(), tuple(drivers), _camera(middle + 1.5 * lane, steady(START, speed)))


_WORLDS: dict[str, Callable[[Random, int], World]] = {
    "Scene01": _urban,
    "Scene02": _crossing,
    "Scene06": _parked,
    "Scene18": _forest,
    "Scene20": _motorway,
}
