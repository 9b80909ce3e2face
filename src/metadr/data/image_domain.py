"""The image files of a domain as tensors, and what tells whether they were changed."""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metadr.data.cache import short_hash
from metadr.data.decode import Broken, Picture, in_order
from metadr.data.folder_scan import DomainScan, Item
from metadr.errors import UserError
from metadr.progress import Watch


def decode_domain(
    domain: DomainScan, one: Callable[[Path], Picture | Broken], side: int, watch: Watch | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Its images and labels by split, and what was found: classes, sizes, those that cannot be read.

    Args:
        domain: which files, of which classes.
        one: makes a picture of side x side of a file.
        side: of every picture.
        watch: told how far it is.
    """
    started = time.monotonic()
    items = [*domain.train, *domain.test]
    classes = sorted({item.label for item in items})
    place = {label: index for index, label in enumerate(classes)}
    try:
        x = torch.empty(len(items), 3, side, side, dtype=torch.uint8)
    except (RuntimeError, MemoryError):
        raise UserError(
            f"The {len(items)} images of domain '{domain.name}' at side {side} take "
            f"{3e-9 * len(items) * side**2:,.0f} GB of memory, more than there is. Choose a smaller side, such "
            "as --set side=64."
        ) from None
    kept: list[Item] = []
    num_train = 0
    sizes: Counter[str] = Counter()
    broken: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata: what can be read is read
        results = in_order(one, [item.path for item in items], what=f"decoding {domain.name}", watch=watch)
        for number, (item, result) in enumerate(zip(items, results, strict=True)):
            if isinstance(result, Broken):
                broken[item.name] = result.reason
                continue
            x[len(kept)] = torch.from_numpy(np.ascontiguousarray(result.pixels.transpose(2, 0, 1)))
            kept.append(item)
            num_train += number < len(domain.train)
            sizes[f"{result.width}x{result.height}"] += 1
    y = torch.tensor([place[item.label] for item in kept], dtype=torch.int64)
    x = x[: len(kept)]
    tensors = {"train_x": x[:num_train], "train_y": y[:num_train], "test_x": x[num_train:], "test_y": y[num_train:]}
    seconds = round(time.monotonic() - started, 2)
    return tensors, {"classes": classes, "broken": list(broken.items()), "sizes": dict(sizes), "seconds": seconds}


def inputs_of(domain: DomainScan) -> str:
    """A hash of what is read, seen from its domain: names, labels, parts, sizes and times of change."""
    return short_hash(list(_lines(domain)), 16)


def _lines(domain: DomainScan) -> Iterator[tuple[str, str, str, int, int]]:
    for part, items in (("train", domain.train), ("test", domain.test)):
        for item in items:
            try:
                stat = item.path.stat()
                size, changed = stat.st_size, stat.st_mtime_ns
            except OSError:  # who reads it will say why
                size, changed = -1, -1
            yield part, item.name, item.label, size, changed
