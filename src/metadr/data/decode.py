"""Image files to pixels: on all cores where that is faster, always in the order of the files."""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from metadr.data.source import damaged, reading
from metadr.images import to_rgb
from metadr.progress import Meter, Watch

Fit = Literal["crop", "stretch", "pad"]
Kind = Literal["PNG", "JPEG"]
Result = TypeVar("Result")
# Pillow lets go of the interpreter while it decodes, but not while it opens: images of some thousand bytes take longer
# on several threads than on one (6,000 PNGs of 32x32: 2.4 s on two, 1.3 s on one).
THREADS_FROM = 8_192  # bytes, the mean of a sample
SAMPLED = 32
PNG_END = b"IEND\xaeB`\x82"
WINDOW = 256  # files in flight: results are not piled up before they are taken


class Picture(NamedTuple):
    """An image as it was wanted, and the size it had."""

    pixels: NDArray[np.uint8]  # (side, side, 3)
    width: int
    height: int


class Broken(NamedTuple):
    """Why a file holds no readable image."""

    reason: str


def picture(path: Path, side: int, fit: Fit) -> Picture | Broken:
    """One file as RGB of side x side: cut to a centred square, squeezed into one, or with a black border."""
    whole = rgb(path)
    if isinstance(whole, Broken):
        return whole
    size, kernel = (side, side), Image.Resampling.BILINEAR
    if fit == "crop":
        fitted = ImageOps.fit(whole, size, kernel)
    elif fit == "pad":
        fitted = ImageOps.pad(whole, size, kernel)
    else:
        fitted = whole.resize(size, kernel)
    return Picture(np.asarray(fitted), whole.width, whole.height)


def rgb(path: Path, kind: Kind | None = None) -> Image.Image | Broken:
    """One file as RGB, the right way up; only of one kind, where one is given.

    Raises:
        UserError: If the file cannot be read at all; what can be read and is no image is `Broken`.
    """
    with reading(path):
        data = path.read_bytes()
    formats = (kind,) if kind else None
    try:
        with Image.open(io.BytesIO(data), formats=formats) as image:
            image.verify()  # the checksums of a PNG, which decoding alone passes over
        if kind == "PNG" and not data.endswith(PNG_END):
            return Broken("its end is missing")
        with Image.open(io.BytesIO(data), formats=formats) as image:
            return to_rgb(image)
    except MemoryError:  # says nothing of the file
        raise
    except Exception as error:  # a damaged file may raise anything in one of forty readers
        unidentified = "unknown format" if kind else "no image that Pillow knows"
        reason = unidentified if isinstance(error, UnidentifiedImageError) else str(error) or type(error).__name__
        return Broken("empty file" if not data else reason.splitlines()[0])


def whole_image(path: Path, kind: Kind) -> Image.Image:
    """A published file of a known kind: nothing of a published set is left out.

    Raises:
        UserError: If it cannot be read, or is damaged or cut short.
    """
    image = rgb(path, kind)
    if isinstance(image, Broken):
        raise damaged(path, f"it is not a whole {kind} ({image.reason})")
    return image


def in_order(
    decode: Callable[[Path], Result], paths: Sequence[Path], *, what: str, watch: Watch | None = None
) -> Iterator[Result]:
    """What `decode` makes of each file, in their order; the first error in that order is raised."""
    meter = Meter(what, len(paths), watch)
    if not _worth_threads(paths):
        for result in map(decode, paths):
            yield result
            meter.add()
        return
    with ThreadPoolExecutor(_num_cores()) as pool:
        for start in range(0, len(paths), WINDOW):
            for result in pool.map(decode, paths[start : start + WINDOW]):
                yield result
                meter.add()


def _worth_threads(paths: Sequence[Path]) -> bool:
    sizes = []
    for path in paths[:: max(1, len(paths) // SAMPLED)]:
        with suppress(OSError):  # who reads it will say why
            sizes.append(path.stat().st_size)
    return _num_cores() > 1 and sum(sizes) >= THREADS_FROM * max(1, len(sizes))


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
