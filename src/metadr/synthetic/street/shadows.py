"""Shadows on the ground: panels projected on it along the light, as polygons of the image."""

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from metadr.synthetic.street.camera import NEAR, Camera
from metadr.synthetic.street.panels import LABELS, Panels
from metadr.synthetic.street.raster import cut
from metadr.synthetic.street.texture import Floats

REACH = 90.0  # metres; shadows of what is farther away are not drawn
LEAVES = [LABELS[name] for name in ("Tree", "Vegetation")]
VEHICLES = [LABELS[name] for name in ("Car", "Van", "Truck")]
_CORNERS = np.array([(0, 0), (1, 0), (1, 1), (0, 1)], dtype=np.float32)
_TURN = np.linspace(0, 2 * np.pi, 9)[:-1]
# The crown of a tree in its panel; its shadow has as many corners as there are rows.
_CROWN = np.stack([0.5 + 0.36 * np.cos(_TURN), 0.6 + 0.34 * np.sin(_TURN)], axis=1).astype(np.float32)


def cast(camera: Camera, panels: Panels, sun: Floats) -> Floats:
    """How much of the sun is taken from the ground at each sample, 0 to 1; `sun` points towards it."""
    panels = _within_reach(camera, panels).facing(float(np.arctan2(sun[0], sun[2])))
    leafy = panels.turns & np.isin(panels.label, LEAVES)
    trunks = leafy & (panels.label == LABELS["Tree"])
    thin = panels.only(trunks)
    trunk = thin._replace(corner=thin.corner + 0.48 * thin.across, across=0.04 * thin.across, up=0.5 * thin.up)
    outlines = [
        _outlines(panels.only(~leafy), _CORNERS),
        _outlines(panels.only(leafy), _CROWN),
        _outlines(trunk, _CORNERS),
    ]
    return _mask(camera, outlines, sun, camera.rows / 400)


def beneath(camera: Camera, panels: Panels) -> Floats:
    """How much of the sky is hidden from the ground by vehicles above it, 0 to 1."""
    panels = _within_reach(camera, panels)
    vehicles = panels.only(np.isin(panels.label, VEHICLES))
    return _mask(camera, [_outlines(vehicles, _CORNERS)], np.array([0, 1, 0], dtype=np.float32), camera.rows / 90)


def _within_reach(camera: Camera, panels: Panels) -> Panels:
    distance = camera.seen(panels.corner)[:, 2]
    return panels.only((distance > -40) & (distance < REACH))


def _outlines(panels: Panels, places: Floats) -> Floats:
    """(N, corners, 3)"""
    across, up = panels.across[:, None], panels.up[:, None]
    return panels.corner[:, None] + places[:, :1] * across + places[:, 1:] * up


def _mask(camera: Camera, outlines: list[Floats], sun: Floats, blur: float) -> Floats:
    image = Image.new("L", (camera.columns, camera.rows))
    pen = ImageDraw.Draw(image)
    for group in outlines:
        shadow = camera.seen(group - group[..., 1:2] / sun[1] * sun)
        nearest, farthest = shadow[..., 2].min(axis=1), shadow[..., 2].max(axis=1)
        whole = nearest > NEAR
        parts = [cut(outline) for outline in shadow[~whole & (farthest > NEAR)]]
        polygons = [*camera.samples(shadow[whole]), *map(camera.samples, parts)]
        for polygon in polygons:
            pen.polygon(polygon.clip(-1e5, 1e5).ravel().tolist(), fill=255)
    return np.asarray(image.filter(ImageFilter.GaussianBlur(blur)), dtype=np.float32) / 255
