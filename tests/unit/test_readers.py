"""Readers of the digit data sets, on tiny files in the publishers' formats, sound and broken."""

import dataclasses
import gzip
import itertools
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from metadr.benchmarks import benchmark_of, make_recipe, prepare
from metadr.benchmarks.digits import DIGITS, configure
from metadr.core import Recipe
from metadr.data.digits import SOURCES, load, status, verify
from metadr.data.idx import read_idx
from metadr.data.mnist import to_32
from metadr.data.source import Counts, Decoding, data_root, find
from metadr.data.syn import RENDERED
from metadr.errors import UserError
from metadr.progress import Work
from metadr.store import identity

TRAIN, TEST, TAKEN = 40, 20, 30
LABELS = {part: np.arange(size) % 10 for part, size in (("train", TRAIN), ("test", TEST))}
TAKE = Decoding(num_train=TAKEN)
# The same sources with fewer images; classes are as even as LABELS.
TINY = {
    name: dataclasses.replace(
        source, expected=Counts(TRAIN, TEST), train_classes=(TRAIN // 10,) * 10, test_classes=(TEST // 10,) * 10
    )
    for name, source in SOURCES.items()
}


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x0800 | array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_mnist(folder: Path, *, packed: bool = True, train: int = TRAIN) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    images = {"train": pixels(train, 28, 28), "test": pixels(TEST, 28, 28)}
    for part, stem in (("train", "train"), ("test", "t10k")):
        for kind, array in (("images-idx3", images[part]), ("labels-idx1", LABELS[part][: len(images[part])])):
            path = folder / f"{stem}-{kind}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(idx_bytes(array)) if packed else idx_bytes(array))
    return images


def write_mnist_m(folder: Path, *, train: int = TRAIN) -> dict[str, np.ndarray]:
    images = {"train": pixels(train, 32, 32, 3), "test": pixels(TEST, 32, 32, 3)}
    for part, stack in images.items():
        (folder / f"mnist_m_{part}").mkdir(parents=True)
        names = [f"{index:08d}.png" for index in range(len(stack))]
        for name, image in zip(names, stack, strict=True):
            Image.fromarray(image).save(folder / f"mnist_m_{part}" / name)
        lines = [f"{name} {label}\n" for name, label in zip(names, LABELS[part], strict=False)]
        (folder / f"mnist_m_{part}_labels.txt").write_text("".join(lines))
    return images


def write_mats(folder: Path, prefix: str, *, train: int = TRAIN) -> dict[str, np.ndarray]:
    folder.mkdir(parents=True, exist_ok=True)
    images = {"train": pixels(train, 32, 32, 3), "test": pixels(TEST, 32, 32, 3)}
    for part, stack in images.items():
        labels = LABELS[part][: len(stack), None].astype(np.uint8)
        content = {"X": stack.transpose(1, 2, 3, 0), "y": np.where(labels == 0, 10, labels)}
        savemat(folder / f"{prefix}{part}_32x32.mat", content, do_compression=True)
    return images


WRITE = {
    "mnist": lambda folder, **options: write_mnist(folder / "MNIST" / "raw", **options),
    "mnist_m": lambda folder, **options: write_mnist_m(folder, **options),
    "svhn": lambda folder, **options: write_mats(folder, "", **options),
    "syn": lambda folder, **options: write_mats(folder, "synth_", **options),
}
# A file of each source that a test may damage.
VICTIM = {
    "mnist": "MNIST/raw/train-images-idx3-ubyte.gz",
    "mnist_m": "mnist_m_train/00000003.png",
    "svhn": "train_32x32.mat",
    "syn": "synth_train_32x32.mat",
}


def refused(root: Path, name: str, decoding: Decoding = TAKE) -> str:
    """The sentence that loading ends in; nothing may be left in the cache."""
    with pytest.raises(UserError) as caught:
        load(TINY[name], decoding, root=root)
    assert [path.name for path in root.glob("cache/*") if path.suffix != ".lock"] == []
    return str(caught.value)


@pytest.mark.parametrize("name", SOURCES)
def test_reads_what_was_written(tmp_path: Path, name: str) -> None:
    written = WRITE[name](tmp_path / name)
    domain, info = load(TINY[name], TAKE, root=tmp_path)
    assert domain.name == name and domain.val is None
    for part, split, size in (("train", domain.train, TAKEN), ("test", domain.test, TEST)):
        assert split.x.shape == (size, 3, 32, 32) and split.x.dtype == torch.uint8 and split.x.is_contiguous()
        assert split.y.dtype == torch.int64 and split.y.tolist() == LABELS[part][:size].tolist()
        expected = written[part][:size]
        if name == "mnist":
            grey = [np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.LANCZOS)) for image in expected]
            expected = np.stack([np.stack([image] * 3, axis=-1) for image in grey])
        assert np.array_equal(split.x.numpy(), expected.transpose(0, 3, 1, 2))
    assert not info.partial and str(info) == f"{name}: complete, all 40 training images, all 20 test images"


