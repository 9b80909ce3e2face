"""The two cameras: Virtual KITTI's lens and distance from each other, scaled to any image size."""

from typing import NamedTuple

import numpy as np

from metadr.synthetic.street.panels import right
from metadr.synthetic.street.texture import Floats

SIZE = (1242, 375)
FOCAL = 725.0087  # pixels of an image of that size, across and down
BASELINE = 0.532725  # metres from Camera_0 to Camera_1, to its right
HEIGHT = 1.6  # metres above the ground
NEAR = 0.3  # metres; nothing nearer is drawn
DETAIL = 2  # samples to a pixel, across and down: averaged, they make smooth edges


class Camera(NamedTuple):
    """Where a camera stands, where it looks (always level), and its samples."""

    x: float
    z: float
    heading: float
    columns: int  # samples across
    rows: int

    @property
    def focal(self) -> tuple[float, float]:
        """In samples, across and down."""
        return FOCAL * self.columns / SIZE[0], FOCAL * self.rows / SIZE[1]

    @property
    def rays(self) -> tuple[Floats, Floats]:
        """How far to the right each column looks, and how far down each row, for one metre ahead."""
        across = (np.arange(self.columns, dtype=np.float32) + 0.5 - self.columns / 2) / self.focal[0]
        down = (np.arange(self.rows, dtype=np.float32) + 0.5 - self.rows / 2) / self.focal[1]
        return across.astype(np.float32), down.astype(np.float32)

    @property
    def place(self) -> Floats:
        return np.array([self.x, HEIGHT, self.z], dtype=np.float32)

    def seen(self, points: Floats) -> Floats:
        """Points (..., 3) of the world as the camera has them: to the right, down, ahead."""
        return self.directions(points - self.place)

    def directions(self, vectors: Floats) -> Floats:
        x, y, z = vectors[..., 0], vectors[..., 1], vectors[..., 2]
        sin, cos = np.float32(np.sin(self.heading)), np.float32(np.cos(self.heading))
        return np.stack([x * cos - z * sin, -y, x * sin + z * cos], axis=-1)

    def samples(self, local: Floats) -> Floats:
        """Where points (..., 3) before the camera appear: column and row, in samples."""
        scale = np.array(self.focal, dtype=np.float32)
        return local[..., :2] / local[..., 2:] * scale + np.array([self.columns / 2, self.rows / 2], dtype=np.float32)


def pair(x: float, z: float, heading: float, size: tuple[int, int]) -> tuple[Camera, Camera]:
    """Camera_0 where the car is, and Camera_1 to its right."""
    columns, rows = DETAIL * size[0], DETAIL * size[1]
    apart = BASELINE * right(heading)
    return (
        Camera(x, z, heading, columns, rows),
        Camera(x + float(apart[0]), z + float(apart[2]), heading, columns, rows),
    )
