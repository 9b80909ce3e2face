"""Digits over photographs: the formula, the geometry of the release, and every photograph checked beforehand."""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metadr.errors import UserError
from metadr.synthetic.mnist_m import blend, difference, photo_files


def photo(path: Path, width: int = 48, height: int = 40, seed: int = 0, **options: object) -> np.ndarray:
    pixels = np.random.default_rng(seed).integers(256, size=(height, width, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path, **options)
    return pixels


def some_digits(count: int = 6) -> np.ndarray:
    digits = np.random.default_rng(1).integers(256, size=(count, 28, 28)).astype(np.uint8)
    digits[:, :8] = 0
    return digits


def test_difference_by_hand() -> None:
    patch = np.array([[[0, 100, 255], [10, 20, 30]]], dtype=np.uint8)
    digit = np.array([[255, 0]], dtype=np.uint8)
    assert difference(patch, digit).tolist() == [[[255, 155, 0], [10, 20, 30]]]
    assert difference(patch, np.array([[40, 25]], dtype=np.uint8)).tolist() == [[[40, 60, 215], [15, 5, 5]]]


def test_photograph_as_large_as_the_image_leaves_nothing_to_chance(tmp_path: Path) -> None:
    patch = photo(tmp_path / "one.png", 32, 32).astype(int)
    digits = some_digits()
    framed = np.pad(digits, ((0, 0), (2, 2), (2, 2))).astype(int)
    solid = blend(digits, tmp_path)
    assert solid.shape == (6, 32, 32, 3)
    assert solid.dtype == np.uint8
    assert np.array_equal(solid, np.where(framed[..., None] > 0, 255 - patch, patch))
    grey = blend(digits, tmp_path, ink="grey")
    assert np.array_equal(grey, np.abs(patch - framed[..., None]))


def test_images_of_the_size_of_the_digits(tmp_path: Path) -> None:
    patch = photo(tmp_path / "one.png", 28, 28)
    digits = some_digits()
    expected = np.abs(patch.astype(int) - digits.astype(int)[..., None])
    assert np.array_equal(blend(digits, tmp_path, side=28, ink="grey"), expected)


def test_every_patch_is_a_piece_of_a_photograph_and_places_vary(tmp_path: Path) -> None:
    photos = [photo(tmp_path / f"{name}.png", seed=name) for name in range(3)]
    images = blend(np.zeros((60, 28, 28), dtype=np.uint8), tmp_path)
    places = set()
    for image in images:
        for number, pixels in enumerate(photos):
            windows = np.lib.stride_tricks.sliding_window_view(pixels, (32, 32, 3))[:, :, 0]
            places |= {(number, *map(int, place)) for place in np.argwhere((windows == image).all(axis=(2, 3, 4)))}
    assert len({number for number, *_ in places}) == 3
    assert len({top for _, top, _ in places}) > 5
    assert len({left for *_, left in places}) > 10
    assert max(top for _, top, _ in places) <= 8
    assert 40 < len(places) <= 60


def test_an_image_depends_on_seed_and_index_alone(tmp_path: Path) -> None:
    for name in range(3):
        photo(tmp_path / f"{name}.png", seed=name)
    digits = some_digits(20)
    images = blend(digits, tmp_path, seed=4)
    assert np.array_equal(images, blend(digits, tmp_path, seed=4))
    assert np.array_equal(images[:5], blend(digits[:5], tmp_path, seed=4))
    assert not np.array_equal(images, blend(digits, tmp_path, seed=5))
    files = [str(path) for path in tmp_path.iterdir()]
    assert np.array_equal(images, blend(digits, files[::-1], seed=4))


def test_digits_are_not_changed(tmp_path: Path) -> None:
    photo(tmp_path / "one.png")
    digits = some_digits()
    before = digits.copy()
    blend(digits, tmp_path)
    assert np.array_equal(digits, before)


def test_no_digits_make_no_images(tmp_path: Path) -> None:
    photo(tmp_path / "one.png")
    assert blend(np.zeros((0, 28, 28), dtype=np.uint8), tmp_path).shape == (0, 32, 32, 3)


@pytest.mark.parametrize("name", ["grey.png", "palette.gif", "cmyk.jpg", "alpha.webp", "deep.tif", "plain.BMP"])
def test_formats_and_modes(tmp_path: Path, name: str) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(40, 48, 3)).astype(np.uint8)
    image = Image.fromarray(pixels)
    modes = {"grey": "L", "palette": "P", "cmyk": "CMYK", "alpha": "RGBA"}
    if name == "deep.tif":
        image = Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 257)
    else:
        image = image.convert(modes.get(name.split(".")[0], "RGB"))
    (tmp_path / "inner").mkdir()
    image.save(tmp_path / "inner" / name)
    made = blend(np.zeros((3, 28, 28), dtype=np.uint8), tmp_path)
    assert made.std() > 20