@pytest.mark.parametrize("name", SOURCES)
def test_partial_copy_is_accepted_and_named(tmp_path: Path, name: str) -> None:
    WRITE[name](tmp_path / name, train=TAKEN)
    _, info = load(TINY[name], TAKE, root=tmp_path)
    assert info.partial and str(info) == f"{name}: partial, 30 of 40 training images, all 20 test images"
    seen = status(TINY[name], TAKE, root=tmp_path)
    assert (seen.state, seen.found, seen.problems) == ("partial", (TAKEN, TEST), ())
    assert verify(TINY[name], TAKE, root=tmp_path).sound


@pytest.mark.parametrize("name", SOURCES)
def test_too_few_or_too_many_images(tmp_path: Path, name: str) -> None:
    WRITE[name](tmp_path / name, train=TAKEN - 1)
    assert f"{name}/train: images 0 to 29 are needed, found only the first 29 of 40" in refused(tmp_path, name)
    assert status(TINY[name], TAKE, root=tmp_path).state == "broken"
    fewer = dataclasses.replace(TINY[name], expected=Counts(TAKEN - 2, TEST))
    with pytest.raises(UserError, match=f"{name}/train: expected 28 images, found 29"):
        load(fewer, Decoding(num_train=20), root=tmp_path)
    other_test = dataclasses.replace(TINY[name], expected=Counts(TRAIN, TEST + 1))
    with pytest.raises(UserError, match=f"{name}/test: expected 21 images, found 20"):
        load(other_test, Decoding(num_train=20), root=tmp_path)


def test_first_skips_training_images(tmp_path: Path) -> None:
    WRITE["mnist"](tmp_path / "mnist")
    late = load(TINY["mnist"], Decoding(first=10, num_train=TAKEN), root=tmp_path).domain
    whole = load(TINY["mnist"], Decoding(num_train=TRAIN), root=tmp_path).domain
    assert torch.equal(late.train.x, whole.train.x[10:])
    with pytest.raises(UserError, match="images 11 to 40 are needed, found only the first 40 of 40"):
        load(TINY["mnist"], Decoding(first=11, num_train=TAKEN), root=tmp_path)


def test_val_is_the_end_of_the_training_images(tmp_path: Path) -> None:
    WRITE["svhn"](tmp_path / "svhn")
    whole = load(TINY["svhn"], TAKE, root=tmp_path).domain
    held = load(TINY["svhn"], dataclasses.replace(TAKE, num_val=5), root=tmp_path).domain
    assert held.val is not None and torch.equal(held.val.x, whole.train.x[25:]) and len(held.train.x) == 25
    tested = load(TINY["svhn"], dataclasses.replace(TAKE, num_val=5, test_on="val"), root=tmp_path).domain
    assert torch.equal(tested.train.x, held.train.x)
    assert torch.equal(tested.test.x, held.val.x)
    assert torch.equal(tested.test.y, held.val.y)
    with pytest.raises(UserError, match="test_on=val tests on held-out training images, but num_val is 0"):
        dataclasses.replace(TAKE, test_on="val")
    with pytest.raises(UserError, match=r"num_val must be below num_train, 30\. Got 30"):
        dataclasses.replace(TAKE, num_val=30)


