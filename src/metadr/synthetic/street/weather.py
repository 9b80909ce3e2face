"""How a street looks in a condition: light from the sun and the sky, haze by distance, wet ground, rain, colours.

All six conditions share what is seen; only here do they part.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from metadr.synthetic.street.camera import DETAIL
from metadr.synthetic.street.panels import Vector
from metadr.synthetic.street.raster import GROUND, PANELS, Seen
from metadr.synthetic.street.road import MATERIALS
from metadr.synthetic.street.texture import GAMMA, Floats, Random, clouds

Pixels = NDArray[np.uint8]


class Condition(NamedTuple):
    """Colours are linear light; 1 is what a white wall shows in good light."""

    zenith: Vector  # the sky above
    horizon: Vector
    cloud: Vector
    cover: float  # share of the sky under clouds
    ambient: Vector  # light from the sky
    bounced: Vector  # light from the ground
    haze: float  # per metre: the share of light that is lost
    air: Vector  # the colour of haze
    sun: Vector = (0.0, 0.0, 0.0)  # its light
    sun_heading: float = 0.0  # degrees from the way that the road begins, to the right
    sun_height: float = 45.0  # degrees
    glow: Vector = (0.0, 0.0, 0.0)  # of the sky around the sun
    exposure: float = 1.0
    saturation: float = 1.0
    grade: Vector = (1.0, 1.0, 1.0)
    wet: float = 0.0  # how much the ground mirrors
    streaks: int = 0  # drops to 1,000 square pixels of an image 128 high

    @property
    def to_sun(self) -> Floats:
        heading, height = np.radians(self.sun_heading), np.radians(self.sun_height)
        direction = (np.sin(heading) * np.cos(height), np.sin(height), np.cos(heading) * np.cos(height))
        return np.array(direction, dtype=np.float32)

    @property
    def sunny(self) -> bool:
        return max(self.sun) > 0


CONDITIONS: dict[str, Condition] = {
    "clone": Condition(
        zenith=(0.13, 0.30, 0.66),
        horizon=(0.55, 0.70, 0.88),
        cloud=(0.95, 0.96, 0.98),
        cover=0.34,
        ambient=(0.56, 0.66, 0.84),
        bounced=(0.36, 0.34, 0.30),
        sun=(2.25, 2.10, 1.80),
        sun_heading=-65,
        sun_height=47,
        glow=(0.25, 0.22, 0.16),
        haze=0.0008,
        air=(0.58, 0.72, 0.90),
        exposure=1.05,
        saturation=1.08,
    ),
    "fog": Condition(
        zenith=(0.52, 0.54, 0.56),
        horizon=(0.52, 0.54, 0.56),
        cloud=(0.52, 0.54, 0.56),
        cover=0.0,
        ambient=(0.86, 0.88, 0.90),
        bounced=(0.50, 0.50, 0.50),
        haze=0.032,
        air=(0.52, 0.54, 0.56),
        exposure=0.95,
        saturation=0.8,
    ),
    "overcast": Condition(
        zenith=(0.36, 0.38, 0.42),
        horizon=(0.62, 0.63, 0.64),
        cloud=(0.72, 0.73, 0.75),
        cover=0.8,
        ambient=(0.98, 1.00, 1.04),
        bounced=(0.42, 0.42, 0.42),
        haze=0.0022,
        air=(0.58, 0.60, 0.62),
        exposure=0.78,
        saturation=0.72,
    ),
    "rain": Condition(
        zenith=(0.15, 0.17, 0.20),
        horizon=(0.36, 0.38, 0.41),
        cloud=(0.22, 0.24, 0.27),
        cover=0.75,
        ambient=(0.56, 0.60, 0.66),
        bounced=(0.24, 0.25, 0.27),
        haze=0.0055,
        air=(0.30, 0.32, 0.345),
        saturation=0.75,
        grade=(0.95, 1.0, 1.06),
        wet=1.0,
        streaks=5,
    ),
    "sunset": Condition(
        zenith=(0.10, 0.13, 0.26),
        horizon=(0.92, 0.42, 0.14),
        cloud=(0.80, 0.30, 0.16),
        cover=0.45,
        ambient=(0.34, 0.27, 0.34),
        bounced=(0.20, 0.14, 0.10),
        sun=(1.75, 0.78, 0.26),
        sun_heading=38,
        sun_height=13,
        glow=(1.5, 0.62, 0.16),
        haze=0.0024,
        air=(0.68, 0.34, 0.16),
        exposure=0.95,
        saturation=1.05,
        grade=(1.08, 0.97, 0.86),
    ),
    "morning": Condition(
        zenith=(0.26, 0.42, 0.66),
        horizon=(0.92, 0.84, 0.66),
        cloud=(1.0, 0.92, 0.80),
        cover=0.25,
        ambient=(0.52, 0.58, 0.70),
        bounced=(0.30, 0.29, 0.28),
        sun=(1.45, 1.18, 0.78),
        sun_heading=120,
        sun_height=24,
        glow=(0.4, 0.32, 0.18),
        haze=0.0042,
        air=(0.74, 0.74, 0.70),
        exposure=1.0,
        saturation=0.9,
    ),
}


def develop(seen: Seen, condition: Condition, sun_hidden: Floats | None, sky_hidden: Floats, random: Random) -> Pixels:
    """The picture (rows, columns, 3) of what is seen; `*_hidden` are the shadows on the ground (`shadows`)."""
    samples = seen.colour * _light(seen, condition, sun_hidden, sky_hidden)
    clear = np.exp(-condition.haze / np.maximum(seen.near, 1e-5), dtype=np.float32)[..., None]
    air = np.array(condition.air, np.float32)
    samples -= air
    samples *= clear
    samples += air
    sky = seen.near == 0
    samples[sky] = np.repeat(np.repeat(_sky(seen, condition), DETAIL, axis=0), DETAIL, axis=1)[sky]
    picture = _averaged(samples)
    if condition.wet:
        gloss = np.zeros(len(seen.labels), dtype=np.float32)
        gloss[GROUND:PANELS] = [material.gloss for material in MATERIALS.values()]
        picture = _mirrored(picture, condition.wet * _averaged(gloss[seen.surface][..., None]))
    if condition.streaks:
        picture = _streaks(picture, condition, random)
    return _printed(picture, condition)


def _light(seen: Seen, condition: Condition, sun_hidden: Floats | None, sky_hidden: Floats) -> Floats:
    """(rows, columns, 3): light on each sample, from the sky, from the ground and from the sun."""
    ambient, bounced, sun = (
        np.array(each, np.float32) for each in (condition.ambient, condition.bounced, condition.sun)
    )
    sideless = ~seen.normals.any(axis=1)  # leaves and poles catch the light from any side
    facing = np.where(sideless, np.float32(0.55), np.maximum((seen.normals * condition.to_sun).sum(axis=1), 0))
    upward = 0.5 + 0.5 * seen.normals[:, 1]
    on_surface = bounced + upward[:, None] * (ambient - bounced) + facing[:, None] * sun
    light = np.asarray(on_surface, dtype=np.float32)[seen.surface]
    horizon = seen.camera.rows // 2
    below = slice(horizon, None)  # all of the ground, and its shadows, lie there
    ground = (seen.surface[below] >= GROUND) & (seen.surface[below] < PANELS)
    hidden = np.where(ground, sky_hidden[below], np.float32(0))
    light[below] -= 0.75 * hidden[..., None] * (ambient - bounced)
    if sun_hidden is not None:
        hidden = np.where(ground, np.maximum(sun_hidden, sky_hidden)[below], np.float32(0))
        light[below] -= 0.92 * condition.to_sun[1] * hidden[..., None] * sun
    return light


def _sky(seen: Seen, condition: Condition) -> Floats:
    """(rows, columns, 3) of pixels; below the horizon it means nothing."""
    across, down = (ray.reshape(-1, DETAIL).mean(axis=1) for ray in seen.camera.rays)
    length = np.sqrt(1 + across[None] ** 2 + down[:, None] ** 2)
    up = np.maximum(-down[:, None] / length, 0)
    sin, cos = np.sin(seen.camera.heading), np.cos(seen.camera.heading)
    x, z = (across * cos + sin)[None] / length, (cos - across * sin)[None] / length
    zenith, horizon, cloud = (
        np.array(each, np.float32) for each in (condition.zenith, condition.horizon, condition.cloud)
    )
    high = (1 - np.exp(-5.5 * up))[..., None]
    sky = horizon + high * (zenith - horizon)
    if condition.cover:
        field = _cloud_field()
        place = [((0.35 * each / (up + 0.10) + 0.5) * 512).astype(int) % 512 for each in (x, z)]
        there = np.clip((field[place[0], place[1]] - (1 - condition.cover)) / 0.25, 0, 1)
        there = (there * there * (3 - 2 * there) * np.clip(up / 0.05, 0, 1))[..., None]
        sky = sky + 0.85 * there * (cloud - sky)
    if condition.sunny:
        sun = condition.to_sun
        near = np.maximum(x * sun[0] + up * sun[1] + z * sun[2], 0)[..., None]
        sky = sky + np.array(condition.glow, np.float32) * (0.35 * near**6 + 0.65 * near**40)
    return np.asarray(sky, dtype=np.float32)


@cache
def _cloud_field() -> Floats:
    return clouds(np.random.default_rng(5), 512, 4)


def _averaged(samples: Floats) -> Floats:
    """The mean of each pixel's samples."""
    total = np.zeros_like(samples[::DETAIL, ::DETAIL])
    for down, across in np.ndindex(DETAIL, DETAIL):
        total += samples[down::DETAIL, across::DETAIL]
    return total / np.float32(DETAIL * DETAIL)


