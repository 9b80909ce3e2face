"""MNIST-M from MNIST and a folder of photographs: each digit inverts the piece of photograph behind it.

The published recipe (Ganin and Lempitsky, 2015): out = |patch - digit| in each channel, the patch cut at random from a
colour photograph of BSDS500. The released images settle what the paper leaves open (docs/syn.md): they are 32x32, the
28x28 digit lies in the middle at its own size, the photograph fills the border too, and a digit's pixel counts as full
ink, 255, wherever it is not 0. That is what `blend` makes unless told otherwise.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from metadr.errors import UserError, unknown
from metadr.images import to_rgb

REVISION: int = 1
"""Part of the fingerprint of the data: raise it when any pixel changes."""

SIDE = 32
LONGEST = 481  # the longer side of every photograph of BSDS500

Ink = Literal["solid", "grey"]
Pixels = NDArray[np.uint8]


def blend(
    digits: Pixels,
    photos: str | Path | Sequence[str | Path],
    *,
    seed: int = 0,
    side: int = SIDE,
    ink: Ink = "solid",
    longest: int | None = LONGEST,
) -> Pixels:
    """Lay digits (N, H, W) over pieces of photographs: (N, side, side, 3).

    Image i depends on (seed, i), its digit and the photographs, not on the other digits. One photograph is in memory at
    a time, however many there are.

    Args:
        photos: A folder, searched with its subfolders, or the files themselves; their order is that of their names.
        side: Of the images. Smaller digits lie in the middle.
        ink: "solid" counts every pixel above 0 as 255, as the release does; "grey" takes |patch - digit| as it is.
        longest: Larger photographs are reduced to this longer side first; None takes every photograph as it is.

    Raises:
        UserError: If the digits have another shape or type, or a photograph is missing, unreadable or too small.
    """
    _check(digits, seed, side, ink, longest)
    paths = photo_files(photos)
    for path in paths:
        _check_size(path, side)
    draws = np.array([np.random.default_rng([seed, index]).random(3) for index in range(len(digits))]).reshape(-1, 3)
    chosen = (draws[:, 0] * len(paths)).astype(np.int64)
    mask = _centred(digits if ink == "grey" else np.where(digits > 0, 255, 0).astype(np.uint8), side)
    images = np.empty((*mask.shape, 3), dtype=np.uint8)
    for number in np.unique(chosen):
        photo = _read(paths[number], side, longest)
        for index in np.flatnonzero(chosen == number):
            top, left = (int(u * (extent - side + 1)) for u, extent in zip(draws[index, 1:], photo.shape, strict=False))
            images[index] = difference(photo[top : top + side, left : left + side], mask[index])
    return images


def difference(patch: Pixels, digit: Pixels) -> Pixels:
    """|patch - digit|, a patch (H, W, 3) and a digit (H, W): where the digit is 255, the negative of the photograph."""
    apart: Pixels = np.abs(patch.astype(np.int16) - digit[..., None]).astype(np.uint8)
    return apart


def photo_files(photos: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files of a folder that are named like images, or those given, by name."""
    if not isinstance(photos, str | Path):
        paths = sorted(Path(photo) for photo in photos)
        if not paths:
            raise UserError("No photographs to blend the digits with. Give a folder of them, or a list of files.")
        return paths
    root = Path(photos).expanduser()
    if not root.is_dir():
        raise UserError(f"No folder '{root}' to take photographs from. Give a folder of images, such as BSDS500's.")
    known = Image.registered_extensions()
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in known and path.is_file())
    if not paths:
        raise UserError(f"No photographs in '{root}'. Give a folder of images that Pillow reads, such as BSDS500's.")
    return paths


def _check_size(path: Path, side: int) -> None:
    """Look at the head of the file alone: a folder of thousands is checked before the first image is made."""
    try:
        with Image.open(path) as image:
            width, height = image.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unreadable(path, error) from None
    if min(width, height) < side:
        raise UserError(
            f"The photograph '{path}' is {width}x{height}, smaller than a {side}x{side} piece of it. Take it out."
        )


def _read(path: Path, side: int, longest: int | None) -> Pixels:
    """A photograph as (H, W, 3), the right way up, its shorter side no smaller than `side`."""
    try:
        with Image.open(path) as opened:
            image = to_rgb(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unreadable(path, error) from None
    if longest is not None and max(image.size) > longest:
        scale = max(longest / max(image.size), side / min(image.size))
        image = image.resize([max(side, round(scale * extent)) for extent in image.size], Image.Resampling.LANCZOS)
    return np.asarray(image)


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = "not an image that Pillow reads" if isinstance(error, UnidentifiedImageError) else error
    reason = error.strerror if isinstance(error, OSError) and error.strerror else reason
    return UserError(f"Cannot read the photograph '{path}' ({reason}). Take it out, or replace it.")


def _centred(digits: Pixels, side: int) -> Pixels:
    """Digits in the middle of `side` x `side` pixels of 0; an odd pixel goes below and to the right."""
    down, across = side - digits.shape[1], side - digits.shape[2]
    return np.pad(digits, ((0, 0), (down // 2, down - down // 2), (across // 2, across - across // 2)))


def _check(digits: Pixels, seed: int, side: int, ink: str, longest: int | None) -> None:
    if ink not in get_args(Ink):
        raise unknown("ink", ink, get_args(Ink))
    if digits.dtype != np.uint8 or digits.ndim != 3:
        raise UserError(f"Digits to blend must be (N, H, W) uint8. Got {digits.shape} {digits.dtype} instead.")
    if max(digits.shape[1:]) > side:
        raise UserError(f"Digits of {digits.shape[1]}x{digits.shape[2]} do not fit images of {side}x{side}.")
    if seed < 0:
        raise UserError(f"The 'seed' of MNIST-M must be an integer >= 0. Got {seed} instead.")
    if longest is not None and longest < side:
        raise UserError(
            f"The 'longest' side of a photograph must be None or an integer >= {side}. Got {longest} instead."
        )