def lanczos(image: np.ndarray, size: int) -> np.ndarray:
    """Lanczos with three lobes from its definition, rows then columns, each rounded to bytes as Pillow does."""

    def along_rows(values: np.ndarray) -> np.ndarray:
        scale = values.shape[1] / size
        centres = (np.arange(size) + 0.5) * scale
        distance = np.arange(values.shape[1]) + 0.5 - centres[:, None]
        weights = np.where(np.abs(distance) < 3, np.sinc(distance) * np.sinc(distance / 3), 0)
        weights /= weights.sum(axis=1, keepdims=True)
        return np.clip(np.floor(values @ weights.T + 0.5), 0, 255)

    return along_rows(along_rows(image.astype(float)).T).T


def test_resizing() -> None:
    images = pixels(8, 28, 28)
    expected = np.stack([lanczos(image, 32) for image in images])
    difference = np.abs(to_32(images, "lanczos").astype(int) - expected)
    assert difference.max() <= 1 and (difference > 0).mean() < 0.001  # Pillow's weights have 22 bits
    padded = to_32(images, "pad")
    assert np.array_equal(padded[:, 2:-2, 2:-2], images) and padded.sum() == images.sum()
    bilinear = np.asarray(Image.fromarray(images[0]).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.array_equal(to_32(images, "bilinear")[0], bilinear)
    with pytest.raises(UserError, match="'resize' parameter of Decoding must be one of 'lanczos', 'bilinear', 'pad'"):
        Decoding(resize="nearest")


@pytest.mark.parametrize("layout", ["", "MNIST/raw", "a/b/c", "kaggle", "dotted"])
@pytest.mark.parametrize("packed", [True, False])
def test_mnist_is_found_in_any_layout(tmp_path: Path, layout: str, packed: bool) -> None:
    folder = tmp_path / "mnist"
    write_mnist(folder if layout in ("kaggle", "dotted") else folder / layout, packed=packed)
    for path in list(folder.iterdir()) if layout in ("kaggle", "dotted") else ():
        if layout == "dotted":
            path.rename(path.with_name(path.name.replace("-idx", ".idx")))
        else:  # a folder of the file's own name around each
            path.rename(folder / "moved")
            path.mkdir()
            (folder / "moved").rename(path / path.name)
    assert len(load(TINY["mnist"], TAKE, root=tmp_path).domain.train.x) == TAKEN


def test_find_takes_the_nearest_and_does_not_walk_in_circles(tmp_path: Path) -> None:
    write_mats(tmp_path / "b" / "old", "")
    write_mats(tmp_path / "b", "")
    (tmp_path / "b" / "circle").symlink_to(tmp_path)
    files = find(SOURCES["svhn"], tmp_path)
    assert files == {"train": tmp_path / "b/train_32x32.mat", "test": tmp_path / "b/test_32x32.mat"}
    assert find(SOURCES["syn"], tmp_path) == {}


def test_data_root_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("METADR_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_root() == tmp_path / ".cache" / "metadr"


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("there", ["nothing", "empty folder", "other files"])
def test_missing_data_names_the_next_command(tmp_path: Path, name: str, there: str) -> None:
    if there != "nothing":
        (tmp_path / name).mkdir()
    if there == "other files":
        (tmp_path / name / "README").write_text("nothing of interest")
    said = refused(tmp_path, name)
    assert said.startswith(
        f"{name}: no data in {tmp_path / name}. Run 'metadr data fetch {name}' or 'metadr data import"
    )
    seen = status(TINY[name], root=tmp_path)
    assert (seen.state, seen.found, seen.problems) == ("missing", None, (said,))
    assert not verify(TINY[name], root=tmp_path).sound


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    WRITE["mnist"](tmp_path / "mnist")
    (tmp_path / "mnist/MNIST/raw/t10k-labels-idx1-ubyte.gz").unlink()
    assert "mnist: no t10k-labels-idx1-ubyte in" in refused(tmp_path, "mnist")


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("kept", [0, 3, 10, 100, 0.5, -1])
def test_truncated_file(tmp_path: Path, name: str, kept: float) -> None:
    WRITE[name](tmp_path / name)
    victim = tmp_path / name / VICTIM[name]
    data = victim.read_bytes()
    victim.write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])
    assert f"{victim} is damaged: " in refused(tmp_path, name)


