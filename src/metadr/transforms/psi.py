"""The four transformation sets of the paper's table, in its order; grids are those the transformations register."""

from collections.abc import Callable

from torch import Tensor

from metadr.transforms.geometric import rotate
from metadr.transforms.photometric import (
    blur,
    brightness,
    color,
    contrast,
    gaussian_noise,
    grayscale,
    invert,
    rgb_rand,
    solarize,
)
from metadr.transforms.sets import Choice, TransformSet, register_set


def _psi(name: str, *members: Callable[..., Tensor]) -> TransformSet:
    return register_set(TransformSet(name, tuple(Choice.of(member.__name__) for member in members)))


PSI1 = _psi("psi1", brightness, color, contrast, solarize, grayscale, invert)
PSI2 = _psi("psi2", brightness, color, contrast, solarize, grayscale, invert, rotate)
PSI3 = _psi("psi3", brightness, color, contrast, solarize, grayscale, invert, rotate, gaussian_noise, blur)
PSI4 = _psi("psi4", brightness, color, contrast, rgb_rand)
