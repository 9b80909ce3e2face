"""Image files to pixels: every kind that Pillow reads, each fit, threads like one after another, damage told."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metadr.data import decode
from metadr.data.decode import Broken, Picture, in_order, picture
from metadr.errors import UserError
from metadr.progress import Meter, Work

SIDE = 12
RGB = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
GREY = RGB[:, :, 0]


def pixels(path: Path, side: int = SIDE, fit: str = "crop") -> np.ndarray:
    made = picture(path, side, fit)
    assert isinstance(made, Picture), made
    return made.pixels


def reason(path: Path) -> str:
    made = picture(path, SIDE, "crop")
    assert isinstance(made, Broken), made
    return made.reason


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "ppm", "tga", "webp"])
def test_lossless_formats_are_read_to_the_bit(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(RGB).save(path, **({"lossless": True} if suffix == "webp" else {}))
    assert np.array_equal(pixels(path), RGB)


def test_grey_and_black_and_white_become_three_equal_channels(tmp_path: Path) -> None:
    Image.fromarray(GREY).save(tmp_path / "grey.png")
    assert np.array_equal(pixels(tmp_path / "grey.png"), np.dstack([GREY] * 3))
    Image.fromarray(GREY > 99).save(tmp_path / "bits.png")
    assert np.array_equal(pixels(tmp_path / "bits.png"), np.dstack([np.where(GREY > 99, 255, 0)] * 3))


def test_sixteen_bits_become_eight_by_their_range(tmp_path: Path) -> None:
    deep = GREY.astype(np.uint16) * 257
    Image.fromarray(deep).save(tmp_path / "deep.png")
    with Image.open(tmp_path / "deep.png") as image:
        assert image.mode.startswith("I")
    assert np.array_equal(pixels(tmp_path / "deep.png"), np.dstack([GREY] * 3))


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_dark_image_of_sixteen_bits_stays_dark(tmp_path: Path, suffix: str) -> None:
    for level, expected in ((255, 1), (256, 1), (514, 2)):
        Image.fromarray(np.full((SIDE, SIDE), level, np.uint16)).save(tmp_path / f"dark.{suffix}")
        assert np.array_equal(np.unique(pixels(tmp_path / f"dark.{suffix}")), [expected])


def test_palettes_are_looked_up_and_transparency_is_white(tmp_path: Path) -> None:
    places = (GREY % 4).astype(np.uint8)
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [9, 8, 7]], np.uint8)
    image = Image.fromarray(places).convert("P")
    image.putpalette(colours.tobytes())
    image.info.clear()
    image.putdata(places.ravel().tolist())
    image.save(tmp_path / "palette.png")
    assert np.array_equal(pixels(tmp_path / "palette.png"), colours[places])
    image.save(tmp_path / "seen_through.png", transparency=2)
    seen = np.where((places == 2)[..., None], 255, colours[places])
    assert np.array_equal(pixels(tmp_path / "seen_through.png"), seen)


def test_alpha_is_laid_over_white(tmp_path: Path) -> None:
    alpha = np.where(GREY > 128, 255, 0).astype(np.uint8)
    Image.fromarray(np.dstack([RGB, alpha])).save(tmp_path / "alpha.png")
    assert np.array_equal(pixels(tmp_path / "alpha.png"), np.where(alpha[..., None] > 0, RGB, 255))


def test_cmyk_is_read_as_pillow_converts_it(tmp_path: Path) -> None:
    ink = np.zeros((SIDE, SIDE, 4), np.uint8)
    ink[:, :, 0] = 255  # all cyan: no red
    Image.fromarray(ink, "CMYK").save(tmp_path / "ink.tif")
    assert np.array_equal(pixels(tmp_path / "ink.tif"), np.broadcast_to([0, 255, 255], (SIDE, SIDE, 3)))


def test_a_photograph_taken_sideways_is_put_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: rotate by 90 degrees clockwise
    Image.fromarray(RGB).save(tmp_path / "sideways.png", exif=exif)
    assert np.array_equal(pixels(tmp_path / "sideways.png"), np.rot90(RGB, -1))


def test_garbage_where_a_camera_writes_is_passed_over_and_damaged_pixels_are_not(tmp_path: Path) -> None:
    path = tmp_path / "odd.png"
    Image.fromarray(RGB).save(path, exif=b"Exif\0\0garbage!!")
    assert np.array_equal(pixels(path), RGB)
    Image.fromarray(np.kron(RGB, np.ones((8, 8, 1), np.uint8))).save(
        path.with_suffix(".jpg"), exif=b"Exif\0\0garbage!!"
    )
    path.with_suffix(".jpg").write_bytes(path.with_suffix(".jpg").read_bytes()[:-500])
    assert "truncated" in reason(path.with_suffix(".jpg"))


def test_fits(tmp_path: Path) -> None:
    wide = np.random.default_rng(2).integers(0, 256, (SIDE, 2 * SIDE, 3), dtype=np.uint8)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert np.array_equal(pixels(tmp_path / "wide.png"), wide[:, SIDE // 2 : SIDE // 2 + SIDE])
    padded = pixels(tmp_path / "wide.png", 2 * SIDE, "pad")
    assert np.array_equal(padded[SIDE // 2 : SIDE // 2 + SIDE], wide)
    assert not padded[: SIDE // 2].any() and not padded[SIDE // 2 + SIDE :].any()
    small = Image.fromarray(wide).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    assert np.array_equal(pixels(tmp_path / "wide.png", SIDE, "stretch"), np.asarray(small))
    made = picture(tmp_path / "wide.png", SIDE, "crop")
    assert isinstance(made, Picture) and (made.width, made.height) == (2 * SIDE, SIDE)


def encoded(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.kron(RGB, np.ones((8, 8, 1), np.uint8))).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"])
def test_a_file_cut_short_is_broken(tmp_path: Path, kind: str) -> None:
    whole = encoded(kind)
    for share in (0.9, 0.5, 0.1):
        (tmp_path / "cut").write_bytes(whole[: int(share * len(whole))])
        assert reason(tmp_path / "cut")


def test_a_flipped_bit_in_a_png_is_noticed(tmp_path: Path) -> None:
    data = bytearray(encoded("PNG"))
    data[len(data) // 2] ^= 1
    (tmp_path / "flipped.png").write_bytes(data)
    assert reason(tmp_path / "flipped.png")


def test_what_is_no_image_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.png").write_text("not an image")
    assert reason(tmp_path / "text.png") == "no image that Pillow knows"
    (tmp_path / "nothing.png").touch()
    assert reason(tmp_path / "nothing.png") == "empty file"
    (tmp_path / "large.png").write_bytes(encoded("PNG"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "exceeds limit" in reason(tmp_path / "large.png")


def test_a_file_that_cannot_be_read_is_no_broken_image(tmp_path: Path) -> None:
    """What the file system refuses may be granted tomorrow: it must not be remembered as broken."""
    with pytest.raises(UserError, match=r"Cannot read .*gone\.png: No such file"):
        picture(tmp_path / "gone.png", SIDE, "crop")
    with pytest.raises(UserError, match="is a folder, but a file is expected"):
        picture(tmp_path, SIDE, "crop")


def test_garbage_never_gets_out_as_another_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        whole = encoded(kind)
        for _ in range(20):
            data = bytearray(whole)
            for place in rng.integers(0, min(200, len(data)), 4):
                data[place] = rng.integers(256)
            (tmp_path / "garbage").write_bytes(data)
            assert isinstance(picture(tmp_path / "garbage", SIDE, "crop"), Picture | Broken)


@pytest.mark.parametrize("threads_from", [0, 10**9], ids=["threads", "one after another"])
def test_files_come_in_their_order_however_they_are_read(
    tmp_path: Path, threads_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "THREADS_FROM", threads_from)
    monkeypatch.setattr(decode, "WINDOW", 7)
    monkeypatch.setattr(decode, "_num_cores", lambda: 4)
    images = np.random.default_rng(4).integers(0, 256, (40, SIDE, SIDE, 3), dtype=np.uint8)
    paths = [tmp_path / f"{number}.png" for number in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        Image.fromarray(image).save(path)
    seen: list[Work] = []
    made = list(in_order(pixels, paths, what="decoding", watch=seen.append))
    assert np.array_equal(np.stack(made), images)
    assert seen[-1] == Work("decoding", 40, 40)
    assert [work.done for work in seen] == sorted({work.done for work in seen})

    def refuse(path: Path) -> None:
        if int(path.stem) in (11, 30):
            raise UserError(path.stem)

    with pytest.raises(UserError, match=r"^11$"):
        list(in_order(refuse, paths, what="decoding"))
    assert list(in_order(pixels, [], what="decoding")) == []


def test_a_meter_tells_now_and_then_and_at_the_end() -> None:
    seen: list[Work] = []
    meter = Meter("counting", 10_000, seen.append)
    for _ in range(10_000):
        meter.add()
    assert seen[-1] == Work("counting", 10_000, 10_000)
    assert len(seen) < 100
    Meter("counting", 1, None).add()
