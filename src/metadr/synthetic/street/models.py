"""Things that stand and drive in a street, as panels around their own origin: each is seen along z, x to its right."""

from itertools import pairwise

from metadr.synthetic.street.panels import Builder, Panels, Vector
from metadr.synthetic.street.profiles import PROFILES
from metadr.synthetic.street.texture import GAMMA, Random

STEEL: Vector = (0.30, 0.31, 0.32)
DARK_STEEL: Vector = (0.09, 0.10, 0.10)
STOREY = 3.1  # metres
GROUND_FLOOR = 3.6


def linear(red: int, green: int, blue: int) -> Vector:
    """A colour as a screen has it, 0 to 255, in linear light."""
    return (red / 255) ** GAMMA, (green / 255) ** GAMMA, (blue / 255) ** GAMMA


WALLS = tuple(
    linear(*colour)
    for colour in (
        (226, 214, 186),
        (214, 184, 138),
        (204, 160, 140),
        (190, 188, 182),
        (232, 230, 224),
        (160, 92, 74),
        (206, 198, 172),
        (176, 186, 184),
        (150, 128, 108),
        (222, 196, 160),
    )
)
ROOFS = tuple(linear(*colour) for colour in ((142, 72, 54), (112, 62, 50), (84, 84, 90), (122, 92, 72)))
PAINTS = tuple(
    linear(*colour)
    for colour in (
        (232, 232, 232),
        (30, 32, 36),
        (128, 132, 138),
        (176, 180, 184),
        (150, 24, 28),
        (32, 56, 112),
        (70, 92, 116),
        (96, 100, 92),
        (190, 160, 60),
        (52, 84, 62),
        (208, 96, 36),
    )
)
CARGO = tuple(
    linear(*colour) for colour in ((236, 236, 234), (196, 60, 44), (44, 84, 150), (226, 180, 56), (96, 140, 96))
)


def pick(random: Random, choices: tuple[Vector, ...]) -> Vector:
    red, green, blue = (level * random.uniform(0.9, 1.08) for level in choices[int(random.integers(len(choices)))])
    return red, green, blue