def test_large_photographs_are_reduced_to_the_size_of_the_release(tmp_path: Path) -> None:
    """A chequer of 4 pixels, reduced by four, is one of single pixels; a long strip stays wide enough for a piece."""
    tiles = ((np.indices((1284, 1924)) // 4).sum(axis=0) % 2 * 255).astype(np.uint8)
    Image.fromarray(tiles).convert("RGB").save(tmp_path / "large.png")
    blank = np.zeros((2, 28, 28), dtype=np.uint8)
    as_it_is = blend(blank, tmp_path, longest=None)[0, :, :, 0].astype(int)
    reduced = blend(blank, tmp_path)[0, :, :, 0].astype(int)
    assert np.abs(np.diff(as_it_is[16])).astype(bool).sum() == pytest.approx(8, abs=1)
    assert np.abs(np.diff(reduced[16])).astype(bool).sum() == 31
    (tmp_path / "large.png").unlink()
    photo(tmp_path / "strip.png", 2000, 40)
    assert blend(blank, tmp_path).shape == (2, 32, 32, 3)


def test_mistakes_with_photographs(tmp_path: Path) -> None:
    digits = some_digits()
    with pytest.raises(UserError, match=r"No folder '.*nowhere' to take photographs from"):
        blend(digits, tmp_path / "nowhere")
    (tmp_path / "README.txt").write_text("not a photograph, and not named like one")
    with pytest.raises(UserError, match="No photographs in"):
        blend(digits, tmp_path)
    with pytest.raises(UserError, match="No photographs to blend"):
        blend(digits, [])
    with pytest.raises(UserError, match=r"Cannot read the photograph '.*gone\.png' \(No such file or directory\)"):
        blend(digits, [tmp_path / "gone.png"])
    photo(tmp_path / "large.png")
    photo(tmp_path / "small.png", 100, 31)
    with pytest.raises(UserError, match=r"small\.png' is 100x31, smaller than a 32x32 piece"):
        blend(digits, tmp_path)
    (tmp_path / "small.png").write_bytes(b"no image at all")
    with pytest.raises(UserError, match=r"small\.png' \(not an image that Pillow reads\)"):
        blend(digits, tmp_path)
    assert [path.name for path in photo_files(tmp_path)] == ["large.png", "small.png"]


def test_photograph_cut_short(tmp_path: Path) -> None:
    photo(tmp_path / "cut.png")
    data = (tmp_path / "cut.png").read_bytes()
    (tmp_path / "cut.png").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"Cannot read the photograph '.*cut\.png'"):
        blend(some_digits(), tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_photograph_without_permission(tmp_path: Path) -> None:
    photo(tmp_path / "one.png")
    (tmp_path / "one.png").chmod(0)
    with pytest.raises(UserError, match="Permission denied"):
        blend(some_digits(), tmp_path)


@pytest.mark.parametrize(
    ("digits", "options", "sentence"),
    [
        (np.zeros((2, 28), np.uint8), {}, r"must be \(N, H, W\) uint8. Got \(2, 28\) uint8"),
        (np.zeros((2, 28, 28), np.float32), {}, "Got .* float32 instead"),
        (np.zeros((2, 28, 28), np.uint8), {"side": 20}, "Digits of 28x28 do not fit images of 20x20"),
        (np.zeros((2, 28, 28), np.uint8), {"seed": -1}, "'seed' of MNIST-M must be an integer >= 0. Got -1"),
        (np.zeros((2, 28, 28), np.uint8), {"ink": "gray"}, "No ink 'gray'. Closest: 'grey'"),
        (np.zeros((2, 28, 28), np.uint8), {"longest": 5}, "None or an integer >= 32. Got 5"),
    ],
)
def test_mistakes_with_arguments(tmp_path: Path, digits: np.ndarray, options: dict, sentence: str) -> None:
    photo(tmp_path / "one.png")
    with pytest.raises(UserError, match=sentence):
        blend(digits, tmp_path, **options)
