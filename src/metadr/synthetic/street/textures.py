"""The pictures on the panels: walls, windows, vehicles, leaves, signs. They are the same in every world."""

from collections.abc import Callable
from functools import cache

import numpy as np

from metadr.synthetic.street.profiles import PROFILES, Profile
from metadr.synthetic.street.texture import Canvas, Colour, Random, Texture, clouds, with_levels

Draw = Callable[[Random], Texture]

GLASS, DARK_GLASS, FRAME = (70, 84, 98), (38, 46, 56), (226, 224, 218)
TYRE, RIM = (22, 22, 24), (150, 152, 156)
CORE = 0.86  # of a clump or a tier: so much is solid, and leaves stand out from it
TIERS = 9
RED, YELLOW, BLUE, INK = (196, 24, 30), (240, 200, 30), (24, 74, 160), (20, 20, 22)


def _plain(random: Random) -> Texture:
    canvas = Canvas(2, 2)
    canvas.fill(painted=True)
    return canvas.done()


def _plaster(random: Random) -> Texture:
    canvas = Canvas(64, 64)
    canvas.fill(painted=True)
    return canvas.done(0.82 + 0.3 * clouds(random, 64, 4))


def _windows(kind: int) -> Draw:
    """One storey of one bay: a wall with a window."""

    def draw(random: Random) -> Texture:
        canvas = Canvas(48, 48)
        canvas.fill(painted=True)
        if kind == 0:  # a tall window with a sill
            canvas.box((0.27, 0.16, 0.73, 0.80), FRAME)
            canvas.box((0.30, 0.19, 0.485, 0.77), GLASS)
            canvas.box((0.515, 0.19, 0.70, 0.77), DARK_GLASS)
            canvas.box((0.23, 0.80, 0.77, 0.85), (178, 172, 164))
        elif kind == 1:  # with shutters
            canvas.box((0.12, 0.20, 0.30, 0.78), (92, 74, 58))
            canvas.box((0.70, 0.20, 0.88, 0.78), (92, 74, 58))
            canvas.box((0.31, 0.20, 0.69, 0.78), FRAME)
            canvas.box((0.34, 0.23, 0.66, 0.75), DARK_GLASS)
        elif kind == 2:  # a band of windows
            canvas.box((0.0, 0.22, 1.0, 0.74), (96, 98, 102))
            canvas.box((0.03, 0.26, 0.47, 0.70), GLASS)
            canvas.box((0.53, 0.26, 0.97, 0.70), (60, 76, 92))
        else:  # a balcony
            canvas.box((0.18, 0.12, 0.82, 0.98), DARK_GLASS)
            canvas.box((0.48, 0.12, 0.52, 0.98), FRAME)
            canvas.box((0.06, 0.62, 0.94, 0.98), (150, 150, 152))
            canvas.box((0.06, 0.60, 0.94, 0.65), (84, 84, 88))
        return canvas.done(0.9 + 0.18 * clouds(random, 48, 3))

    return draw


def _ground_floor(kind: int) -> Draw:
    def draw(random: Random) -> Texture:
        canvas = Canvas(64, 48)
        canvas.fill(painted=True)
        if kind == 0:  # a shop
            canvas.box((0.0, 0.0, 1.0, 0.16), ((150, 40, 36), (36, 70, 110), (60, 96, 60))[int(random.integers(3))])
            canvas.box((0.06, 0.22, 0.70, 0.88), GLASS)
            canvas.box((0.36, 0.22, 0.39, 0.88), FRAME)
            canvas.box((0.76, 0.22, 0.95, 1.0), DARK_GLASS)
        elif kind == 1:  # a door and a window
            canvas.box((0.10, 0.20, 0.30, 1.0), (88, 56, 40))
            canvas.box((0.13, 0.24, 0.27, 0.42), GLASS)
            canvas.box((0.48, 0.24, 0.86, 0.74), FRAME)
            canvas.box((0.51, 0.28, 0.83, 0.70), DARK_GLASS)
            canvas.box((0.0, 0.90, 0.10, 1.0), (120, 116, 110))
            canvas.box((0.30, 0.90, 1.0, 1.0), (120, 116, 110))
        else:  # a garage
            canvas.box((0.12, 0.22, 0.88, 1.0), (172, 172, 168))
            for line in (0.35, 0.50, 0.65, 0.80):
                canvas.box((0.12, line, 0.88, line + 0.02), (120, 120, 118))
        return canvas.done()

    return draw