def building(random: Random, width: float, storeys: int) -> Panels:
    """A house with its front along x from 0 to `width`, at z = 0."""
    made, wall = Builder(), pick(random, WALLS)
    depth, bay = random.uniform(9, 13), random.uniform(2.7, 3.6)
    window, floor = f"window{random.integers(4)}", f"ground{random.integers(3)}"
    bays = max(1, round(width / bay))
    eaves = GROUND_FLOOR + STOREY * storeys
    shops = max(1, round(width / 4.6))
    steps = max(1, round(width / 9))
    for step in range(steps):  # a long front in pieces, each as sharp as its distance asks for
        at, wide = width * step / steps, width / steps
        made.panel(
            (at, 0, 0),
            (wide, 0, 0),
            (0, GROUND_FLOOR, 0),
            "Building",
            floor,
            tint=wall,
            repeat=(max(1, shops // steps), 1),
        )
        if storeys:
            made.panel(
                (at, GROUND_FLOOR, 0),
                (wide, 0, 0),
                (0, STOREY * storeys, 0),
                "Building",
                window,
                tint=wall,
                repeat=(max(1, round(bays / steps)), storeys),
            )
    blind = random.random() < 0.5
    sides = (((0.0, 0.0, depth), (0.0, 0.0, -depth)), ((width, 0.0, 0.0), (0.0, 0.0, depth)))
    for corner, across in sides:
        repeat = (4.0, storeys + 1.0) if not blind else (3.0, 2.0)
        texture = window if not blind else "plaster"
        made.panel(corner, across, (0, eaves, 0), "Building", texture, tint=wall, repeat=repeat)
    if random.random() < 0.55:
        _pitched_roof(made, random, width, depth, eaves, wall)
    else:
        made.box((-0.25, eaves, -0.25), (width + 0.25, eaves + 0.5, depth), "Building", tint=pick(random, WALLS))
    return made.done()


def _pitched_roof(made: Builder, random: Random, width: float, depth: float, eaves: float, wall: Vector) -> None:
    rise, tint = random.uniform(2.5, 4.5), pick(random, ROOFS)
    made.panel(
        (-0.3, eaves - 0.15, -0.45),
        (width + 0.6, 0, 0),
        (0, rise + 0.15, depth / 2 + 0.45),
        "Building",
        "roof",
        tint=tint,
        repeat=(max(1, round(width / 5)), 1),
    )
    for corner, across in (((0.0, eaves, depth), (0.0, 0.0, -depth)), ((width, eaves, 0.0), (0.0, 0.0, depth))):
        made.panel(corner, across, (0, rise, 0), "Building", "gable", tint=wall)


def vehicle(random: Random, kind: str) -> Panels:
    """One that stands on its origin and looks along z."""
    shape, made = PROFILES[kind], Builder()
    paint = pick(random, PAINTS if shape.label == "Car" else CARGO)
    half, end = shape.width / 2, shape.length / 2
    made.panel((half, 0, -end), (0, 0, shape.length), (0, shape.height, 0), shape.label, f"{kind}-side", tint=paint)
    made.panel(
        (-half, 0, end),
        (0, 0, -shape.length),
        (0, shape.height, 0),
        shape.label,
        f"{kind}-side",
        tint=paint,
        repeat=(-1, 1),
    )
    points = [(z * shape.length - end, y * shape.height) for z, y in shape.outline]
    last = len(points) - 2
    for edge, ((z0, y0), (z1, y1)) in enumerate(pairwise(points)):
        if edge in (0, last):
            texture = f"{kind}-{'front' if edge else 'back'}"
        else:
            texture = "glass" if edge in shape.glass else "plain"
        if y1 < y0:  # a picture on the way down would stand on its head
            corner, across, up = (half, y1, z1), (-shape.width, 0.0, 0.0), (0.0, y0 - y1, z0 - z1)
        else:
            corner, across, up = (-half, y0, z0), (shape.width, 0.0, 0.0), (0.0, y1 - y0, z1 - z0)
        made.panel(corner, across, up, shape.label, texture, tint=paint)
    bottom = points[0][1]
    for z in (-end + 0.02, end - 0.02):  # the dark beneath it, and what is seen of the wheels
        for x in (-half + 0.02, half - 0.24):
            made.panel(
                (x, 0, z), (0.22, 0, 0), (0, bottom + 0.05, 0), shape.label, tint=(0.01, 0.01, 0.01), turns=False
            )
    return made.done()


def leafy(random: Random) -> Panels:
    made, height = Builder(), random.uniform(5.5, 10)
    made.upright((0, 0, 0), 0.85 * height, height, "Tree", f"crown{random.integers(6)}")
    return made.done()


def conifer(random: Random) -> Panels:
    made, height = Builder(), random.uniform(9, 17)
    made.upright((0, 0, 0), 0.40 * height, height, "Tree", f"conifer{random.integers(4)}")
    return made.done()


def bush(random: Random) -> Panels:
    made = Builder()
    height = random.uniform(0.7, 1.7)
    made.upright((0, 0, 0), height * random.uniform(1.2, 2.0), height, "Vegetation", f"bush{random.integers(3)}")
    return made.done()


def hedge() -> Panels:
    """4 m along x, seen from both sides and, where a row of them ends, from there."""
    made, height, length, depth = Builder(), 0.9, 4.0, 0.7
    made.panel((0, 0, 0), (length, 0, 0), (0, height, 0), "Vegetation", "hedge")
    made.panel((length, 0, depth), (-length, 0, 0), (0, height, 0), "Vegetation", "hedge")
    for corner, across in (((0.0, 0.0, depth), -depth), ((length, 0.0, 0.0), depth)):
        made.panel(corner, (0, 0, across), (0, height, 0), "Vegetation", "hedge", repeat=(depth / length, 1))
    made.panel((0, 0.85 * height, 0), (length, 0, 0), (0, 0, depth), "Vegetation", "hedge")
    return made.done()


def lamp_post(random: Random) -> Panels:
    """With an arm over what lies to its left."""
    made, height = Builder(), 6.5
    made.upright((0, 0, 0), 0.16, height, "Pole", tint=STEEL)
    made.panel((-1.7, height - 0.12, 0), (1.7, 0, 0), (0, 0.1, 0), "Pole", tint=STEEL)
    made.panel((0, height - 0.12, 0), (-1.7, 0, 0), (0, 0.1, 0), "Pole", tint=STEEL)
    made.box((-2.1, height - 0.2, -0.12), (-1.5, height - 0.05, 0.12), "Pole", tint=(0.5, 0.5, 0.48))
    return made.done()


def sign(random: Random) -> Panels:
    made, kind = Builder(), int(random.integers(6))
    made.upright((0, 0, 0), 0.08, 2.9, "Pole", tint=STEEL)
    side = 0.75 if kind != 5 else 1.1
    made.panel((-side / 2, 2.1, -0.06), (side, 0, 0), (0, side, 0), "TrafficSign", f"sign{kind}")
    made.panel((side / 2, 2.1, 0.06), (-side, 0, 0), (0, side, 0), "TrafficSign", f"sign{kind}-back", tint=STEEL)
    return made.done()


def signal(lit: int, *, arm: float = 0.0) -> Panels:
    """A traffic light; with `arm` metres, a second one over what lies to its left."""
    made = Builder()
    made.upright((0, 0, 0), 0.14, 5.6 if arm else 3.4, "Pole", tint=DARK_STEEL)
    places = [(0.0, 2.5)]
    if arm:
        made.panel((-arm, 5.4, 0), (arm, 0, 0), (0, 0.12, 0), "Pole", tint=DARK_STEEL)
        made.panel((0, 5.4, 0), (-arm, 0, 0), (0, 0.12, 0), "Pole", tint=DARK_STEEL)
        places.append((-arm, 4.7))
    for x, y in places:
        low, high = (x - 0.18, y, -0.3), (x + 0.18, y + 1.05, -0.06)
        made.box(low, high, "TrafficLight", front=f"signal{lit}", tint=(0.02, 0.02, 0.02))
    return made.done()


def guard_rail() -> Panels:
    """4 m along x, seen from both sides."""
    made, length = Builder(), 4.0
    made.panel((0, 0.42, 0), (length, 0, 0), (0, 0.34, 0), "GuardRail", "rail", tint=(0.5, 0.51, 0.52))
    made.panel((length, 0.42, 0.1), (-length, 0, 0), (0, 0.34, 0), "GuardRail", "rail", tint=(0.5, 0.51, 0.52))
    made.upright((length / 2, 0, 0.05), 0.12, 0.7, "GuardRail", tint=(0.3, 0.3, 0.31))
    return made.done()


def gantry(span: float) -> Panels:
    """Signs on a beam over a road: its left foot is the origin."""
    made = Builder()
    for x in (0.0, span):
        made.upright((x, 0, 0), 0.35, 6.8, "Pole", tint=STEEL)
    made.box((0, 6.2, -0.15), (span, 6.6, 0.15), "Pole", tint=STEEL)
    for part in (0.22, 0.62):
        made.panel((span * part, 5.4, -0.2), (0.28 * span, 0, 0), (0, 2.1, 0), "TrafficSign", "sign5")
        made.panel((span * (part + 0.28), 5.4, 0.2), (-0.28 * span, 0, 0), (0, 2.1, 0), "TrafficSign", tint=STEEL)
    return made.done()


def clutter(random: Random) -> Panels:
    """A dustbin, a cabinet or a bench."""
    made, kind = Builder(), int(random.integers(3))
    tint = pick(random, (linear(60, 84, 60), linear(90, 92, 96), linear(130, 70, 40)))
    if kind == 0:
        made.box((-0.3, 0, -0.3), (0.3, 1.1, 0.3), "Misc", "bin", tint=tint)
    elif kind == 1:
        made.box((-0.6, 0, -0.25), (0.6, 1.3, 0.25), "Misc", "plaster", tint=linear(168, 168, 160))
    else:
        made.box((-0.9, 0.25, -0.25), (0.9, 0.5, 0.25), "Misc", tint=tint)
        made.box((-0.9, 0.5, 0.15), (0.9, 0.95, 0.25), "Misc", tint=tint)
    return made.done()