@pytest.mark.parametrize("name", SOURCES)
def test_overwritten_file(tmp_path: Path, name: str) -> None:
    WRITE[name](tmp_path / name)
    victim = tmp_path / name / VICTIM[name]
    for noise in (
        bytes(victim.stat().st_size),
        np.random.default_rng(0).bytes(victim.stat().st_size),
        b"<html></html>",
    ):
        victim.write_bytes(noise)
        assert f"{victim} is damaged: " in refused(tmp_path, name)
        assert not verify(TINY[name], TAKE, root=tmp_path).sound


@pytest.mark.parametrize("name", SOURCES)
def test_corrupt_bytes_are_never_a_traceback(tmp_path: Path, name: str) -> None:
    """Whatever a flipped byte does, it ends in a sentence or in images of the right shape."""
    WRITE[name](tmp_path / name)
    victim = tmp_path / name / VICTIM[name]
    data = bytearray(victim.read_bytes())
    for place in np.random.default_rng(1).integers(0, len(data), 25):
        changed = data.copy()
        changed[place] ^= 0xFF
        victim.write_bytes(changed)
        try:
            domain = load(TINY[name], TAKE, root=tmp_path).domain
        except UserError:
            continue
        assert domain.train.x.shape == (TAKEN, 3, 32, 32)


@pytest.mark.parametrize("name", SOURCES)
def test_folder_where_a_file_is_expected(tmp_path: Path, name: str) -> None:
    WRITE[name](tmp_path / name)
    victim = tmp_path / name / VICTIM[name]
    victim.unlink()
    victim.mkdir()
    assert refused(tmp_path, name) == f"{victim} is a folder, but a file is expected there. Put the file in its place."


def test_file_where_a_folder_is_expected(tmp_path: Path) -> None:
    (tmp_path / "svhn").write_text("")
    assert "is a file, but a folder is expected there" in refused(tmp_path, "svhn")
    assert status(TINY["svhn"], root=tmp_path).state == "broken"


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path, name: str) -> None:
    WRITE[name](tmp_path / name)
    victim = tmp_path / name / VICTIM[name]
    victim.chmod(0)
    assert refused(tmp_path, name).startswith(f"Cannot read {victim}: Permission denied.")


@pytest.mark.parametrize("name", SOURCES)
def test_file_that_the_system_refuses(tmp_path: Path, name: str) -> None:
    WRITE[name](tmp_path / name)
    victim = tmp_path / name / VICTIM[name]
    victim.unlink()
    victim.symlink_to(victim)  # too many levels of symbolic links, for root too
    assert refused(tmp_path, name).startswith("Cannot read ")


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        (np.where(LABELS["train"] == 3, 11, LABELS["train"]), "{}/train: label 11 is out of range; digits are 0 to 9"),
        (np.where(LABELS["train"] == 3, 4, LABELS["train"]), "{}/train: no image of digit 3; all ten must be there"),
    ],
)
def test_labels_that_are_no_digits(tmp_path: Path, name: str, labels: np.ndarray, problem: str, monkeypatch) -> None:
    monkeypatch.setitem(LABELS, "train", labels)
    WRITE[name](tmp_path / name)
    assert problem.format(name) in refused(tmp_path, name)


@pytest.mark.parametrize("name", SOURCES)
def test_other_class_counts_are_found_by_verify(tmp_path: Path, name: str, monkeypatch) -> None:
    monkeypatch.setitem(LABELS, "test", np.array([*range(10), *range(9), 0]))
    WRITE[name](tmp_path / name)
    found = verify(TINY[name], TAKE, root=tmp_path)
    assert not found.sound
    assert f"{name}/test: expected 2 images of digit 0, found 3." in found.status.problems[0]