def _roof(random: Random) -> Texture:
    canvas = Canvas(64, 64)
    canvas.fill(painted=True)
    tiles = np.where(np.arange(64) % 8 < 2, np.float32(0.7), np.float32(1))
    return canvas.done((0.75 + 0.4 * clouds(random, 64, 8)) * tiles[:, None])


def _gable(random: Random) -> Texture:
    canvas = Canvas(64, 32)
    canvas.polygon([(0, 1), (0.5, 0), (1, 1)], painted=True)
    canvas.box((0.44, 0.5, 0.56, 0.85), DARK_GLASS)
    return canvas.done()


def _crown(random: Random) -> Texture:
    """A leafy tree: clumps of leaves, those above and to one side lighter, on branches over a trunk."""
    canvas = Canvas(192, 256)
    bark, fork = (74, 58, 44), (0.5, 0.62)
    canvas.polygon([(0.462, 1), (0.482, 0.6), (0.518, 0.6), (0.538, 1)], bark)
    hue = random.uniform(-12, 14)
    lobes = [(0.5, 0.4, 0.22)]
    lobes += [
        (0.5 + 0.25 * random.uniform(-1, 1), random.uniform(0.18, 0.55), random.uniform(0.12, 0.21)) for _ in range(11)
    ]
    for x, y, _ in lobes:
        canvas.polygon([(fork[0] - 0.012, fork[1]), (fork[0] + 0.012, fork[1]), (x + 0.004, y), (x - 0.004, y)], bark)
    for x, y, radius in lobes:  # what holds the leaves together: without it a near crown is a swarm
        reach = CORE * radius
        canvas.disc((x - reach, y - 0.8 * reach, x + reach, y + 0.8 * reach), _leaf(hue, x, y + 0.3))
    leaves = []
    for _ in range(1900):
        x0, y0, radius = lobes[int(random.integers(len(lobes)))]
        angle, far = random.uniform(0, 2 * np.pi), 0.94 * radius * np.sqrt(random.random())
        x, y = x0 + far * np.cos(angle), y0 + 0.8 * far * np.sin(angle)
        leaves.append((x, y, random.uniform(0.012, 0.024), y - y0))
    random.shuffle(leaves)
    for x, y, size, below in leaves:
        colour = _leaf(hue, x, y + below + random.uniform(-0.27, 0.27))
        canvas.disc((x - size, y - 0.75 * size, x + size, y + 0.75 * size), colour)
    return canvas.done()


def _leaf(hue: float, x: float, y: float) -> Colour:
    return _shade((74 + hue, 104 + 0.4 * hue, 46), 0.55 + 0.6 * (0.75 - y) + 0.12 * (0.5 - x))


def _conifer(random: Random) -> Texture:
    """A spruce: tiers of branches, each wider below and dark beneath the one above."""
    canvas = Canvas(128, 320)
    canvas.box((0.46, 0.85, 0.54, 1.0), (62, 48, 38))

    def reach(y: float) -> float:
        return 0.03 + 0.42 * y * (0.62 + 0.38 * ((TIERS * y) % 1.0))

    edge = [(CORE * reach(y), y) for y in np.linspace(0.02, 0.94, 200).tolist()]
    canvas.polygon([*((0.5 + x, y) for x, y in edge), *((0.5 - x, y) for x, y in reversed(edge))], (22, 36, 24))
    for _ in range(1500):
        y = random.uniform(0.02, 0.94) ** 0.8
        x = 0.5 + reach(y) * random.uniform(-1, 1)
        light = 0.5 + 0.35 * ((TIERS * y) % 1.0) + random.uniform(-0.15, 0.2)
        size = random.uniform(0.015, 0.036)
        canvas.disc((x - size, y - 0.3 * size, x + size, y + 0.5 * size), _shade((54, 84, 48), light))
    return canvas.done()


def _bush(random: Random) -> Texture:
    canvas = Canvas(128, 96)
    hue = random.uniform(-10, 24)
    canvas.disc((0.07, 0.15, 0.93, 1.85), _shade((96 + hue, 122, 52), 0.45))
    for _ in range(700):
        x, y = random.uniform(0.04, 0.96), 1 - random.random() ** 0.7 * 0.9
        if (2 * x - 1) ** 2 + (1 - y) ** 2 > 0.92:
            continue
        size = random.uniform(0.018, 0.045)
        light = 0.5 + 0.7 * (1 - y) + random.uniform(-0.15, 0.15)
        canvas.disc((x - size, y - size, x + size, y + size), _shade((96 + hue, 122, 52), light))
    return canvas.done()


