"""Panels: flat, textured parallelograms in space. Everything that stands in a street is made of them.

Axes: x to the right, y up, z ahead, metres. A model is built around its own origin, seen along z, and then placed in
the world with a heading: 0 looks along z, a quarter turn along x.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metadr.synthetic.street.texture import Floats
from metadr.synthetic.street.textures import TEXTURES
from metadr.vkitti2_classes import CLASSES

Vector = tuple[float, float, float]
LABELS = {name: index for index, (name, _) in enumerate(CLASSES)}
WHITE: Vector = (1.0, 1.0, 1.0)


class Panels(NamedTuple):
    """N panels, each seen from one side: there `across` runs from left to right."""

    corner: Floats  # (N, 3) bottom left; of one that turns, the middle of its foot
    across: Floats  # (N, 3)
    up: Floats  # (N, 3)
    texture: NDArray[np.int64]
    repeat: Floats  # (N, 2) how often the texture fits, across and up; negative: mirrored
    tint: Floats  # (N, 3) colour of what is painted, linear light
    label: NDArray[np.uint8]
    turns: NDArray[np.bool_]  # always faces the camera: leaves and poles

    @property
    def normals(self) -> Floats:
        """(N, 3) of length 1 towards the viewer; 0 for those that turn, which look alike from everywhere."""
        normal = np.cross(self.up, self.across).astype(np.float32)
        normal /= np.linalg.norm(normal, axis=1, keepdims=True)
        return np.where(self.turns[:, None], np.float32(0), normal)

    def only(self, which: NDArray[np.bool_] | NDArray[np.int64]) -> "Panels":
        return Panels._make(field[which] for field in self)

    def placed(self, x: float, z: float, heading: float, y: float = 0.0) -> "Panels":
        """The same, moved from its own origin to a place in the world."""
        turn = np.stack([right(heading), np.array([0, 1, 0], dtype=np.float32), ahead(heading)])
        corner = self.corner @ turn + np.array([x, y, z], dtype=np.float32)
        return self._replace(corner=corner, across=self.across @ turn, up=self.up @ turn)

    def facing(self, heading: float) -> "Panels":
        """Those that turn, turned towards a camera that looks along `heading`."""
        width = np.linalg.norm(self.across, axis=1, keepdims=True)
        across = np.where(self.turns[:, None], width * right(heading), self.across).astype(np.float32)
        corner = np.where(self.turns[:, None], self.corner - across / 2, self.corner)
        return self._replace(corner=corner, across=across)


def joined(parts: Sequence[Panels]) -> Panels:
    return Panels._make(np.concatenate(fields) for fields in zip(*parts, strict=True))


def right(heading: float) -> Floats:
    """What lies to the right of someone who looks along `heading`."""
    return np.array([np.cos(heading), 0, -np.sin(heading)], dtype=np.float32)


def ahead(heading: float) -> Floats:
    return np.array([np.sin(heading), 0, np.cos(heading)], dtype=np.float32)


class Builder:
    """Collects panels one by one."""

    def __init__(self) -> None:
        self._rows: list[tuple[Vector, Vector, Vector, int, tuple[float, float], Vector, int, bool]] = []

    def panel(
        self,
        corner: Vector,
        across: Vector,
        up: Vector,
        label: str,
        texture: str = "plain",
        *,
        tint: Vector = WHITE,
        repeat: tuple[float, float] = (1.0, 1.0),
        turns: bool = False,
    ) -> None:
        self._rows.append((corner, across, up, TEXTURES.index(texture), repeat, tint, LABELS[label], turns))

    def upright(
        self, foot: Vector, width: float, height: float, label: str, texture: str = "plain", *, tint: Vector = WHITE
    ) -> None:
        """One that turns to the camera around the middle of its foot."""
        self.panel(foot, (width, 0, 0), (0, height, 0), label, texture, tint=tint, turns=True)

    def box(
        self,
        low: Vector,
        high: Vector,
        label: str,
        texture: str = "plain",
        *,
        front: str | None = None,
        tint: Vector = WHITE,
        top: bool = True,
    ) -> None:
        """The four sides of a box and its top; `front` is the texture of the side that looks back along z."""
        (x0, y0, z0), (x1, y1, z1) = low, high
        w, h, d = x1 - x0, y1 - y0, z1 - z0
        self.panel((x0, y0, z0), (w, 0, 0), (0, h, 0), label, front or texture, tint=tint)
        self.panel((x1, y0, z1), (-w, 0, 0), (0, h, 0), label, texture, tint=tint)
        self.panel((x0, y0, z1), (0, 0, -d), (0, h, 0), label, texture, tint=tint)
        self.panel((x1, y0, z0), (0, 0, d), (0, h, 0), label, texture, tint=tint)
        if top:
            self.panel((x0, y1, z0), (w, 0, 0), (0, 0, d), label, tint=tint)

    def done(self) -> Panels:
        columns = list(zip(*self._rows, strict=True)) if self._rows else [()] * 8
        numbers = [np.array(columns[index], dtype=np.float32).reshape(-1, 3) for index in (0, 1, 2, 5)]
        corner, across, up, tint = numbers
        return Panels(
            corner,
            across,
            up,
            np.array(columns[3], dtype=np.int64),
            np.array(columns[4], dtype=np.float32).reshape(-1, 2),
            tint,
            np.array(columns[6], dtype=np.uint8),
            np.array(columns[7], dtype=bool),
        )
