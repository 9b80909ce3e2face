"""PACS: photographs, paintings, cartoons and sketches of seven classes, 227x227 RGB, decoded once to 224x224."""

import functools
import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import Tensor

from metadr.core import Domain, Found, Split
from metadr.data.cache import Entry, cached, fingerprint
from metadr.data.decode import Broken, Picture, rgb
from metadr.data.image_domain import decode_domain, inputs_of
from metadr.data.pacs_scan import CLASSES, DOMAINS, IMAGES, LISTED, NEEDS, TEST_SHARE, Scanned, listed, scan, tops
from metadr.data.remote import RemoteFile
from metadr.data.source import Counts, Files, data_root, search
from metadr.data.standing import Status, Verified
from metadr.errors import UserError
from metadr.progress import Watch
from metadr.settings import check, setting

log = logging.getLogger("metadr")

NAME = "pacs"
SIDE = 224
REVISION = 1  # of the pixels below: raise it when an edit changes them
SPLIT_HERE = f"no *_kfold.txt lists: split here by names, {TEST_SHARE:.0%} of each class for testing"
FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


@dataclass(frozen=True)
class Reading:
    """How images become 224x224, and which are tested on: what the paper leaves open."""

    resize: Literal["bilinear", "bicubic", "lanczos", "crop"] = setting(
        "bilinear", "227x227 to 224x224: a Pillow filter, or the centre cut out"
    )
    test_on: Literal["crossval", "whole", "val"] = setting(
        "crossval", "test images: the crossval list, the whole domain with its training images, or those of val"
    )
    num_val: int = setting(0, "training images of each domain, the last, held out as val", low=0)

    def __post_init__(self) -> None:
        check(self)
        if self.test_on == "val" and not self.num_val:
            raise UserError("test_on=val tests on held-out training images, but num_val is 0. Set it to 300, say.")


PAPER = Reading()


def load(
    domain: str, how: Reading = PAPER, *, root: Path | None = None, checked: bool = False, watch: Watch | None = None
) -> Domain:
    """A domain, decoded once, then opened memory-mapped; checked, every byte is compared with its hash."""
    scanned = _scanned(domain, root)
    tensors = _entry(scanned, how, root, checked=checked, watch=watch).tensors
    _tell_of_split(scanned)
    train, test = (Split(tensors[f"{part}_x"], tensors[f"{part}_y"]) for part in ("train", "test"))
    kept = train.num_images - how.num_val
    if kept < 1:
        raise UserError(f"{domain} has {train.num_images} training images. Got num_val {how.num_val}: hold out fewer.")
    val = Split(train.x[kept:], train.y[kept:]) if how.num_val else None
    return Domain(domain, train.first(kept), val if how.test_on == "val" and val else test, val)


def content_of(domain: str, how: Reading = PAPER, *, root: Path | None = None) -> str:
    """The hash of a domain's pixels and labels, for keys; decodes it where that was not done before."""
    # A sweep asks this for every run: within a process, folders and lists say whether the set was replaced.
    files = _located(root or data_root(), domain)
    return _content(domain, how, root, fingerprint(tops(files, [domain])))


def found_in(domain: str, how: Reading = PAPER, *, root: Path | None = None, watch: Watch | None = None) -> Found:
    """What is known of a domain's files; decodes them where that was not done before."""
    scanned = _scanned(domain, root)
    about = _entry(scanned, how, root, watch=watch).about
    chosen = scanned.domain(whole=how.test_on == "whole")
    train, test = (tuple(item.name for item in items) for items in (chosen.train, chosen.test))
    if how.num_val:
        kept = len(train) - how.num_val
        train, test = train[:kept], train[kept:] if how.test_on == "val" else test
    unlisted = () if how.test_on == "whole" else scanned.unlisted  # then tests are on every image
    return Found(train, test, about["sizes"], unused=chosen.unused, seconds=about["seconds"], unlisted=unlisted)


