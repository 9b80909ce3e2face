"""Virtual KITTI 2 as domains: a scene under a condition, decoded once into the cache."""

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from metadr.core import Domain, Split
from metadr.data.cache import Entry, cached, fingerprint
from metadr.data.decode import in_order, whole_image
from metadr.data.source import data_root
from metadr.data.vkitti2_files import Found, Frame, Place, find, frames_of, misplaced
from metadr.errors import UserError
from metadr.progress import Watch
from metadr.settings import check, setting
from metadr.vkitti2_classes import CAMERAS, CLASSES

REVISION = 1  # of the pixels below: raise it when an edit changes them
IGNORED, UNKNOWN = 255, 254  # labels: of Undefined, and of a colour that is no class's
TRAIN, VAL = 70, 85  # percent of a sequence at which the training frames and those held out end


@dataclass(frozen=True)
class Reading:
    """Where the frames lie, and what is made of them."""

    root: str | None = setting(None, "the folder of scenes, as --data; none: in the data root")
    cameras: Literal["both", "0", "1"] = setting("both", "whose frames are taken")
    size: str | None = setting(None, "WIDTHxHEIGHT to resize to, such as 416x128; none: as the files are")

    def __post_init__(self) -> None:
        if self.root is not None:  # one folder, one spelling, wherever the process goes
            object.__setattr__(self, "root", os.path.realpath(Path(self.root).expanduser()))
        check(self)
        if self.size is not None and not re.fullmatch(r"[1-9]\d*x[1-9]\d*", self.size):
            raise UserError(f"The size of frames must be WIDTHxHEIGHT, such as 416x128. Got {self.size!r} instead.")

    @property
    def pixels(self) -> tuple[int, int] | None:
        """Width and height."""
        width, _, height = (self.size or "").partition("x")
        return (int(width), int(height)) if self.size else None

    @property
    def camera_numbers(self) -> tuple[int, ...]:
        return CAMERAS if self.cameras == "both" else (int(self.cameras),)


class Picture(NamedTuple):
    """A decoded frame."""

    pixels: NDArray[np.uint8]  # (H, W, 3)
    labels: NDArray[np.uint8]  # (H, W)


def located(benchmark: str, reading: Reading) -> tuple[Path, Found]:
    """The folder that a benchmark's scenes lie in, and what of them is there."""
    root = Path(reading.root) if reading.root else data_root() / benchmark
    found = find(root)
    problem = misplaced(benchmark, root, found)
    if problem:
        raise UserError(problem)
    return root, found


def frames(benchmark: str, reading: Reading, domain: str) -> list[Frame]:
    """The frames of a domain in order."""
    root, found = located(benchmark, reading)
    return frames_of(found, domain, reading.camera_numbers, root=root, benchmark=benchmark)


def parts(num_moments: int) -> tuple[slice, slice, slice]:
    """Training, held out and test: the first 70 % of a sequence, the next 15 %, the rest."""
    train, val = num_moments * TRAIN // 100, num_moments * VAL // 100
    return slice(train), slice(train, val), slice(val, num_moments)