def _hedge(random: Random) -> Texture:
    canvas = Canvas(96, 32)
    canvas.box((0, 0.14, 1, 1), (52, 72, 34))
    for _ in range(420):
        x, y = random.random(), random.uniform(0.06, 1)
        light = 0.55 + 0.6 * (1 - y) + random.uniform(-0.2, 0.2)
        canvas.disc((x - 0.02, y - 0.05, x + 0.02, y + 0.05), _shade((88, 112, 48), light))
    return canvas.done()


def _shade(colour: tuple[float, float, float], light: float) -> Colour:
    red, green, blue = (int(min(255, max(8, level * light))) for level in colour)
    return red, green, blue


def _side(profile: Profile) -> Draw:
    """A vehicle from its right: the outline filled with paint, windows, a sill, wheels."""

    def draw(random: Random) -> Texture:
        canvas = Canvas(192, 72)
        canvas.polygon([(z, 1 - y) for z, y in profile.outline], painted=True)
        low = 1 - profile.outline[0][1]
        canvas.box((0.03, low - 0.05, 0.97, low), (42, 42, 44))
        for door in profile.doors:
            canvas.box((door - 0.004, 0.40, door + 0.004, low - 0.06), (70, 70, 72))
        for window in profile.windows:
            canvas.polygon([(z, 1 - y) for z, y in window], DARK_GLASS)
        if profile.cargo is not None:
            left, bottom, right, top = profile.cargo
            canvas.box((left, 1 - top, right, 1 - bottom), painted=True)
            for rib in np.arange(left, right, 0.06).tolist():
                canvas.box((rib, 1 - top, rib + 0.006, 1 - bottom), (120, 120, 120), painted=True)
        for front, colour in ((1.0, (235, 228, 200)), (0.0, RED)):
            edge = min(max(front, 0.012), 0.988)
            canvas.box((edge - 0.012, 1 - profile.lamps - 0.04, edge + 0.012, 1 - profile.lamps + 0.05), colour)
        for wheel in profile.wheels:
            for size, colour in ((1.25, (16, 16, 18)), (1.0, TYRE), (0.55, RIM)):
                reach = size * profile.wheel / profile.length
                tall = reach * profile.length / profile.height
                middle = 1 - profile.wheel / profile.height
                canvas.disc((wheel - reach, max(middle - tall, 0), wheel + reach, min(middle + tall, 1)), colour)
        return canvas.done()

    return draw


def _end(profile: Profile, front: bool) -> Draw:
    """The front or the back of a vehicle: lamps, plate, bumper."""

    def draw(random: Random) -> Texture:
        canvas = Canvas(48, 32)
        canvas.fill(painted=True)
        canvas.box((0, 0.80, 1, 1), (46, 46, 48))
        high = profile.tall_end
        lamp = (250, 244, 220) if front else RED
        top = 0.55 if high else 0.22
        canvas.box((0.03, top, 0.24, top + 0.24), lamp)
        canvas.box((0.76, top, 0.97, top + 0.24), lamp)
        canvas.box((0.36, 0.60, 0.64, 0.76), (236, 236, 226))
        if front:
            canvas.box((0.28, top, 0.72, top + 0.22), (34, 34, 36))
        if high:
            canvas.box((0.08, 0.08, 0.92, 0.42), DARK_GLASS if front or not profile.cargo else (200, 200, 200))
        return canvas.done()

    return draw


def _glass(random: Random) -> Texture:
    canvas = Canvas(48, 48)
    canvas.fill(painted=True)
    canvas.box((0.06, 0.07, 0.94, 0.96), DARK_GLASS)
    canvas.polygon([(0.1, 0.1), (0.9, 0.1), (0.9, 0.35)], (92, 106, 120))
    return canvas.done()


