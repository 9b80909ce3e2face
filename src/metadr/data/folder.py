"""Anyone's own images as domains: decoded once into the cache, broken ones listed and left out."""

import logging
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metadr.core import Domain, Found, Split
from metadr.data.cache import Entry, cached, short_hash
from metadr.data.decode import Fit, picture
from metadr.data.folder_scan import DomainScan, Scan, scan
from metadr.data.image_domain import decode_domain, inputs_of
from metadr.data.source import data_root
from metadr.errors import UserError
from metadr.progress import Watch
from metadr.settings import check, setting

log = logging.getLogger("metadr")

REVISION = 3  # of the pixels below: raise it when an edit changes them
NAMED = 3  # broken files that a sentence names


@dataclass(frozen=True)
class Folder:
    """Where a user's images lie, and what is made of them.

    The side is 64 unless told otherwise, so that a first run ends soon: 224 (`side=224`), the usual size of
    photographs, is twelve times the pixels, and so of the memory and about of the time. `--dry-run` tells both.
    """

    root: str | None = setting(None, "the folder of domains, as --data")
    side: int = setting(64, "images become squares of this side", low=8)
    fit: Fit = setting("crop", "how: cut to a centred square, stretched into one, or padded with black")
    test_share: float = setting(0.2, "of each class, for testing, where a domain has no test set", above=0, below=1)
    num_val: int = setting(0, "training images of each domain held out as val", low=0)
    broken_limit: int = setting(10, "broken images that are left out of a domain; more are an error", low=0)
    classes: tuple[str, ...] = setting((), "classes that count though no image here may be of them, by name")

    def __post_init__(self) -> None:
        if self.root is not None:  # one folder, one spelling, wherever the process goes
            object.__setattr__(self, "root", os.path.realpath(Path(self.root).expanduser()))
        check(self)


_seen: dict[tuple[str, float, tuple[str, ...]], Scan] = {}


def look(folder: Folder) -> Scan:
    """What lies there now; looked through anew only where something was added, removed or renamed."""
    if folder.root is None:
        raise UserError("Benchmark 'folder' needs a folder of images. Name it with --data ROOT (in Python, root=...).")
    key = folder.root, folder.test_share, folder.classes
    if key not in _seen or not _seen[key].holds:
        _seen[key] = scan(Path(folder.root), folder.test_share, folder.classes)
    return _seen[key]


def entry_of(folder: Folder, domain: DomainScan, *, checked: bool = False, watch: Watch | None = None) -> Entry:
    """A domain in the cache, decoded first where it is not there; `about` says what was found."""
    how: dict[str, Any] = {"revision": REVISION, "root": folder.root, "side": folder.side, "fit": folder.fit}
    how["test_share"] = None if domain.own_test else folder.test_share

    def make() -> tuple[dict[str, Tensor], dict[str, Any]]:
        one = partial(picture, side=folder.side, fit=folder.fit)
        return decode_domain(domain, one, folder.side, watch)

    return cached(data_root() / "cache", f"folder-{domain.name}", how, inputs_of(domain), make, checked=checked)


def load(folder: Folder, scanned: Scan, name: str) -> Domain:
    """A domain as tensors, with its labels among the classes of all domains."""
    domain = scanned.domains[name]
    entry = entry_of(folder, domain, checked=True)
    _check(folder, domain, entry)
    classes = torch.tensor([scanned.classes.index(label) for label in entry.about["classes"]])
    train, test = (Split(entry.tensors[f"{part}_x"], classes[entry.tensors[f"{part}_y"]]) for part in ("train", "test"))
    kept = train.num_images - folder.num_val if domain.train else 0
    val = Split(train.x[kept:], train.y[kept:]) if folder.num_val and domain.train else None
    return Domain(name, train.first(kept), test, val)


def content_of(folder: Folder, scanned: Scan, name: str) -> str:
    """The hash of a domain's pixels, labels, split and class names, wherever it lies."""
    entry = entry_of(folder, scanned.domains[name])
    _check(folder, scanned.domains[name], entry)
    return short_hash([entry.content, entry.about["classes"]], 16)


def found_in(folder: Folder, scanned: Scan, name: str, *, watch: Watch | None = None) -> Found:
    """What is known of a domain's files; decodes them where that was not done before."""
    domain = scanned.domains[name]
    about = entry_of(folder, domain, watch=watch).about
    broken = dict(about["broken"])
    train, test = (
        tuple(_shown(item.name) for item in items if item.name not in broken) for items in (domain.train, domain.test)
    )
    reasons = tuple(f"{_shown(name)}: {reason}" for name, reason in broken.items())
    return Found(train, test, about["sizes"], reasons, tuple(map(_shown, domain.unused)), about["seconds"])


_told: set[Path] = set()  # entries whose broken images were told of: once in a process, finished runs among them


def _check(folder: Folder, domain: DomainScan, entry: Entry) -> None:
    """Tell of broken files, and refuse too many of them, or too few others."""
    broken: dict[str, str] = dict(entry.about["broken"])
    if len(broken) > folder.broken_limit:
        raise UserError(
            f"{_broken_in_words(domain, broken, f'more than broken_limit, {folder.broken_limit}')} "
            f"Replace or remove them, or allow more with --set broken_limit={len(broken)}; --dry-run lists all."
        )
    num_train, num_test = (len(entry.tensors[name]) for name in ("train_y", "test_y"))
    if (domain.train and num_train <= folder.num_val) or not num_test:
        raise UserError(
            f"Domain '{domain.name}' has {num_train} training and {num_test} test images that can be read, and "
            f"{folder.num_val} of the first are held out (num_val): too few. One of each must be left at least: add "
            "images."
        )
    if broken and entry.path not in _told:
        _told.add(entry.path)
        log.warning("%s", _broken_in_words(domain, broken, "left out"))


def _broken_in_words(domain: DomainScan, broken: dict[str, str], what: str) -> str:
    total = len(domain.train) + len(domain.test)
    named = "; ".join(f"{_shown(name)} ({reason})" for name, reason in list(broken.items())[:NAMED])
    more = f" and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
    return f"{len(broken)} of {total} images of domain '{domain.name}' cannot be read, {what}: {named}{more}."


def _shown(name: str) -> str:
    """A file's name in one line that every terminal can show."""
    return name if name.isprintable() else ascii(name)