def _mirrored(picture: Floats, gloss: Floats) -> Floats:
    """Wet ground: darker, with a blurred mirror of what stands above the horizon, most of all far away."""
    rows = len(picture)
    below = rows // 2
    gloss = gloss[below:]
    mirror = picture[: rows - below][::-1]
    steps = [np.roll(mirror, shift * max(rows // 64, 1), axis=0) for shift in (-2, -1, 0, 1, 2)]
    blurred = np.mean(steps, axis=0, dtype=np.float32)
    far = 1 - np.arange(rows - below, dtype=np.float32)[:, None, None] / (rows - below)
    share = gloss * (0.22 + 0.55 * far**3)
    wet = picture.copy()
    wet[below:] = picture[below:] * (1 - 0.5 * gloss) * (1 - share) + share * blurred
    return wet


def _streaks(picture: Floats, condition: Condition, random: Random) -> Floats:
    """Falling drops: thin bright lines, nearly upright, larger and fainter where they are near."""
    rows, columns = picture.shape[:2]
    scale = 2
    image = Image.new("L", (columns * scale, rows * scale))
    pen = ImageDraw.Draw(image)
    unit = rows * scale / 128
    count = int(condition.streaks * columns / rows * 128 * 128 / 1000)
    slant = random.normal(0.10, 0.02)
    for x, y, near, lean in random.random((count, 4)).tolist():
        length = unit * (3 + 15 * near * near)
        left, top = x * columns * scale, y * (rows * scale + length) - length
        tilt = slant + 0.05 * (lean - 0.5)
        ink = int(70 + 80 * (1 - near))
        pen.line(
            (left, top, left + tilt * length, top + length), fill=ink, width=max(1, round(unit * (0.4 + 0.6 * near)))
        )
    there = np.asarray(image.filter(ImageFilter.GaussianBlur(0.3 * unit)).reduce(scale), np.float32)[..., None] / 255
    return picture + there * (1.6 * np.array(condition.air, np.float32) - 0.6 * picture)


def _printed(picture: Floats, condition: Condition) -> Pixels:
    """Linear light as 8-bit levels: exposure with a soft shoulder, colours, gamma."""
    exposed = 1 - np.exp(-1.35 * condition.exposure * np.maximum(picture, 0))
    red, green, blue = exposed[..., 0:1], exposed[..., 1:2], exposed[..., 2:3]
    grey = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    coloured = grey + condition.saturation * (exposed - grey)
    coloured = np.clip(coloured * np.array(condition.grade, np.float32), 0, 1)
    return np.asarray(255 * coloured ** np.float32(1 / GAMMA) + 0.5).astype(np.uint8)