def is_listed(domain: str, *, root: Path | None = None) -> bool:
    """Whether a domain is split by the official lists."""
    return f"{domain}_train" in _located(root or data_root(), domain)


@functools.lru_cache(maxsize=64)
def _content(domain: str, how: Reading, root: Path | None, top: str) -> str:
    return _entry(_scanned(domain, root), how, root).content


def _located(root: Path, domain: str) -> Files:
    files = locate(root / NAME)
    if domain not in files:
        raise UserError(f"pacs: no {domain} in {root / NAME}. {ADVICE}")
    return files


def _scanned(domain: str, root: Path | None) -> Scanned:
    files = _located(root or data_root(), domain)
    return _scan(tuple(sorted(files.items())), domain, fingerprint(tops(files, [domain])))


@functools.lru_cache(maxsize=2 * len(DOMAINS))
def _scan(files: tuple[tuple[str, Path], ...], domain: str, top: str) -> Scanned:
    """Once for a set that stays as it is, which its folders and lists say."""
    return scan(dict(files), domain)


def _entry(
    scanned: Scanned, how: Reading, root: Path | None, *, checked: bool = False, watch: Watch | None = None
) -> Entry:
    whole = how.test_on == "whole"
    chosen = scanned.domain(whole=whole)

    def make() -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, about = decode_domain(chosen, partial(square, resize=how.resize), SIDE, watch)
        for name, reason in about["broken"]:
            raise UserError(
                f"pacs: {scanned.name}/{name} cannot be read ({reason}). Replace it by a sound copy, or the "
                f"whole set. {ADVICE}"
            )
        return tensors, about

    settings = {"revision": REVISION, "resize": how.resize, "whole": whole}
    place = (root or data_root()) / "cache"
    return cached(place, f"{NAME}-{scanned.name}", settings, inputs_of(chosen), make, checked=checked)


