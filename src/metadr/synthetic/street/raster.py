"""What each sample of an image shows: its colour, its surface and its distance, before any weather.

The sky, a far line of trees and the ground are computed sample by sample; panels are drawn over them in any order, and
the nearest stays. A panel is seen through its own equation: with A = [across, up, corner] as the camera has them, the
inverse of A takes the ray (x, y, 1) of a sample to (u, v, 1) / distance.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metadr.synthetic.street import road as roads
from metadr.synthetic.street.camera import HEIGHT, NEAR, Camera
from metadr.synthetic.street.panels import LABELS, Panels
from metadr.synthetic.street.road import MATERIALS, Road
from metadr.synthetic.street.texture import Floats, clouds
from metadr.synthetic.street.textures import texture

SKY, BACKDROP, GROUND = 0, 1, 2  # surfaces; the materials of the ground follow, then the panels
PANELS = GROUND + len(MATERIALS)
FAR = 260.0  # metres to the farthest panels
BEHIND = 420.0  # metres to the far line of trees
SMALLEST = 0.7  # samples; a panel that is smaller both ways is not drawn


class Backdrop(NamedTuple):
    """The far line of trees or hills around a world: its height in radians, all around."""

    height: Floats  # (1024,)
    label: str
    colour: tuple[float, float, float]


class Seen(NamedTuple):
    """An image before the weather, (rows, columns) of samples."""

    camera: Camera
    colour: Floats  # (rows, columns, 3) linear light under an even white light
    surface: NDArray[np.int32]
    near: Floats  # 1 / metres; 0 is the sky
    normals: Floats  # (surfaces, 3): up for the ground, 0 for what has no side
    labels: NDArray[np.uint8]  # (surfaces,) the class of each


def see(camera: Camera, road: Road, backdrop: Backdrop, panels: Panels) -> Seen:
    """Draw a world."""
    rows, columns = camera.rows, camera.columns
    seen = Seen(
        camera,
        np.zeros((rows, columns, 3), np.float32),
        np.zeros((rows, columns), np.int32),
        np.zeros((rows, columns), np.float32),
        np.concatenate([_base_normals(), panels.normals]),
        np.concatenate([_base_labels(backdrop), panels.label]),
    )
    _draw_backdrop(seen, backdrop)
    _draw_ground(seen, road)
    _draw_panels(seen, panels.facing(camera.heading))
    return seen


def _base_normals() -> Floats:
    normals = np.zeros((PANELS, 3), np.float32)
    normals[GROUND:, 1] = 1
    return normals


def _base_labels(backdrop: Backdrop) -> NDArray[np.uint8]:
    names = ["Sky", backdrop.label, *(material.label for material in MATERIALS.values())]
    return np.array([LABELS[name] for name in names], dtype=np.uint8)


def _draw_backdrop(seen: Seen, backdrop: Backdrop) -> None:
    across, down = seen.camera.rays
    turn = (seen.camera.heading + np.arctan(across)) / (2 * np.pi) * len(backdrop.height)
    low = np.floor(turn).astype(int)
    height, following = (np.take(backdrop.height, low + step, mode="wrap") for step in (0, 1))
    height = height + (turn - low) * (following - height)
    rows = seen.camera.rows // 2
    inside = -down[:rows, None] < height * np.sqrt(1 + across * across)
    grain = _leaves()[(np.arange(rows) * 3 % 256)[:, None], (turn * 24).astype(int) % 256]
    up = np.clip(-down[:rows, None] / np.maximum(height, 1e-4), 0, 1)
    shade = ((0.62 + 0.5 * up) * (0.65 + 0.7 * grain))[..., None] * np.array(backdrop.colour, np.float32)
    seen.colour[:rows][inside] = shade[inside]
    seen.surface[:rows][inside] = BACKDROP
    seen.near[:rows][inside] = 1 / BEHIND


@cache
def _leaves() -> Floats:
    return clouds(np.random.default_rng(11), 256, 16)


def _draw_ground(seen: Seen, road: Road) -> None:
    camera = seen.camera
    across, down = camera.rays
    first = camera.rows - camera.rows // 2
    distance = HEIGHT / down[first:]  # one for each row
    ahead_x, ahead_z = np.float32(np.sin(camera.heading)), np.float32(np.cos(camera.heading))
    aside = across[None, :] * distance[:, None]
    x = camera.x + aside * ahead_z + distance[:, None] * ahead_x
    z = camera.z - aside * ahead_x + distance[:, None] * ahead_z
    guess = np.zeros_like(x)
    if not road.straight:
        line = (road.x - camera.x) * ahead_x + (road.z - camera.z) * ahead_z
        start = max(int(np.argmin((road.x - camera.x) ** 2 + (road.z - camera.z) ** 2)) - 5, 0)
        before = np.maximum.accumulate(line[start:])
        guess += np.interp(distance, before, np.arange(start, len(line), dtype=np.float32))[:, None].astype(np.float32)
    flat = np.broadcast_to(distance[:, None], x.shape).ravel()
    along, to_side = road.places(x.ravel(), z.ravel(), guess.ravel())
    made = roads.ground(road, along, to_side, flat * flat / (HEIGHT * camera.focal[1]), flat / camera.focal[0])
    seen.colour[first:] = made.colour.reshape(*x.shape, 3)
    seen.surface[first:] = (GROUND + made.material).reshape(x.shape)
    seen.near[first:] = (1 / distance)[:, None]


def _draw_panels(seen: Seen, panels: Panels) -> None:
    camera = seen.camera
    corner = camera.seen(panels.corner)
    across, up = camera.directions(panels.across), camera.directions(panels.up)
    corners = corner[:, None] + np.stack([0 * across, across, across + up, up], axis=1)  # (N, 4, 3)
    normal = np.cross(up, across)  # towards the viewer, but for the mirror in y: there it points away
    shown = ((normal * corner).sum(axis=1) > 0) | panels.turns
    depth = corners[..., 2]
    shown &= (depth.max(axis=1) > NEAR) & (depth.min(axis=1) < FAR)
    whole = depth.min(axis=1) > NEAR
    places = camera.samples(np.where(depth[..., None] > NEAR, corners, np.float32(1)))
    low, high = places.min(axis=1), places.max(axis=1)
    shown &= ~whole | ((high > 0) & (low < (camera.columns, camera.rows))).all(axis=1)
    shown &= ~whole | ((high - low) > SMALLEST).any(axis=1)
    order = np.flatnonzero(shown)
    order = order[np.argsort(depth[order].min(axis=1), kind="stable")]  # what is behind then costs less
    rays = camera.rays
    inverse = _inverses(*(each[order].astype(np.float64) for each in (across, up, corner)))
    for index, matrix in zip(order.tolist(), inverse, strict=True):
        if whole[index]:
            box = low[index], high[index]
        else:
            clipped = camera.samples(cut(corners[index]))
            box = clipped.min(axis=0), clipped.max(axis=0)
        _draw(seen, panels, index, matrix, box, rays)


def _inverses(across: Floats, up: Floats, corner: Floats) -> Floats:
    """Inverses of the matrices with these columns, by cross products; of one that is seen edge-on, nothing."""
    rows = np.stack([np.cross(up, corner), np.cross(corner, across), np.cross(across, up)], axis=1)
    volume = (across * rows[:, 0]).sum(axis=1)
    flat = np.abs(volume) < 1e-9
    return np.where(flat[:, None, None], 0, rows / np.where(flat, 1, volume)[:, None, None]).astype(np.float32)


def cut(corners: Floats) -> Floats:
    """The part of a polygon (N, 3) that lies before the camera."""
    kept: list[Floats] = []
    for start, stop in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if start[2] > NEAR:
            kept.append(start)
        if (start[2] > NEAR) != (stop[2] > NEAR):
            part = (NEAR * 1.001 - start[2]) / (stop[2] - start[2])
            kept.append(start + part * (stop - start))
    return np.array(kept, dtype=np.float32).reshape(-1, 3)


def _draw(
    seen: Seen, panels: Panels, index: int, matrix: Floats, box: tuple[Floats, Floats], rays: tuple[Floats, Floats]
) -> None:
    camera = seen.camera
    left, top = (max(int(np.floor(edge)), 0) for edge in box[0])
    right, bottom = min(int(np.ceil(box[1][0])), camera.columns), min(int(np.ceil(box[1][1])), camera.rows)
    if left >= right or top >= bottom:
        return
    x, y = rays[0][left:right], rays[1][top:bottom, None]
    near = matrix[2, 0] * x + (matrix[2, 1] * y + matrix[2, 2])
    before = seen.near[top:bottom, left:right]
    visible = near > before
    if not visible.any():
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        u = (matrix[0, 0] * x + (matrix[0, 1] * y + matrix[0, 2])) / near
        v = (matrix[1, 0] * x + (matrix[1, 1] * y + matrix[1, 2])) / near
    visible &= (u >= 0) & (u < 1) & (v >= 0) & (v < 1) & (near < 1 / NEAR)
    row, column = np.nonzero(visible)
    if not len(row):
        return
    u, v, near = u[row, column], v[row, column], near[row, column]
    times_across, times_up = panels.repeat[index]
    tall, wide = (max(float(edge), 0.5) for edge in (box[1][1] - box[0][1], box[1][0] - box[0][0]))
    whole = texture(int(panels.texture[index]))
    finest = whole.levels[0][0].shape
    texels = abs(times_up) * finest[0] / tall, abs(times_across) * finest[1] / wide  # to a sample, down and across
    picture = whole.at(*texels)
    zoom = min(texels)
    rows, columns = picture.shape[:2]
    texel = _looked_up(picture, (1 - np.mod(v * times_up, 1)) * rows, np.mod(u * times_across, 1) * columns, zoom < 0.7)
    there = texel[:, 3] >= 0.5
    if not there.all():
        row, column, texel, near = row[there], column[there], texel[there], near[there]
    row, column = row + top, column + left
    seen.colour[row, column] = texel[:, :3] + texel[:, 4:] * panels.tint[index]
    seen.surface[row, column] = PANELS + index
    seen.near[row, column] = near


def _looked_up(picture: Floats, row: Floats, column: Floats, smooth: bool) -> Floats:
    """Texels at places of a picture; `smooth` mixes the four around each, for what is seen larger than it is drawn."""
    rows, columns = picture.shape[:2]
    if not smooth:
        nearest = picture[row.astype(np.int64).clip(0, rows - 1), column.astype(np.int64).clip(0, columns - 1)]
        return np.asarray(nearest)
    row, column = (row - 0.5).clip(0, rows - 1.001), (column - 0.5).clip(0, columns - 1.001)
    top, left = row.astype(np.int64), column.astype(np.int64)
    bottom, right = np.minimum(top + 1, rows - 1), np.minimum(left + 1, columns - 1)
    down, across = (row - top)[:, None], (column - left)[:, None]
    upper = picture[top, left] * (1 - across) + picture[top, right] * across
    lower = picture[bottom, left] * (1 - across) + picture[bottom, right] * across
    return np.asarray(upper * (1 - down) + lower * down, dtype=np.float32)
