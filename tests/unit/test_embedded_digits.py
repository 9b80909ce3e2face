"""The embedded digits: what their users count on, and that the same pixels come out every time."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from metadr.errors import UserError
from metadr.synthetic import embedded_digits, font_digits
from metadr.synthetic.embedded_digits import NAMES, Images4, make


def digest(domain: Images4) -> str:
    joined = hashlib.sha256()
    for tensor in domain:
        joined.update(tensor.numpy().tobytes())
    return joined.hexdigest()


def rows(images: torch.Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


@pytest.mark.parametrize("name", NAMES)
def test_shapes_types_and_counts(name: str) -> None:
    domain = make(name)
    assert domain.train_x.shape == (1347, 3, 32, 32)
    assert domain.test_x.shape == (450, 3, 32, 32)
    assert domain.train_y.shape == (1347,)
    assert domain.test_y.shape == (450,)
    assert domain.train_x.dtype == domain.test_x.dtype == torch.uint8
    assert domain.train_y.dtype == domain.test_y.dtype == torch.int64
    assert all(tensor.is_contiguous() for tensor in domain)


@pytest.mark.parametrize("name", NAMES)
def test_classes_are_near_balanced(name: str) -> None:
    for labels in (make(name).train_y, make(name).test_y):
        counts = labels.bincount(minlength=10)
        assert counts.shape == (10,)
        assert counts.max() / counts.min() < 1.06


@pytest.mark.parametrize("name", NAMES)
def test_no_image_twice(name: str) -> None:
    domain = make(name)
    train, test = rows(domain.train_x), rows(domain.test_x)
    assert len(train) == 1347
    assert len(test) == 450
    assert not train & test


def test_same_pixels_in_another_process_and_another_order() -> None:
    """A fresh process makes the domains backwards: pixels depend neither on what was made before nor on a cache."""
    code = (
        "import hashlib\n"
        "from metadr.synthetic.embedded_digits import NAMES, make\n"
        "for name in reversed(NAMES):\n"
        "    print(name, hashlib.sha256(b''.join(t.numpy().tobytes() for t in make(name))).hexdigest())\n"
    )
    fresh = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert dict(line.split() for line in fresh.splitlines()) == {name: digest(make(name)) for name in NAMES}


def test_global_random_state_is_neither_used_nor_moved() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state()
    first = digest(make("handwritten"))
    embedded_digits._domain.cache_clear()
    embedded_digits._handwritten.cache_clear()
    assert digest(make("handwritten")) == first
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", NAMES)
def test_editing_a_result_changes_no_later_one(name: str) -> None:
    domain = make(name)
    before = digest(domain)
    for tensor in domain:
        tensor.zero_()
    assert digest(make(name)) == before


def test_handwritten_is_grey_on_black() -> None:
    images = make("handwritten").train_x
    assert torch.equal(images[:, 0], images[:, 1])
    assert torch.equal(images[:, 0], images[:, 2])
    assert images[:, :, 0].max() < 32  # the digits do not touch the frame
    assert images.amax(dim=(1, 2, 3)).min() > 200


def test_blended_holds_the_same_digits_in_the_same_split(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, blended = make("handwritten"), make("blended")
    assert torch.equal(blended.train_y, plain.train_y)
    assert torch.equal(blended.test_y, plain.test_y)
    assert not torch.equal(blended.train_x, plain.train_x)

    def black(random: np.random.Generator, smallest: int, largest: int) -> np.ndarray:
        return np.zeros((32, 32, 3), dtype=np.uint8)

    monkeypatch.setattr(embedded_digits, "photo_crop", black)  # over black, the blend is the digit itself
    (train_x, _), (test_x, _) = embedded_digits._domain.__wrapped__("blended")
    assert np.array_equal(train_x, plain.train_x.permute(0, 2, 3, 1).numpy())
    assert np.array_equal(test_x, plain.test_x.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("font", sorted({*font_digits.PRINT_FONTS, *font_digits.STREET_FONTS}))
def test_every_font_draws_ten_different_digits(font: str) -> None:
    masks = {font_digits._glyph(font, digit, 0).mask.tobytes() for digit in range(10)}
    assert len(masks) == 10


def test_unknown_name() -> None:
    with pytest.raises(UserError, match=r"^No domain 'blend'\. Closest: 'blended'\.$"):
        make("blend")


def test_missing_font_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(UserError, match=r"No font file '.*DejaVuSans\.ttf', .* Reinstall it with"):
        font_digits._font.__wrapped__("DejaVuSans.ttf")
