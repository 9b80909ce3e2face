"""Four domains of the digits 0 to 9, made in seconds from nothing but installed packages: the `embedded` benchmark.

| domain        | digits                                  | look                                                     |
| ------------- | --------------------------------------- | -------------------------------------------------------- |
| `handwritten` | scikit-learn's 1,797 handwritten digits | white on black                                           |
| `blended`     | the same digits, the same split         | the difference of the digit and a piece of photograph    |
| `rendered`    | fonts, mostly with serifs               | coloured type on coloured ground, light on dark or not   |
| `street`      | fonts, mostly without serifs            | house numbers: walls, plates, shadows, neighbours, noise |

Every image is 32x32 RGB. Each has a random stream of its own, seeded by domain, split and index, so the pixels do not
depend on what was made before. They do depend on the libraries underneath (FreeType draws the glyphs, libjpeg decodes
the photographs): another version of those may move a grey level.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from metadr.errors import unknown
from metadr.synthetic.font_digits import Pixels, Random, photo_crop, rendered, street

NAMES = ("handwritten", "blended", "rendered", "street")
REVISION: int = 1
"""Part of the fingerprint of the data: raise it when any pixel, label or split changes."""

NUM_CLASSES = 10
TEST_FRACTION = 0.25
SEED = 20210619

Labels = NDArray[np.int64]
Split = tuple[Pixels, Labels]


class Images4(NamedTuple):
    """One domain: images (N, 3, 32, 32) uint8, labels (N,) int64."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def make(name: str) -> Images4:
    """Make one domain. The tensors belong to the caller: editing them changes no later call.

    Raises:
        UserError: If there is no such domain, or a font that matplotlib ships is not there.
    """
    if name not in NAMES:
        raise unknown("domain", name, NAMES)
    (train_x, train_y), (test_x, test_y) = _domain(name)
    return Images4(_images(train_x), torch.tensor(train_y), _images(test_x), torch.tensor(test_y))


def _images(pixels: Pixels) -> Tensor:
    """Copy (N, 32, 32, 3) pixels to an (N, 3, 32, 32) tensor."""
    return torch.tensor(pixels).permute(0, 3, 1, 2).contiguous()


@cache
def _domain(name: str) -> tuple[Split, Split]:
    train, test = _handwritten()
    if name == "handwritten":
        return train, test
    if name == "blended":
        return _blend(train, "train"), _blend(test, "test")
    draw = {"rendered": rendered, "street": street}[name]
    return _draw(draw, name, "train", len(train[1])), _draw(draw, name, "test", len(test[1]))


def _random(*meaning: str | int) -> Random:
    """An independent stream for what it is used for, whatever was drawn before."""
    words = [word if isinstance(word, int) else int.from_bytes(word.encode(), "big") for word in meaning]
    return np.random.default_rng([SEED, *words])


@cache
def _handwritten() -> tuple[Split, Split]:
    """Split scikit-learn's digits class by class, so that both halves hold the classes in the same proportions."""
    from sklearn.datasets import load_digits  # takes a second: not before it must

    digits = load_digits()
    labels = digits.target.astype(np.int64)
    is_test = np.zeros(len(labels), dtype=bool)
    for digit in range(NUM_CLASSES):
        members = _random("split", digit).permutation(np.flatnonzero(labels == digit))
        is_test[members[: round(TEST_FRACTION * len(members))]] = True
    pixels = np.stack([_enlarge(image) for image in digits.images])
    return (pixels[~is_test], labels[~is_test]), (pixels[is_test], labels[is_test])


def _enlarge(image: NDArray[np.float64]) -> Pixels:
    """Bring an 8x8 digit of levels 0 to 16 to 32x32 RGB with round, firm strokes.

    Bicubic interpolation alone leaves a fog around the strokes; the steep part of a smoothstep turns it into an edge.
    """
    framed = np.pad(image * (255 / 16), 1)
    smooth = Image.fromarray(framed.round().astype(np.uint8)).resize((32, 32), Image.Resampling.BICUBIC)
    ramp = np.clip((np.asarray(smooth, dtype=np.float32) / 255 - 0.2) / 0.55, 0, 1)
    grey = (255 * ramp * ramp * (3 - 2 * ramp)).round().astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _blend(split: Split, part: str) -> Split:
    """Lay each digit over a piece of photograph as MNIST-M does: the absolute difference, channel by channel."""
    digits, labels = split
    grounds = np.stack([photo_crop(_random("blended", part, index), 20, 44) for index in range(len(labels))])
    return np.abs(grounds.astype(np.int16) - digits).astype(np.uint8), labels


def _draw(draw: Callable[[int, Random], Pixels], name: str, part: str, count: int) -> Split:
    """Draw `count` images with the classes as even as they can be, in a shuffled order."""
    labels = _random(name, part).permutation(np.arange(count, dtype=np.int64) % NUM_CLASSES)
    return np.stack([draw(int(label), _random(name, part, index)) for index, label in enumerate(labels)]), labels
