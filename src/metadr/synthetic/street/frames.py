"""One frame of one camera: its class image and its picture in any condition."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from metadr.synthetic.street import shadows
from metadr.synthetic.street.camera import pair
from metadr.synthetic.street.raster import Seen, see
from metadr.synthetic.street.scenes import world
from metadr.synthetic.street.weather import CONDITIONS, develop

Pixels = NDArray[np.uint8]


class Frame(NamedTuple):
    labels: Pixels  # (rows, columns) ids of `vkitti2_classes.CLASSES`
    pictures: dict[str, Pixels]  # by condition: (rows, columns, 3)


def render(
    scene: str, moment: int, camera: int, conditions: Iterable[str], *, size: tuple[int, int], seed: int = 0
) -> Frame:
    """Frame number `moment` of a scene, seen by camera 0 or 1, `size` (width, height) pixels.

    A function of its arguments alone. The world is drawn once; all conditions show the same.
    """
    here = world(scene, seed)
    panels = here.panels(moment)
    eye = pair(*here.pose(moment), size)[camera]
    seen = see(eye, here.road, here.backdrop, panels)
    sky_hidden = shadows.beneath(eye, panels)
    pictures = {}
    for name in conditions:
        condition = CONDITIONS[name]
        sun_hidden = shadows.cast(eye, panels, condition.to_sun) if condition.sunny else None
        random = np.random.default_rng([seed, int(scene.removeprefix("Scene")), moment, camera])
        pictures[name] = develop(seen, condition, sun_hidden, sky_hidden, random)
    return Frame(labels_of(seen), pictures)


def labels_of(seen: Seen) -> Pixels:
    """The class that most of a pixel's four samples show; of equals, the one that comes first."""
    labels = seen.labels[seen.surface]
    a, b, c, d = labels[::2, ::2], labels[::2, 1::2], labels[1::2, ::2], labels[1::2, 1::2]
    first = (a == b) | (a == c) | (a == d)
    second = (b == c) | (b == d)
    return np.where(first, a, np.where(second, b, np.where(c == d, c, a)))