def test_idx_header(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(idx_bytes(pixels(5)))
    assert read_idx(path, 1).shape == (5,)
    with pytest.raises(UserError, match="begins with 0x00000801, an idx file of 3-D bytes with 0x00000803"):
        read_idx(path, 3)
    path.write_bytes(idx_bytes(pixels(5)) + b"1")
    with pytest.raises(UserError, match="its header promises 5 = 5 bytes, it holds more"):
        read_idx(path, 1)
    path.write_bytes(struct.pack(">4I", 0x803, 2**31, 2**31, 2**31))
    with pytest.raises(UserError, match="it holds 0 bytes"):
        read_idx(path, 3)


def test_idx_of_other_sizes(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    images = tmp_path / "mnist/train-images-idx3-ubyte.gz"
    images.write_bytes(idx_bytes(pixels(TRAIN, 27, 28)))
    assert "its images are 27x28, not 28x28" in refused(tmp_path, "mnist")
    images.write_bytes(idx_bytes(pixels(TRAIN - 1, 28, 28)))
    assert "it has 40 labels for 39 images" in refused(tmp_path, "mnist")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("00000000.png", "line 1 is not 'NAME.png LABEL'"),
        ("00000000.png five", "line 1 is not 'NAME.png LABEL'"),
        ("../../secret.png 5", "line 1 is not 'NAME.png LABEL'"),
        ("\udcff\udcfe 5", "line 1 is not 'NAME.png LABEL'"),
        ("00000001.png 5", "it names an image twice"),
    ],
)
def test_label_lists(tmp_path: Path, line: str, problem: str) -> None:
    write_mnist_m(tmp_path / "mnist_m")
    path = tmp_path / "mnist_m/mnist_m_train_labels.txt"
    path.write_bytes(b"\n".join([line.encode(errors="surrogateescape"), *path.read_bytes().splitlines()[1:]]))
    assert f"{path} is damaged: {problem}" in refused(tmp_path, "mnist_m")


def test_png_of_another_size_or_kind(tmp_path: Path) -> None:
    write_mnist_m(tmp_path / "mnist_m")
    victim = tmp_path / "mnist_m" / VICTIM["mnist_m"]
    Image.new("RGB", (28, 28)).save(victim)
    assert "it is 28x28, not 32x32" in refused(tmp_path, "mnist_m")
    Image.new("RGB", (32, 32)).save(victim, format="JPEG")
    assert "it is not a whole PNG (unknown format)" in refused(tmp_path, "mnist_m")
    victim.unlink()
    assert "images 0 to 39 are needed, found only the first 39" in refused(
        tmp_path, "mnist_m", Decoding(num_train=TRAIN)
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"X": pixels(32, 32, 3, TRAIN)}, "it has no variable y"),
        ({"y": LABELS["train"]}, "it has no variable X"),
        ({"X": pixels(28, 28, 3, TRAIN), "y": LABELS["train"]}, "X must be 32x32x3xN, it is 28x28x3x40"),
        ({"X": pixels(32, 32, 3, TRAIN), "y": LABELS["train"][1:]}, "X has 40 images and y 1x39 labels"),
        ({"X": pixels(32, 32, 3, TRAIN) / 255.0, "y": LABELS["train"]}, "its images are float64, not uint8"),
        ({"X": pixels(32, 32, 3, TRAIN), "y": LABELS["train"] + 0.5}, "its labels are not whole numbers"),
    ],
)
def test_mat_of_another_content(tmp_path: Path, content: dict[str, np.ndarray], problem: str) -> None:
    write_mats(tmp_path / "svhn", "")
    savemat(tmp_path / "svhn/train_32x32.mat", content)
    assert problem in refused(tmp_path, "svhn")


def test_mat_of_version_7_3(tmp_path: Path) -> None:
    write_mats(tmp_path / "svhn", "")
    header = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM" + b"\x89HDF\r\n\x1a\n" + bytes(512)
    (tmp_path / "svhn/train_32x32.mat").write_bytes(header)
    assert "is a MATLAB 7.3 (HDF5) file" in refused(tmp_path, "svhn")