def square(path: Path, resize: str) -> Picture | Broken:
    """A file as RGB of 224x224."""
    image = rgb(path)
    if isinstance(image, Broken):
        return image
    if resize != "crop":
        return Picture(np.asarray(image.resize((SIDE, SIDE), FILTERS[resize])), *image.size)
    left, top = ((side - SIDE) // 2 for side in image.size)
    if min(left, top) < 0:
        return Broken(f"of {image.width}x{image.height} no {SIDE}x{SIDE} can be cut out")
    return Picture(np.asarray(image.crop((left, top, left + SIDE, top + SIDE))), *image.size)


_told: set[str] = set()  # domains whose split was told of: once in a process


def _tell_of_split(scanned: Scanned) -> None:
    if not scanned.listed and scanned.name not in _told:
        _told.add(scanned.name)
        log.warning("pacs/%s: %s. Scores are not those of the official split.", scanned.name, SPLIT_HERE)


def locate(folder: Path) -> dict[str, Path]:
    """The domains and lists at or below a folder, or one sentence where there is no domain."""
    files = search(NAME, NEEDS, folder) if folder.exists() else {}
    if not any(domain in files for domain in DOMAINS):
        raise UserError(f"pacs: no data in {folder}. {ADVICE}")
    return files


class Pacs:
    """PACS as the commands for data see it."""

    name = NAME
    homepage = "https://domaingeneralization.github.io/#data"
    licence = "none stated"
    files = (
        RemoteFile(  # images and lists, as a library of the field republishes them
            "pacs.zip",
            ("https://drive.google.com/uc?export=download&id=1m4X4fROCCXMO0lRLrr6Zz9Vb3974NWhE&confirm=t",),
        ),
    )
    build = ""
    holds = f"the folders {', '.join(DOMAINS)}"
    readable: frozenset[str] = frozenset()
    adds = False

    def locate(self, folder: Path) -> dict[str, Path]:
        return locate(folder)

    def lands(self, role: str, found: Path) -> str:
        return found.name

    def check(self, files: Files, root: Path, watch: Watch | None = None) -> None:
        """Refuse a copy that cannot be read. What is decoded on the way is what the first run will open."""
        for domain in _there(files):
            _entry(scan(files, domain), PAPER, root, watch=watch)

    def taken(self, files: Files, place: Path) -> Files:
        """All of it, unless a domain or a list would be lost: lists and images of two copies may not fit each other."""
        there = search(NAME, NEEDS, place) if place.exists() else {}
        lost = [path.name for role, path in there.items() if role not in files]
        if lost:
            raise UserError(
                f"{place} holds {', '.join(lost)}, which the {NAME} to import lacks, and was kept. Move it away to "
                "import that one instead, or give a folder that holds both."
            )
        return files

    def keep(self, place: Path, copy: Path, files: Files) -> bool:
        return False

    def status(self, root: Path) -> Status:
        """What there is, from names and lists."""
        folder = root / NAME
        complete = Counts(*(sum(part) for part in zip(*LISTED.values(), strict=True)))
        try:
            files = search(NAME, NEEDS, folder) if folder.exists() else {}
            scans = [scan(files, domain) for domain in _there(files)]
        except UserError as error:
            return Status(NAME, "broken", folder, None, complete, (str(error),))
        if not scans:
            return Status(NAME, "missing", folder, None, complete, (f"pacs: no data in {folder}. {ADVICE}",))
        found = _total(each.counts for each in scans)
        absent = [domain for domain in DOMAINS if domain not in files]
        expected = _total([*(each.expected for each in scans), *(LISTED[domain] for domain in absent)])
        origin = "" if all(each.listed for each in scans) else SPLIT_HERE
        notes = (f"Without {', '.join(absent)}.",) if absent else ()
        state: Literal["present", "partial"] = "present" if found == expected else "partial"
        return Status(NAME, state, folder, found, expected, notes, origin)

    def verify(self, root: Path, watch: Watch | None = None) -> Verified:
        """Read all of it: images of each class, the list of the whole domain, every image, and the cache."""
        seen = self.status(root)
        if seen.found is None:
            return Verified(seen)
        problems: list[str] = []
        digest = hashlib.sha256()
        try:
            files = locate(seen.folder)
            for domain in _there(files):
                scanned = scan(files, domain)
                problems += _count_problems(scanned, files)
                entry = _entry(scanned, PAPER, root, checked=True, watch=watch)
                digest.update(f"{domain} {entry.content}\n".encode())
        except UserError as error:
            return Verified(seen._replace(state="broken", problems=(*problems, str(error))))
        if problems:
            seen = seen._replace(state="broken", problems=(*seen.problems, *problems))
        return Verified(seen, content=digest.hexdigest())


def _there(files: Files) -> list[str]:
    return [domain for domain in DOMAINS if domain in files]


def _total(counts: Iterable[Counts]) -> Counts:
    train, test = zip(*counts, strict=True)
    return Counts(sum(train), sum(test))


def _count_problems(scanned: Scanned, files: Files) -> list[str]:
    problems = []
    for label, known in zip(CLASSES, IMAGES[scanned.name], strict=True):
        here = sum(item.label == label for item in scanned.whole)
        if here != known:
            problems.append(f"{scanned.name}: expected {known} images of class {label}, found {here}. {ADVICE}")
    if scanned.listed:
        for part, named, count in zip(("train", "crossval"), scanned.counts, scanned.expected, strict=True):
            if named != count:
                what = f"{scanned.name}_{part}_kfold.txt should name {count:,} images, and names {named:,}"
                problems.append(f"{scanned.name}: {what}. {ADVICE}")
    path = files.get(f"{scanned.name}_test")
    if path is not None:
        images = {item.name: item for item in scanned.whole}
        absent = len(images) - len(listed(path, scanned.name, images))
        if absent:
            problems.append(f"{scanned.name}: {path.name} should name the whole domain, and lacks {absent} images.")
    return problems


PACS = Pacs()
ADVICE = f"Run 'metadr data fetch {NAME}' or 'metadr data import {NAME} FOLDER'."
