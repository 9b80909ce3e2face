"""The readers on the real MNIST, MNIST-M and SVHN, against an independent read of the same files."""

import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import loadmat

from metadr.data.digits import SOURCES, Loaded, load, status, verify
from metadr.data.source import Decoding

REPOSITORY = Path(__file__).parents[2]
NAMES = ("mnist", "mnist_m", "svhn")
FOLDERS = {"mnist": "MNIST", "mnist_m": "mnist_m", "svhn": "svhn"}
NUM_TEST = {"mnist": 10_000, "mnist_m": 9_001, "svhn": 26_032}
NUM_TRAIN = 10_000
# Images per digit of the first 10,000 training images and of the test set.
CLASSES = {
    "mnist": (
        [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "mnist_m": (
        [1001, 1127, 991, 1032, 980, 863, 1014, 1070, 944, 978],
        [878, 1016, 933, 908, 890, 807, 856, 914, 880, 919],
    ),
    "svhn": (None, [1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595]),
}

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with the real sets in their publishers' layouts."""
    packed = Path(os.environ.get("METADR_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not (packed / "unpack.py").exists():
        pytest.skip(f"no real data: {packed} has no unpack.py (set METADR_SHARED_DATA)")
    unpacked = tmp_path_factory.mktemp("real")
    subprocess.run([sys.executable, str(packed / "unpack.py"), str(unpacked), *NAMES], check=True, capture_output=True)
    for name, folder in FOLDERS.items():
        if not (unpacked / name).exists():
            (unpacked / folder).rename(unpacked / name)
    return unpacked


@pytest.fixture(scope="module", params=NAMES)
def loaded(request, root: Path) -> Loaded:
    return load(request.param, root=root)


def idx(path: Path) -> np.ndarray:
    data = gzip.decompress(path.read_bytes())
    dims = data[3]
    shape = struct.unpack(f">{dims}I", data[4 : 4 + 4 * dims])
    return np.frombuffer(data[4 + 4 * dims :], np.uint8).reshape(shape)


def independent(root: Path, name: str, part: str, rows: list[int]) -> tuple[np.ndarray, list[int]]:
    """Those images (N, 32, 32, 3) and all labels, by other means than the package's."""
    if name == "mnist":
        stem = root / "mnist/raw" / {"train": "train", "test": "t10k"}[part]
        images = idx(Path(f"{stem}-images-idx3-ubyte.gz"))[rows]
        grown = [np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.LANCZOS)) for image in images]
        return np.stack([np.dstack([image] * 3) for image in grown]), idx(Path(f"{stem}-labels-idx1-ubyte.gz")).tolist()
    if name == "mnist_m":
        lines = (root / f"mnist_m/mnist_m_{part}_labels.txt").read_text().split()
        names, labels = lines[::2], [int(label) for label in lines[1::2]]
        return np.stack([np.asarray(Image.open(root / f"mnist_m/mnist_m_{part}" / names[row])) for row in rows]), labels
    content = loadmat(root / f"svhn/{part}_32x32.mat")
    return np.stack([content["X"][:, :, :, row] for row in rows]), [int(label) % 10 for label in content["y"][:, 0]]


def test_counts_shapes_and_classes(loaded: Loaded) -> None:
    domain, info = loaded
    assert domain.train.x.shape == (NUM_TRAIN, 3, 32, 32)
    assert domain.test.x.shape == (NUM_TEST[domain.name], 3, 32, 32)
    for split, classes in zip((domain.train, domain.test), CLASSES[domain.name], strict=True):
        assert split.x.dtype == torch.uint8 and split.x.is_contiguous() and split.y.dtype == torch.int64
        counted = torch.bincount(split.y, minlength=10).tolist()
        assert len(counted) == 10 and min(counted) > 0
        assert classes is None or counted == classes
    assert info.found.test == info.expected.test


def test_pixels_and_labels_against_an_independent_read(root: Path, loaded: Loaded) -> None:
    domain = loaded.domain
    for part, split in (("train", domain.train), ("test", domain.test)):
        rows = [0, 1, 4321, split.num_images - 1]
        images, labels = independent(root, domain.name, part, rows)
        assert np.array_equal(split.x[rows].permute(0, 2, 3, 1).numpy(), images)
        assert split.y.tolist() == labels[: split.num_images]


def test_known_pixels_of_mnist(root: Path) -> None:
    padded = load("mnist", Decoding(resize="pad"), root=root).domain.train
    assert padded.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    stroke = [3, 18, 18, 18, 126, 136, 175, 26, 166, 255, 247, 127]  # the top of the first image, a five
    assert padded.x[0, :, 7, 14:26].tolist() == [stroke] * 3
    late = load("mnist", Decoding(resize="pad", first=5_000), root=root).domain.train
    assert torch.equal(late.x[:5_000], padded.x[5_000:])


def test_labels_of_mnist_m_are_those_of_mnist(root: Path) -> None:
    mnist, mnist_m = (load(name, root=root).domain for name in ("mnist", "mnist_m"))
    assert torch.equal(mnist_m.train.y, mnist.train.y)
    assert torch.equal(mnist_m.test.y, mnist.test.y[:9_001])


def test_reopened_cache_is_the_same(root: Path, loaded: Loaded) -> None:
    written = loaded.info.path.stat()
    again = load(loaded.domain.name, root=root, checked=True)
    assert again.info == loaded.info and again.info.path.stat().st_mtime_ns == written.st_mtime_ns
    assert all(torch.equal(a, b) for a, b in zip(again.domain.test, loaded.domain.test, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_verify(root: Path, name: str) -> None:
    seen = status(name, root=root)
    complete = seen.found == SOURCES[name].expected
    assert seen.state == ("present" if complete else "partial") and not seen.problems
    found = verify(name, root=root)
    assert found.sound and not found.status.problems
    if name == "mnist":
        assert complete and {check.verdict for check in found.files} == {"as published"}