def test_a_stand_in_says_so(tmp_path: Path) -> None:
    write_mats(tmp_path / "syn", "synth_", train=TAKEN)
    record = tmp_path / "syn/syn.json"
    record.write_text('{"what": "rendered; not the published files"}')
    info = load(TINY["syn"], TAKE, root=tmp_path).info
    assert str(info).endswith("30 of 40 training images, all 20 test images; rendered; not the published files")
    assert status(TINY["syn"], TAKE, root=tmp_path).origin == "rendered; not the published files"
    record.write_text("{")
    assert load(TINY["syn"], TAKE, root=tmp_path).info.origin == "made by someone (syn.json cannot be read)"


def test_checksums_tell_the_published_files_from_others(tmp_path: Path) -> None:
    write_mats(tmp_path / "svhn", "")
    assert {check.verdict for check in verify(TINY["svhn"], TAKE, root=tmp_path).files} == {"differs"}
    write_mats(tmp_path / "syn", "synth_")
    assert {check.verdict for check in verify(TINY["syn"], TAKE, root=tmp_path).files} == {"differs"}
    unknown = dataclasses.replace(TINY["syn"], files=())
    assert {check.verdict for check in verify(unknown, TAKE, root=tmp_path).files} == {"no checksum published"}


@pytest.mark.parametrize("source", SOURCES.values(), ids=list(SOURCES))
def test_sources_are_complete(source) -> None:
    assert source.title and source.about and source.licence and source.homepage.startswith("http")
    assert all(url.startswith(("https://", "http://ufldl.stanford.edu/")) for file in source.files for url in file.urls)
    lengths = {"md5": 32, "sha256": 64}
    kinds = [file.checksum.split(":") for file in source.files if file.checksum]
    assert all(len(digest) == lengths[kind] for kind, digest in kinds)
    for classes, size in zip((source.train_classes, source.test_classes), source.expected, strict=True):
        assert classes is None or (len(classes) == 10 and sum(classes) == size)


def test_digits_benchmark() -> None:
    assert DIGITS.protocols["p1"] == ("mnist", "mnist_m", "syn", "svhn")
    assert DIGITS.protocols["p2"] == ("svhn", "syn", "mnist_m", "mnist")
    orders = {name: order for name, order in DIGITS.protocols.items() if name not in ("p1", "p2")}
    assert set(orders.values()) == set(itertools.permutations(DIGITS.domains)) and len(orders) == 24
    assert orders["mnist-mnist_m-svhn-syn"] == ("mnist", "mnist_m", "svhn", "syn")


def test_digits_benchmark_without_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    said = f"mnist: no data in {tmp_path}/mnist. Run 'metadr data fetch mnist' or 'metadr data import mnist FOLDER'."
    for call in (lambda: DIGITS.load("mnist"), lambda: DIGITS.fingerprint(("mnist",))):
        with pytest.raises(UserError) as caught:
            call()
        assert str(caught.value) == said


