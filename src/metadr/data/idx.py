"""The idx format of MNIST: a magic number, the dimensions, then bytes."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from metadr.data.source import damaged, reading

UNSIGNED_BYTE = 0x08
GZIP_MAGIC = b"\x1f\x8b"
MAX_BYTES = 1 << 30  # a damaged header may promise anything


def read_idx(path: Path, num_dims: int) -> NDArray[np.uint8]:
    """The array in an idx file of bytes, compressed or not; the file must hold exactly what its header says."""
    try:
        with reading(path), _opened(path) as file:
            shape = _header(file, path, num_dims)
            size = math.prod(shape)
            data = file.read(min(size, MAX_BYTES) + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"it cannot be decompressed ({error})") from None
    if len(data) != size:
        held = f"{len(data)} bytes" if len(data) < size else "more"
        raise damaged(path, f"its header promises {'x'.join(map(str, shape))} = {size} bytes, it holds {held}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def count_idx(path: Path, num_dims: int) -> int:
    """The first dimension, from the header alone."""
    try:
        with reading(path), _opened(path) as file:
            return _header(file, path, num_dims)[0]
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"it cannot be decompressed ({error})") from None


def _opened(path: Path) -> BinaryIO | gzip.GzipFile:
    """By content, not by name: browsers and unpackers rename."""
    file = path.open("rb")
    compressed = file.read(2) == GZIP_MAGIC
    file.seek(0)
    if not compressed:
        return file
    file.close()
    return gzip.open(path)


def _header(file: BinaryIO | gzip.GzipFile, path: Path, num_dims: int) -> tuple[int, ...]:
    expected = UNSIGNED_BYTE << 8 | num_dims
    header = file.read(4 + 4 * num_dims)
    if len(header) >= 4 and (magic := struct.unpack(">I", header[:4])[0]) != expected:
        raise damaged(path, f"it begins with 0x{magic:08x}, an idx file of {num_dims}-D bytes with 0x{expected:08x}")
    if len(header) < 4 + 4 * num_dims:
        raise damaged(path, f"it ends after {len(header)} bytes, within its header")
    return struct.unpack(f">{num_dims}I", header[4:])