def _sign(kind: int) -> Draw:
    def draw(random: Random) -> Texture:
        canvas = Canvas(48, 48)
        if kind == 0:  # a speed limit
            canvas.disc((0.02, 0.02, 0.98, 0.98), RED)
            canvas.disc((0.16, 0.16, 0.84, 0.84), (244, 244, 240))
            canvas.box((0.30, 0.34, 0.46, 0.66), INK)
            canvas.box((0.54, 0.34, 0.70, 0.66), INK)
        elif kind == 1:  # a warning
            canvas.polygon([(0.5, 0.03), (0.99, 0.95), (0.01, 0.95)], RED)
            canvas.polygon([(0.5, 0.25), (0.82, 0.85), (0.18, 0.85)], (244, 244, 240))
            canvas.box((0.46, 0.42, 0.54, 0.74), INK)
        elif kind == 2:  # a right of way
            canvas.polygon([(0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)], (240, 240, 236))
            canvas.polygon([(0.5, 0.14), (0.86, 0.5), (0.5, 0.86), (0.14, 0.5)], YELLOW)
        elif kind == 3:  # a crossing for people on foot
            canvas.fill(BLUE)
            canvas.polygon([(0.5, 0.12), (0.88, 0.86), (0.12, 0.86)], (240, 240, 240))
            canvas.box((0.44, 0.40, 0.56, 0.80), INK)
        elif kind == 4:  # a stop
            edge = 0.3
            octagon = [
                (edge, 0),
                (1 - edge, 0),
                (1, edge),
                (1, 1 - edge),
                (1 - edge, 1),
                (edge, 1),
                (0, 1 - edge),
                (0, edge),
            ]
            canvas.polygon(octagon, RED)
            canvas.box((0.14, 0.42, 0.86, 0.58), (244, 244, 244))
        else:  # the way to somewhere
            canvas.fill((240, 240, 240))
            canvas.box((0.02, 0.04, 0.98, 0.96), BLUE)
            for line, reach in ((0.2, 0.7), (0.45, 0.5), (0.7, 0.62)):
                canvas.box((0.12, line, 0.12 + reach, line + 0.1), (236, 236, 240))
        return canvas.done()

    return draw


def _back(front: Draw) -> Draw:
    """The other side of something: its outline, in the tint of its panel."""

    def draw(random: Random) -> Texture:
        there = front(random).levels[0][0][..., 3:4]
        return with_levels(np.concatenate([0 * there, 0 * there, 0 * there, there, np.ones_like(there)], axis=2))

    return draw


def _signal(lit: int) -> Draw:
    """Three lamps in a box, one of them lit."""

    def draw(random: Random) -> Texture:
        canvas = Canvas(16, 48)
        canvas.fill((26, 28, 28))
        colours = ((255, 40, 30), (255, 190, 40), (60, 255, 140))
        for lamp, colour in enumerate(colours):
            top = 0.04 + 0.32 * lamp
            canvas.disc((0.16, top, 0.84, top + 0.26), colour if lamp == lit else _shade(colour, 0.22))
        return canvas.done()

    return draw


def _rail(random: Random) -> Texture:
    """A crash barrier's beam: two waves of steel."""
    canvas = Canvas(32, 16)
    canvas.fill(painted=True)
    wave = 0.72 + 0.28 * np.cos(np.linspace(0, 4 * np.pi, 16, dtype=np.float32))
    return canvas.done(np.repeat(wave[:, None], 32, axis=1).astype(np.float32))


def _bin(random: Random) -> Texture:
    canvas = Canvas(16, 32)
    canvas.fill(painted=True)
    canvas.box((0, 0, 1, 0.18), (40, 40, 42))
    canvas.box((0.2, 0.4, 0.8, 0.6), (220, 220, 214))
    return canvas.done()


_DRAW: dict[str, Draw] = {
    "plain": _plain,
    "plaster": _plaster,
    **{f"window{kind}": _windows(kind) for kind in range(4)},
    **{f"ground{kind}": _ground_floor(kind) for kind in range(3)},
    "roof": _roof,
    "gable": _gable,
    **{f"crown{variant}": _crown for variant in range(6)},
    **{f"conifer{variant}": _conifer for variant in range(4)},
    **{f"bush{variant}": _bush for variant in range(3)},
    "hedge": _hedge,
    **{f"{name}-side": _side(profile) for name, profile in PROFILES.items()},
    **{f"{name}-front": _end(profile, True) for name, profile in PROFILES.items()},
    **{f"{name}-back": _end(profile, False) for name, profile in PROFILES.items()},
    "glass": _glass,
    **{f"sign{kind}": _sign(kind) for kind in range(6)},
    **{f"sign{kind}-back": _back(_sign(kind)) for kind in range(6)},
    **{f"signal{lit}": _signal(lit) for lit in range(3)},
    "rail": _rail,
    "bin": _bin,
}
TEXTURES = tuple(_DRAW)


@cache
def texture(index: int) -> Texture:
    """Draw one, with a random stream of its own."""
    name = TEXTURES[index]
    return _DRAW[name](np.random.default_rng(int.from_bytes(name.encode(), "big")))
