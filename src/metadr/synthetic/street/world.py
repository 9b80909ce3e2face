"""A world: a road, what stands beside it, what drives on it, and where the camera is in each frame."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from metadr.synthetic.street import models
from metadr.synthetic.street.panels import Panels, joined
from metadr.synthetic.street.raster import FAR, Backdrop
from metadr.synthetic.street.road import Road
from metadr.synthetic.street.texture import Random, clouds

Along = Callable[[float], float]
QUARTER = np.pi / 2
SIDES = (-1, 1)  # left, right
PARKED = {"sedan": 0.3, "hatch": 0.28, "estate": 0.22, "van": 0.12, "bus": 0.08}


class Driver(NamedTuple):
    """A vehicle that keeps to a lane: `along(moment)` metres along the road, a moment being one frame."""

    model: Panels
    aside: float
    along: Along
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
    """Puts things beside a road, on both sides: what stands on the left is turned round, for those who come from there.

    Nothing is put where a street crosses.
    """

    def __init__(self, road: Road, random: Random) -> None:
        self.road, self.random = road, random
        self.length = float(len(road.x) - 1)
        self._made: list[Panels] = []

    def put(self, model: Panels, along: float, aside: float, turn: float = 0.0) -> None:
        x, z, heading = self.road.pose(along, aside)
        self._made.append(model.placed(x, z, heading + turn))

    def row(
        self,
        make: Callable[[Random], Panels],
        aside: float,
        *,
        every: float,
        start: float = 5.0,
        spread: float = 0.0,
        scatter: float = 0.0,
        share: float = 1.0,
    ) -> None:
        """Things about `every` so many metres, up to `spread` off along the road and `scatter` aside of it.

        A `share` of the places is taken.
        """
        for side in SIDES:
            for place in np.arange(start, self.length, every).tolist():
                along, off = (reach * self.random.uniform(-1, 1) for reach in (spread, scatter))
                if self.random.random() < share and self._clear(place + along, 2):
                    self.put(make(self.random), place + along, side * (aside + off), 0.0 if side > 0 else np.pi)

    def fence(
        self,
        make: Callable[[], Panels],
        aside: float,
        *,
        start: float = 0.0,
        stop: float = np.inf,
        sides: tuple[int, ...] = SIDES,
    ) -> None:
        """Pieces of 4 m of road, end to end in its bends too, that look at it."""
        piece, length = make(), 4.0
        for side in sides:
            for place in np.arange(start, min(stop, self.length), length).tolist():
                if self._clear(place + length / 2, length / 2 + 3):
                    (x0, z0, _), (x1, z1, _) = (self.road.pose(place + on, side * aside) for on in (0, length)[::-side])
                    fit = np.array([np.hypot(x1 - x0, z1 - z0) / length, 1, 1], dtype=np.float32)
                    fitted = piece._replace(corner=piece.corner * fit, across=piece.across * fit)
                    self._made.append(fitted.placed(x0, z0, float(np.arctan2(z0 - z1, x1 - x0))))

    def houses(
        self,
        aside: float,
        *,
        storeys: tuple[int, int],
        empty: float,
        start: float = 0.0,
        stop: float = np.inf,
        sides: tuple[int, ...] = SIDES,
    ) -> None:
        """Houses that look at the road; a share of the plots is `empty`."""
        for side in sides:
            along = start
            while along < min(stop, self.length):
                width = self.random.uniform(9, 20)
                model = models.building(self.random, width, int(self.random.integers(storeys[0], storeys[1] + 1)))
                back = aside + self.random.uniform(0, 1.5)
                if self.random.random() >= empty and self._clear(along + width / 2, width / 2 + 3):
                    self.put(model, along + width if side > 0 else along, side * back, side * QUARTER)
                along += width + (0.05 if self.random.random() < 0.6 else self.random.uniform(2, 7))

    def parked(self, aside: float, *, share: float) -> None:
        """Vehicles at the side of the road; a `share` of the spaces is taken."""
        for side in SIDES:
            along = 4.0
            while along < self.length:
                model = models.vehicle(self.random, drawn(self.random, PARKED))
                if self.random.random() < share and self._clear(along, 9):
                    off = self.random.uniform(-0.12, 0.12)
                    self.put(model, along, side * (aside + off), 0.0 if side > 0 else np.pi)
                along += self.random.uniform(5.6, 7.2)

    def done(self) -> Panels:
        return joined(self._made)

    def _clear(self, along: float, margin: float) -> bool:
        return all(abs(along - crossing.along) > crossing.half + margin for crossing in self.road.crossings)


def drawn(random: Random, kinds: dict[str, float]) -> str:
    """A kind of vehicle, as likely as its share."""
    return str(random.choice(list(kinds), p=list(kinds.values())))


def steady(start: float, speed: float) -> Along:
    """`speed` metres a frame."""
    return lambda moment: start + speed * moment


def wavering(start: float, speed: float, period: float, depth: float) -> Along:
    """The same on average, slower and faster by a share of `depth`, every `period` frames."""
    turn = 2 * np.pi / period
    return lambda moment: start + speed * (moment + depth / turn * float(np.sin(turn * moment)))


def following(leader: Along, gap: float) -> Along:
    """`gap` metres before another, as it was a little later."""
    return lambda moment: leader(moment + 6) + gap


def flow(
    random: Random,
    aside: float,
    start: float,
    stop: float,
    *,
    speed: float,
    every: tuple[float, float],
    kinds: dict[str, float],
) -> list[Driver]:
    """A lane of vehicles, all equally fast, so that none runs into another; a negative speed is towards us."""
    made, along = [], start
    while along < stop:
        kind = drawn(random, kinds)
        made.append(Driver(models.vehicle(random, kind), aside, steady(along, speed), speed < 0))
        along += random.uniform(*every) + (8 if kind in ("truck", "trailer") else 0)
    return made


def backdrop(
    random: Random, low: float, high: float, colour: tuple[float, float, float], label: str = "Tree"
) -> Backdrop:
    """A line between two heights, in radians: waves of hills under crowns of trees."""
    noise = clouds(random, 1024, 8)[int(random.integers(1024))]
    fine = clouds(random, 1024, 128)[int(random.integers(1024))]
    return Backdrop((low + (high - low) * (0.75 * noise + 0.25 * fine)).astype(np.float32), label, colour)