def num_train(benchmark: str, reading: Reading, domain: str) -> int:
    cameras = len(reading.camera_numbers)
    return cameras * int(parts(len(frames(benchmark, reading, domain)) // cameras)[0].stop)


def size_of(benchmark: str, reading: Reading, domain: str) -> str:
    """WIDTHxHEIGHT as it is read, by the first frame: a domain has one size."""
    if reading.size:
        return reading.size
    image = whole_image(frames(benchmark, reading, domain)[0].image, "JPEG")
    return f"{image.width}x{image.height}"


def load(benchmark: str, reading: Reading, domain: str) -> Domain:
    """A domain as tensors, checked byte by byte: what a run trains on is what its key says."""
    tensors = entry_of(benchmark, reading, domain, checked=True).tensors
    train, val, test = (Split(tensors[f"{part}_x"], tensors[f"{part}_y"]) for part in ("train", "val", "test"))
    return Domain(domain, train, test, val)


def content_of(benchmark: str, reading: Reading, domain: str) -> str:
    """The hash of a domain's pixels and labels, for keys; decodes it where that was not done before."""
    root, found = located(benchmark, reading)
    # A sweep asks this for every run: within a process, the folders of frames say whether one was replaced.
    folders = [found[place] for place in sorted(found) if _of(place, domain)]
    return _content(benchmark, reading, root, domain, fingerprint(folders))


@functools.lru_cache(maxsize=256)
def _content(benchmark: str, reading: Reading, root: Path, domain: str, folders: str) -> str:
    return entry_of(benchmark, reading, domain).content[:16]


def _of(place: Place, domain: str) -> bool:
    return f"{place.scene.lower()}-{place.condition}" == domain


def entry_of(
    benchmark: str, reading: Reading, domain: str, *, checked: bool = False, watch: Watch | None = None
) -> Entry:
    """A domain in the cache, decoded first where it is not there."""
    those = frames(benchmark, reading, domain)
    how = {"revision": REVISION, "size": reading.size, "cameras": reading.cameras, "root": reading.root}

    def make() -> tuple[dict[str, Tensor], dict[str, Any]]:
        return _decode(domain, those, reading, watch), {"frames": len(those)}

    inputs = fingerprint(path for frame in those for path in frame)
    return cached(data_root() / "cache", f"{benchmark}-{domain}", how, inputs, make, checked=checked)


def _decode(domain: str, those: list[Frame], reading: Reading, watch: Watch | None) -> dict[str, Tensor]:
    masks = {frame.image: frame.mask for frame in those}

    def one(image: Path) -> Picture:
        return picture(Frame(image, masks[image]), reading.pixels)

    x: Tensor | None = None
    for row, seen in enumerate(in_order(one, list(masks), what=f"decoding {domain}", watch=watch)):
        height, width = seen.labels.shape
        if x is None:
            x = torch.empty(len(those), 3, height, width, dtype=torch.uint8)
            y = torch.empty(len(those), height, width, dtype=torch.uint8)
        if x.shape[2:] != seen.labels.shape:
            raise UserError(
                f"{those[row].image} is {width}x{height}, and the frames before it are {x.shape[3]}x{x.shape[2]}; a "
                f"domain has one size. Resize them on reading, such as --set size={x.shape[3]}x{x.shape[2]}."
            )
        x[row] = torch.from_numpy(np.ascontiguousarray(seen.pixels.transpose(2, 0, 1)))
        y[row] = torch.from_numpy(seen.labels)
    assert x is not None  # a domain has frames
    cameras = len(reading.camera_numbers)
    tensors: dict[str, Tensor] = {}
    for name, part in zip(("train", "val", "test"), parts(len(those) // cameras), strict=True):
        rows = slice((part.start or 0) * cameras, part.stop * cameras)
        tensors |= {f"{name}_x": x[rows], f"{name}_y": y[rows]}
    return tensors


def picture(frame: Frame, size: tuple[int, int] | None = None) -> Picture:
    """One frame, resized where that is asked for: its mask by nearest neighbours."""
    image, mask = whole_image(frame.image, "JPEG"), whole_image(frame.mask, "PNG")
    if image.size != mask.size:
        raise UserError(
            f"{frame.image} is {image.width}x{image.height} and its mask {frame.mask} {mask.width}x{mask.height}; they "
            "must have one size. Replace the one that is wrong."
        )
    labels = labels_of(np.asarray(mask), frame.mask)
    if size is not None and size != image.size:
        image = image.resize(size, Image.Resampling.BILINEAR)
        labels = np.asarray(Image.fromarray(labels).resize(size, Image.Resampling.NEAREST))
    return Picture(np.asarray(image), np.array(labels))


def labels_of(colours: NDArray[np.uint8], path: Path) -> NDArray[np.uint8]:
    """A mask's colours (H, W, 3) as labels (H, W); Undefined is ignored, and what is nobody's colour refused."""
    red, green, blue = (colours[..., channel].astype(np.int32) for channel in range(3))
    labels: NDArray[np.uint8] = _table()[red << 16 | green << 8 | blue]
    wrong = np.argwhere(labels == UNKNOWN)
    if len(wrong):
        row, column = wrong[0]
        colour = " ".join(str(value) for value in colours[row, column])
        raise UserError(
            f"{path}: colour {colour} (R G B), first at row {row}, column {column}, is of no class of Virtual KITTI 2. "
            "Replace it by a sound copy of the class segmentation; resized or recompressed masks mix colours."
        )
    return labels


@functools.cache
def _table() -> NDArray[np.uint8]:
    """The label of every colour."""
    table = np.full(1 << 24, UNKNOWN, np.uint8)
    for label, (name, (red, green, blue)) in enumerate(CLASSES):
        table[red << 16 | green << 8 | blue] = IGNORED if name == "Undefined" else label
    return table
