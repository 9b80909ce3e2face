"""The shapes of vehicles: outlines seen from the right, which are drawn as pictures and extruded to solids."""

from typing import NamedTuple

Point = tuple[float, float]


class Profile(NamedTuple):
    """A vehicle seen from its right. Places are (along, height): 0 to 1 from back to front and from ground to top."""

    label: str
    length: float  # metres
    width: float
    height: float
    outline: tuple[Point, ...]  # from the bottom of the back over the top to the bottom of the front
    glass: tuple[int, ...]  # which edges of the outline, counted from the back, are windows
    windows: tuple[tuple[Point, ...], ...]
    doors: tuple[float, ...]
    wheels: tuple[float, ...]
    wheel: float  # radius, metres
    lamps: float  # height of the lamps
    tall_end: bool = False  # the windscreen belongs to the front, the rear window to the back
    cargo: tuple[float, float, float, float] | None = None  # left, bottom, right, top of a box with ribs


PROFILES: dict[str, Profile] = {
    "sedan": Profile(
        label="Car",
        length=4.6,
        width=1.8,
        height=1.45,
        outline=((0, 0.2), (0, 0.62), (0.13, 0.66), (0.27, 1), (0.58, 1), (0.74, 0.66), (0.98, 0.55), (1, 0.2)),
        glass=(2, 4),
        windows=(
            ((0.21, 0.68), (0.295, 0.94), (0.425, 0.94), (0.425, 0.68)),
            ((0.445, 0.68), (0.445, 0.94), (0.57, 0.94), (0.68, 0.68)),
        ),
        doors=(0.435, 0.66),
        wheels=(0.19, 0.80),
        wheel=0.32,
        lamps=0.5,
    ),
    "hatch": Profile(
        label="Car",
        length=4.0,
        width=1.72,
        height=1.5,
        outline=((0, 0.18), (0, 0.62), (0.12, 0.98), (0.5, 1), (0.70, 0.64), (0.97, 0.54), (1, 0.18)),
        glass=(1, 3),
        windows=(
            ((0.09, 0.66), (0.16, 0.93), (0.36, 0.94), (0.36, 0.66)),
            ((0.385, 0.66), (0.385, 0.94), (0.49, 0.94), (0.635, 0.66)),
        ),
        doors=(0.37, 0.63),
        wheels=(0.18, 0.80),
        wheel=0.31,
        lamps=0.52,
    ),
    "estate": Profile(
        label="Car",
        length=4.7,
        width=1.85,
        height=1.68,
        outline=((0, 0.2), (0, 0.62), (0.06, 0.97), (0.56, 1), (0.72, 0.66), (0.97, 0.58), (1, 0.2)),
        glass=(1, 3),
        windows=(
            ((0.06, 0.66), (0.10, 0.92), (0.22, 0.93), (0.22, 0.66)),
            ((0.24, 0.66), (0.24, 0.93), (0.41, 0.94), (0.41, 0.66)),
            ((0.43, 0.66), (0.43, 0.94), (0.55, 0.94), (0.67, 0.66)),
        ),
        doors=(0.23, 0.42, 0.66),
        wheels=(0.19, 0.81),
        wheel=0.35,
        lamps=0.53,
    ),
    "van": Profile(
        label="Van",
        length=5.3,
        width=2.0,
        height=2.35,
        outline=((0, 0.14), (0, 0.96), (0.04, 1), (0.74, 1), (0.88, 0.55), (0.98, 0.46), (1, 0.14)),
        glass=(3,),
        windows=(((0.66, 0.56), (0.66, 0.88), (0.76, 0.88), (0.85, 0.56)),),
        doors=(0.4, 0.64),
        wheels=(0.18, 0.82),
        wheel=0.34,
        lamps=0.36,
        tall_end=True,
    ),
    "bus": Profile(
        label="Van",
        length=4.9,
        width=1.9,
        height=1.95,
        outline=((0, 0.16), (0, 0.58), (0.04, 0.98), (0.68, 1), (0.84, 0.58), (0.98, 0.5), (1, 0.16)),
        glass=(1, 3),
        windows=(
            ((0.06, 0.58), (0.08, 0.92), (0.36, 0.93), (0.36, 0.58)),
            ((0.39, 0.58), (0.39, 0.93), (0.67, 0.93), (0.80, 0.58)),
        ),
        doors=(0.38, 0.62),
        wheels=(0.18, 0.82),
        wheel=0.33,
        lamps=0.42,
    ),
    "truck": Profile(
        label="Truck",
        length=9.5,
        width=2.5,
        height=3.6,
        outline=((0, 0.16), (0, 1), (0.73, 1), (0.75, 0.86), (0.95, 0.84), (1, 0.55), (1, 0.14)),
        glass=(4,),
        windows=(((0.83, 0.52), (0.83, 0.76), (0.93, 0.76), (0.965, 0.52)),),
        doors=(0.80,),
        wheels=(0.12, 0.24, 0.88),
        wheel=0.5,
        lamps=0.22,
        tall_end=True,
        cargo=(0.0, 0.24, 0.73, 1.0),
    ),
    "trailer": Profile(
        label="Truck",
        length=14.5,
        width=2.55,
        height=3.9,
        outline=((0, 0.18), (0, 1), (0.82, 1), (0.84, 0.9), (0.965, 0.88), (1, 0.5), (1, 0.12)),
        glass=(4,),
        windows=(((0.885, 0.5), (0.885, 0.74), (0.95, 0.74), (0.975, 0.5)),),
        doors=(0.87,),
        wheels=(0.10, 0.18, 0.26, 0.80, 0.93),
        wheel=0.5,
        lamps=0.2,
        tall_end=True,
        cargo=(0.0, 0.3, 0.815, 1.0),
    ),
}
