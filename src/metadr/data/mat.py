"""The .mat files of SVHN and SYN: X (32, 32, 3, N) and y (N, 1), where label 10 means the digit 0."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from metadr.core import Split
from metadr.data.source import Decoding, Files, Part, damaged, reading, to_split
from metadr.errors import UserError
from metadr.progress import Watch


def count_mat(files: Files, part: Part) -> int:
    """How many images a file holds, from its table of contents."""
    from scipy.io import whosmat

    path = files[part]
    shapes = {name: shape for name, shape, _ in _sound(path, whosmat)}
    _check_shapes(path, shapes)
    return int(shapes["X"][3])


def read_mat(files: Files, part: Part, rows: slice, decoding: Decoding, watch: Watch | None = None) -> Split:
    """Those rows of a file, as images (N, 3, 32, 32) and labels 0 to 9."""
    from scipy.io import loadmat

    path = files[part]
    content = _sound(path, loadmat, variable_names=("X", "y"))
    _check_shapes(path, {name: content[name].shape for name in ("X", "y") if name in content})
    images, labels = content["X"], content["y"].ravel()[rows]
    if images.dtype != np.uint8:
        raise damaged(path, f"its images are {images.dtype}, not uint8")
    if labels.dtype.kind not in "uif" or (labels != np.floor(labels)).any():
        raise damaged(path, "its labels are not whole numbers")
    labels = labels.astype(np.int64)
    return to_split(images[..., rows].transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels))


def _sound(path: Path, function: Any, **arguments: Any) -> Any:
    """Call a reader of scipy; whatever it raises on a file that is not sound becomes one sentence."""
    with reading(path):
        file = path.open("rb")
    with file, warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return function(file, **arguments)
        except NotImplementedError:
            raise UserError(
                f"{path} is a MATLAB 7.3 (HDF5) file; version 5 files are read. Save it again with 'save -v7'."
            ) from None
        # A parser meets arbitrary bytes here: ValueError, TypeError, zlib.error, MatReadError, MemoryError and more.
        except Exception as error:
            raise damaged(path, f"scipy cannot read it ({type(error).__name__}: {error})") from None


def _check_shapes(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    for name in ("X", "y"):
        if name not in shapes:
            raise damaged(path, f"it has no variable {name}")
    images, labels = shapes["X"], shapes["y"]
    if len(images) != 4 or images[:3] != (32, 32, 3):
        raise damaged(path, f"X must be 32x32x3xN, it is {'x'.join(map(str, images))}")
    if int(np.prod(labels)) != images[3] or max(labels) != images[3]:
        raise damaged(path, f"X has {images[3]} images and y {'x'.join(map(str, labels))} labels")