def test_digits_benchmark_is_known_by_its_content(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    for name, source in TINY.items():
        monkeypatch.setitem(SOURCES, name, source)
    WRITE["mnist"](tmp_path / "mnist")
    WRITE["svhn"](tmp_path / "svhn")
    both = configure(TAKE)
    first = both.fingerprint(("mnist", "svhn"))
    assert first == both.fingerprint(("svhn", "mnist"))  # the order of domains is in the key anyway
    (tmp_path / "svhn/train_32x32.mat").touch()
    assert both.fingerprint(("mnist", "svhn")) == first  # the same content at another time
    held = configure(dataclasses.replace(TAKE, num_val=5))
    assert held.fingerprint(("mnist", "svhn")) == f"{first}, 5 held out"
    padded = configure(dataclasses.replace(TAKE, resize="pad"))
    assert padded.fingerprint(("svhn",)) == both.fingerprint(("svhn",))
    assert padded.fingerprint(("mnist",)) != both.fingerprint(("mnist",))
    late = configure(dataclasses.replace(TAKE, first=5))
    assert late.fingerprint(("svhn",)) == both.fingerprint(("svhn",))  # `first` concerns MNIST alone
    assert late.fingerprint(("mnist",)) != both.fingerprint(("mnist",))
    domain = both.task.check(held.load("svhn"))
    assert domain.val is not None and len(domain.val.x) == 5


def test_settings_of_the_digits_are_fields_of_a_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    for name, source in TINY.items():
        monkeypatch.setitem(SOURCES, name, source)
    WRITE["mnist"](tmp_path / "mnist")
    WRITE["mnist_m"](tmp_path / "mnist_m")

    def data(**fields: object) -> str:
        recipe = make_recipe("digits", order="mnist,mnist_m", **{"num_train": TAKEN, **fields})
        return str(identity(recipe, 0)["data"])

    whole = data()
    contents = [load(name, TAKE).info.content[:16] for name in ("mnist", "mnist_m")]
    assert whole == f"mnist {contents[0]}, mnist_m {contents[1]}"  # as it was before there were settings
    assert data(resize="lanczos", first="0", **{"digits.num_val": 0}) == whole
    assert data(num_val="3") == f"{whole}, 3 held out"
    assert data(num_val="3", test_on="val") == f"{whole}, 3 held out, tested on these"
    for fields in ({"resize": "pad"}, {"first": 4}):
        changed = data(**fields)
        assert changed != whole and changed.endswith(f"mnist_m {contents[1]}")
    domain = benchmark_of(make_recipe("digits", num_train=TAKEN, resize="pad", num_val=3)).load("mnist")
    assert domain.val is not None and len(domain.val.x) == 3 and len(domain.train.x) == TAKEN - 3
    assert not domain.train.x[:, :, :2].any()  # the rim
    seen: list[Work] = []
    prepare(make_recipe("digits", order="mnist_m", num_train=TAKEN - 1), seen.append)
    assert {Work("decoding mnist_m/train", 29, 29), Work("decoding mnist_m/test", 20, 20)} <= set(seen)
    with pytest.raises(UserError, match=r"must be one of 'lanczos', 'bilinear', 'pad'\. Got 'cubic'"):
        make_recipe("digits", resize="cubic")


def test_another_rendering_of_syn_is_another_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    for name, source in TINY.items():
        monkeypatch.setitem(SOURCES, name, source)
    for name in ("syn_easy", "syn_hard"):
        monkeypatch.setitem(RENDERED, name, dataclasses.replace(RENDERED[name], expected=Counts(TRAIN, TEST)))
    write_mats(tmp_path / "syn", "synth_")
    easier = write_mats(tmp_path / "syn_easy", "synth_", train=TRAIN - 1)  # other pixels
    WRITE["svhn"](tmp_path / "svhn")

    def made(**fields: object) -> Recipe:
        return make_recipe("digits", order="syn,svhn", **{"num_train": TAKEN, **fields})

    usual, easy = made(), made(syn="easy")
    assert made(syn="standard") == usual != easy
    assert "reading" in (told := identity(easy, 0)) and told["reading"]["syn"] == "easy"
    assert "syn" not in identity(usual, 0)["reading"]
    svhn, syn = (load(name, TAKE).info.content[:16] for name in ("svhn", "syn"))
    assert identity(usual, 0)["data"] == f"svhn {svhn}, syn {syn}"  # as it was before there were several
    assert identity(easy, 0)["data"] == f"svhn {svhn}, syn {load('syn_easy', TAKE).info.content[:16]}"
    assert identity(easy, 0)["data"] != identity(usual, 0)["data"]
    domain = benchmark_of(easy).load("syn")
    assert domain.name == "syn"
    assert np.array_equal(domain.train.x.permute(0, 2, 3, 1).numpy(), easier["train"][:TAKEN])
    with pytest.raises(UserError) as caught:
        benchmark_of(made(syn="hard")).load("syn")
    assert str(caught.value) == (
        f"syn_hard: no data in {tmp_path}/syn_hard. "
        "Run 'metadr data import syn_hard FOLDER' or 'metadr data build syn --variant hard'."
    )
