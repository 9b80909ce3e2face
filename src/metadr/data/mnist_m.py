"""MNIST-M: MNIST's digits blended over photographs, 32x32 RGB, one PNG each and lists of labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from metadr.core import Split
from metadr.data.decode import in_order, whole_image
from metadr.data.remote import RemoteFile
from metadr.data.source import Counts, Decoding, Files, Need, Part, Source, damaged, reading, to_split
from metadr.progress import Watch

SIZE = (32, 32)


class Line(NamedTuple):
    """A line of a label list."""

    image: str
    label: int


def read_list(path: Path) -> list[Line]:
    """The lines 'NAME.png LABEL' of a list, in order."""
    with reading(path):
        text = path.read_bytes()
    lines = []
    for number, words in enumerate((line.split() for line in text.splitlines()), start=1):
        if not words:
            continue
        try:
            name, label = words[0].decode(), int(words[1])
        except (IndexError, ValueError):
            name, label = "", -1
        # A name is a name: a list must not lead out of its folder.
        if len(words) != 2 or not name or "/" in name or "\\" in name:
            raise damaged(path, f"line {number} is not 'NAME.png LABEL'")
        lines.append(Line(name, label))
    if len({line.image for line in lines}) < len(lines):
        raise damaged(path, "it names an image twice")
    return lines


def read_png(path: Path) -> Image.Image:
    """A PNG of 32x32 in RGB."""
    image = whole_image(path, "PNG")
    if image.size != SIZE:
        raise damaged(path, f"it is {image.width}x{image.height}, not 32x32")
    return image


def count(files: Files, part: Part) -> int:
    """The images that are in the list and in the folder."""
    folder = files[f"{part}_images"]
    with reading(folder):
        present = {path.name for path in folder.iterdir()}
    return sum(line.image in present for line in read_list(files[f"{part}_labels"]))


def read(files: Files, part: Part, rows: slice, decoding: Decoding, watch: Watch | None = None) -> Split:
    folder, lines = files[f"{part}_images"], read_list(files[f"{part}_labels"])[rows]
    if not lines:
        raise damaged(files[f"{part}_labels"], "it names no image in the rows that are needed")
    images = np.empty((len(lines), *SIZE, 3), np.uint8)
    paths = [folder / line.image for line in lines]
    for place, image in zip(
        images, in_order(read_png, paths, what=f"decoding mnist_m/{part}", watch=watch), strict=True
    ):
        place[:] = np.asarray(image)
    return to_split(images.transpose(0, 3, 1, 2), np.array([line.label for line in lines]))


def inputs(files: Files, decoding: Decoding) -> Iterator[str | Path]:
    """The lists and every image that is read."""
    for part, rows in (("train", decoding.rows), ("test", slice(None))):
        yield files[f"{part}_labels"]
        prefix = f"{files[f'{part}_images']}/"
        for line in read_list(files[f"{part}_labels"])[rows]:
            yield prefix + line.image


MNIST_M = Source(
    name="mnist_m",
    title="MNIST-M",
    about="MNIST's digits blended over patches of photographs (BSDS500), 32x32 RGB",
    licence="none stated; made of MNIST (CC BY-SA 3.0) and BSDS500 (non-commercial research and education)",
    homepage="http://yaroslav.ganin.net/",
    files=(
        RemoteFile(
            "mnist_m.tar.gz",
            (
                "https://drive.google.com/uc?export=download&id=0B_tExHiYS-0veklUZHFYT19KYjg&confirm=t",
                "https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi",
            ),
            "md5:859df31c91afe82e80e5012ba928f279",
        ),
    ),
    needs=(
        Need("train_labels", ("mnist_m_train_labels.txt",)),
        Need("train_images", ("mnist_m_train",), is_folder=True),
        Need("test_labels", ("mnist_m_test_labels.txt",)),
        Need("test_images", ("mnist_m_test",), is_folder=True),
    ),
    expected=Counts(59_001, 9_001),
    count=count,
    read=read,
    inputs=inputs,
    train_classes=(5825, 6640, 5853, 6028, 5746, 5331, 5812, 6158, 5757, 5851),
    test_classes=(878, 1016, 933, 908, 890, 807, 856, 914, 880, 919),
)
