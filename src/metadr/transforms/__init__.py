"""Image transformations on batches, the paper's transformation sets, and random draws from them.

`metadr.transforms.NAME(images, level)` takes (B, 3, H, W) uint8 images and one level per image.
"""

from metadr.transforms.drawing import Drawn, Per, Pick, Strategy, draw
from metadr.transforms.geometric import rotate, rotate_masks
from metadr.transforms.photometric import (
    blur,
    brightness,
    color,
    contrast,
    gaussian_noise,
    grayscale,
    identity,
    invert,
    rgb_rand,
    solarize,
)
from metadr.transforms.psi import PSI1, PSI2, PSI3, PSI4
from metadr.transforms.registry import TRANSFORMS, Transform, get_transform, transform
from metadr.transforms.sets import SETS, Choice, TransformSet, get_set, register_set
from metadr.transforms.sheet import contact_sheet, write_contact_sheet

__all__ = [
    "PSI1",
    "PSI2",
    "PSI3",
    "PSI4",
    "SETS",
    "TRANSFORMS",
    "Choice",
    "Drawn",
    "Per",
    "Pick",
    "Strategy",
    "Transform",
    "TransformSet",
    "blur",
    "brightness",
    "color",
    "contact_sheet",
    "contrast",
    "draw",
    "gaussian_noise",
    "get_set",
    "get_transform",
    "grayscale",
    "identity",
    "invert",
    "register_set",
    "rgb_rand",
    "rotate",
    "rotate_masks",
    "solarize",
    "transform",
    "write_contact_sheet",
]
