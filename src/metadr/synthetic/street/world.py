"""A world: a road, what stands beside it, what drives on it, and where the camera is in each frame."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from metadr.synthetic.street import models
from metadr.synthetic.street.panels import Panels, joined
from metadr.synthetic.street.raster import FAR, Backdrop
from metadr.synthetic.street.road import Road
from metadr.synthetic.street.texture import clouds

Random = np.random.Generator
QUARTER = np.pi / 2


class Driver(NamedTuple):
    """A vehicle that keeps to a lane: `along(moment)` metres along the road, a moment being one frame."""

    model: Panels
    aside: float
    along: Callable[[float], float]
    oncoming: bool = False


class World(NamedTuple):
    road: Road
    backdrop: Backdrop
    standing: Panels
    drivers: tuple[Driver, ...]
    camera: Driver  # its model is empty

    def pose(self, moment: float) -> tuple[float, float, float]:
        """x, z and heading of the car that carries the cameras."""
        sway = 0.12 * np.sin(moment / 31)
        x, z, heading = self.road.pose(self.camera.along(moment), self.camera.aside + sway)
        return x, z, heading + 0.006 * float(np.sin(moment / 23))

    def panels(self, moment: float) -> Panels:
        """All that could be seen at a moment."""
        x, z, _ = self.pose(moment)
        far = np.hypot(self.standing.corner[:, 0] - x, self.standing.corner[:, 2] - z)
        parts = [self.standing.only(far < FAR)]
        here = self.camera.along(moment)
        for driver in self.drivers:
            along = driver.along(moment)
            if -20 < along - here < FAR and 0 < along < len(self.road.x) - 1:
                x, z, heading = self.road.pose(along, driver.aside)
                parts.append(driver.model.placed(x, z, heading + np.pi * driver.oncoming))
        return joined(parts)


class Verge:
    """Puts things beside a road; each has a place along it and aside of it."""

    def __init__(self, road: Road, random: Random) -> None:
        self.road, self.random = road, random
        self.made: list[Panels] = []

    def put(self, model: Panels, along: float, aside: float, turn: float = 0.0) -> None:
        x, z, heading = self.road.pose(along, aside)
        self.made.append(model.placed(x, z, heading + turn))

    def clear(self, along: float, margin: float) -> bool:
        """Whether no street crosses there."""
        return all(abs(along - crossing.along) > crossing.half + margin for crossing in self.road.crossings)

    def houses(self, side: int, start: float, stop: float, aside: float, *, storeys: tuple[int, int], gap: float) -> None:
        """A row of houses whose fronts look at the road; `gap` is the share of empty plots."""
        along = start
        while along < stop:
            width = self.random.uniform(9, 20)
            model = models.building(self.random, width, int(self.random.integers(storeys[0], storeys[1] + 1)))
            back = aside + self.random.uniform(0, 1.5)
            if self.random.random() >= gap and self.clear(along + width / 2, width / 2 + 3):
                begin = along + width if side > 0 else along
                self.put(model, begin, side * back, side * QUARTER)
            along += width + (0.05 if self.random.random() < 0.6 else self.random.uniform(2, 7))

    def row(
        self,
        make: Callable[[], Panels],
        side: int,
        start: float,
        stop: float,
        aside: float,
        *,
        every: float,
        spread: float = 0.0,
        share: float = 1.0,
        turn: float = 0.0,
    ) -> None:
        """Things at about equal distances: `spread` metres off aside and along, a `share` of the places taken."""
        for along in np.arange(start, stop, every).tolist():
            shift, off = (spread * self.random.uniform(-1, 1) for _ in range(2))
            if self.random.random() < share and self.clear(along + shift, 2):
                self.put(make(), along + shift, side * aside + off, turn)

    def along(self, model: Panels, side: int, start: float, stop: float, aside: float, *, length: float = 4.0) -> None:
        """Pieces end to end that look at the road."""
        for place in np.arange(start, stop, length).tolist():
            if self.clear(place + length / 2, length / 2 + 3):
                self.put(model, place + length if side > 0 else place, side * aside, side * QUARTER)

    def parked(self, side: int, start: float, stop: float, aside: float, *, share: float) -> None:
        along = start
        while along < stop:
            kind = str(self.random.choice(["sedan", "hatch", "estate", "van", "bus"], p=[0.3, 0.28, 0.22, 0.12, 0.08]))
            model = models.vehicle(self.random, kind)
            if self.random.random() < share and self.clear(along, 9):
                self.put(model, along, side * (aside + self.random.uniform(-0.12, 0.12)), 0 if side > 0 else np.pi)
            along += self.random.uniform(5.6, 7.2)

    def done(self) -> Panels:
        return joined(self.made)


def steady(start: float, speed: float) -> Callable[[float], float]:
    """`speed` metres a frame."""
    return lambda moment: start + speed * moment


def wavering(start: float, speed: float, period: float, depth: float) -> Callable[[float], float]:
    """The same on average, slower and faster by a share of `depth`, every `period` frames."""
    turn = 2 * np.pi / period
    return lambda moment: start + speed * (moment + depth / turn * float(np.sin(turn * moment)))


def flow(
    random: Random,
    aside: float,
    start: float,
    stop: float,
    *,
    speed: float,
    every: tuple[float, float],
    kinds: dict[str, float],
    oncoming: bool = False,
) -> list[Driver]:
    """A lane of vehicles that all drive equally fast, so that none runs into another."""
    made, along = [], start
    while along < stop:
        kind = str(random.choice(list(kinds), p=list(kinds.values())))
        made.append(Driver(models.vehicle(random, kind), aside, steady(along, speed), oncoming))
        along += random.uniform(*every) + (8 if kind in ("truck", "trailer") else 0)
    return made


def backdrop(random: Random, low: float, high: float, colour: tuple[float, float, float], label: str = "Tree") -> Backdrop:
    """A line between two heights, in radians: waves of hills under crowns of trees."""
    noise = clouds(random, 1024, 8)[int(random.integers(1024))]
    fine = clouds(random, 1024, 128)[int(random.integers(1024))]
    return Backdrop((low + (high - low) * (0.75 * noise + 0.25 * fine)).astype(np.float32), label, colour)
