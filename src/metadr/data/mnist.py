"""MNIST: handwritten digits, 28x28 grey, four idx files."""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from metadr.core import Split
from metadr.data.idx import count_idx, read_idx
from metadr.data.remote import RemoteFile
from metadr.data.source import Counts, Decoding, Files, Need, Part, Source, damaged, to_split
from metadr.progress import Watch

SIDE = 32
MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")


def count(files: Files, part: Part) -> int:
    return count_idx(files[f"{part}_images"], 3)


def read(files: Files, part: Part, rows: slice, decoding: Decoding, watch: Watch | None = None) -> Split:
    images = read_idx(files[f"{part}_images"], 3)
    labels = read_idx(files[f"{part}_labels"], 1)
    if len(images) != len(labels):
        raise damaged(files[f"{part}_labels"], f"it has {len(labels)} labels for {len(images)} images")
    if images.shape[1:] != (28, 28):
        raise damaged(files[f"{part}_images"], f"its images are {images.shape[1]}x{images.shape[2]}, not 28x28")
    grey = to_32(images[rows], decoding.resize)
    return to_split(np.broadcast_to(grey[:, None], (len(grey), 3, SIDE, SIDE)), labels[rows])


def to_32(images: NDArray[np.uint8], resize: str) -> NDArray[np.uint8]:
    """Grey images (N, 28, 28) as (N, 32, 32)."""
    if resize == "pad":
        rim = (SIDE - images.shape[1]) // 2
        return np.pad(images, ((0, 0), (rim, rim), (rim, rim)))
    kernel = {"lanczos": Image.Resampling.LANCZOS, "bilinear": Image.Resampling.BILINEAR}[resize]
    out = np.empty((len(images), SIDE, SIDE), np.uint8)
    for image, place in zip(images, out, strict=True):
        place[:] = np.asarray(Image.fromarray(image).resize((SIDE, SIDE), kernel))
    return out


def _names(stem: str, dims: int) -> tuple[str, ...]:
    """As unpacked by torchvision, as downloaded, and as some archives spell it."""
    dashed, dotted = f"{stem}-idx{dims}-ubyte", f"{stem}.idx{dims}-ubyte"
    return dashed, f"{dashed}.gz", dotted, f"{dotted}.gz"


def _file(name: str, md5: str, size: int) -> RemoteFile:
    return RemoteFile(name, tuple(mirror + name for mirror in MIRRORS), f"md5:{md5}", size)


MNIST = Source(
    name="mnist",
    title="MNIST",
    about="handwritten digits, 28x28 grey, white on black",
    licence="CC BY-SA 3.0 (Y. LeCun, C. Cortes, C. J. C. Burges)",
    homepage="http://yann.lecun.com/exdb/mnist/",
    files=(
        _file("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
        _file("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432", 28_881),
        _file("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3", 1_648_877),
        _file("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c", 4_542),
    ),
    needs=(
        Need("train_images", _names("train-images", 3)),
        Need("train_labels", _names("train-labels", 1)),
        Need("test_images", _names("t10k-images", 3)),
        Need("test_labels", _names("t10k-labels", 1)),
    ),
    expected=Counts(60_000, 10_000),
    count=count,
    read=read,
    settings=("resize", "first", "num_train"),
    train_classes=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
    test_classes=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    unpacked={
        "train-images-idx3-ubyte": "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
)
