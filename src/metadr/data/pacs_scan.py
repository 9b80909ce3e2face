"""PACS as it lies on disk, before a single image is decoded.

DOMAIN/CLASS/*.jpg or *.png           the images
DOMAIN_train_kfold.txt, DOMAIN_crossval_kfold.txt, DOMAIN_test_kfold.txt
                                      the official lists, of lines 'DOMAIN/CLASS/NAME LABEL'
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from metadr.data.folder_scan import DomainScan, Item, hashed, split
from metadr.data.source import Counts, Files, Need, damaged, reading
from metadr.errors import UserError

DOMAINS = ("sketch", "cartoon", "art_painting", "photo")  # the paper's order, by increasing realism
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")  # labels 1 to 7 of the lists
LISTS = ("train", "crossval", "test")
SUFFIXES = (".jpg", ".jpeg", ".png")
TEST_SHARE = 0.1  # of each class, where there are no lists: about that of the official crossval
# Images of each class, and those of the official lists; crossval of art_painting has a line twice, which counts once.
IMAGES = {
    "sketch": (772, 740, 753, 608, 816, 80, 160),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "photo": (189, 202, 182, 186, 199, 280, 432),
}
LISTED = {
    "sketch": Counts(3_531, 398),
    "cartoon": Counts(2_107, 237),
    "art_painting": Counts(1_840, 207),
    "photo": Counts(1_499, 171),
}
# What the published list says of one dog; its folder, and the list of the whole domain, say dog.
SLIPS = {("art_painting/dog/pic_225.jpg", "0")}
NEEDS = (
    *(Need(domain, (domain,), is_folder=True) for domain in DOMAINS),
    *(Need(f"{domain}_{part}", (f"{domain}_{part}_kfold.txt",)) for domain in DOMAINS for part in LISTS),
)


class Scanned(NamedTuple):
    """One domain as it was found: all its images, and those to train on and to test on, in the order of hashes."""

    name: str
    train: tuple[Item, ...]
    crossval: tuple[Item, ...]
    whole: tuple[Item, ...]
    listed: bool  # by the official lists, or split here
    unused: tuple[str, ...]
    unlisted: tuple[str, ...] = ()  # images that neither train nor crossval names

    @property
    def counts(self) -> Counts:
        return Counts(len(self.train), len(self.crossval))

    @property
    def expected(self) -> Counts:
        """Of a complete copy, by the lists or without them."""
        if self.listed:
            return LISTED[self.name]
        names = (
            Item(f"{label}/{number}", Path(), label)
            for label, count in zip(CLASSES, IMAGES[self.name], strict=True)
            for number in range(count)
        )
        return Counts(*map(len, split(names, TEST_SHARE)))

    def domain(self, *, whole: bool = False) -> DomainScan:
        """Its training images, with those of crossval or with all of them as test images."""
        return DomainScan(self.name, self.train, self.whole if whole else self.crossval, self.listed, self.unused)


def scan(files: Files, domain: str) -> Scanned:
    """The images of a domain and their split: that of the lists or, without any, one by the hash of their names."""
    images, unused = _images(files[domain])
    lists = {part: files[f"{domain}_{part}"] for part in ("train", "crossval") if f"{domain}_{part}" in files}
    if not lists:
        train, crossval = split(images, TEST_SHARE)
        return Scanned(domain, tuple(train), tuple(crossval), tuple(hashed(images)), False, tuple(unused))
    if len(lists) < 2:
        (there,) = lists.values()
        (other,) = {"train", "crossval"} - set(lists)
        raise UserError(
            f"pacs: there is {there}, but no {domain}_{other}_kfold.txt. Put both lists there, or none: then images "
            "are split by their names."
        )
    by_name = {item.name: item for item in images}
    train, crossval = (listed(path, domain, by_name) for path in lists.values())
    both = {item.name for item in train} & {item.name for item in crossval}
    if both:
        raise damaged(lists["crossval"], f"it names {min(both)}, which {lists['train'].name} names too")
    used = {item.name for item in (*train, *crossval)}
    return Scanned(
        domain,
        tuple(hashed(train)),
        tuple(hashed(crossval)),
        tuple(hashed(images)),
        listed=True,
        unused=tuple(unused),
        unlisted=tuple(item.name for item in images if item.name not in used),
    )


def listed(path: Path, domain: str, images: dict[str, Item]) -> list[Item]:
    """The images that a list names, each once.

    An image's class is that of its folder: one line of the published lists has another (`SLIPS`). Any further line
    that contradicts it is an error.
    """
    with reading(path):
        text = path.read_bytes()
    found: dict[str, Item] = {}
    absent: list[str] = []
    for number, line in enumerate(text.decode("utf-8", "replace").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        place = words[0].split("/")
        if len(words) != 2 or len(place) < 3 or place[-3] != domain or place[-2] not in CLASSES:
            raise damaged(path, f"line {number} is not '{domain}/CLASS/NAME LABEL'")
        label = str(CLASSES.index(place[-2]) + 1)
        if words[1] != label and ("/".join(place[-3:]), words[1]) not in SLIPS:
            raise damaged(path, f"line {number} gives label {words[1]} to a {place[-2]}, which is {label}")
        name = "/".join(place[-2:])
        if name in images:
            found[name] = images[name]
        else:
            absent.append(name)
    if absent:
        raise UserError(
            f"pacs: {len(absent)} of the images that {path} names are not there, such as {domain}/{absent[0]}. Get a "
            "complete copy and run 'metadr data import pacs FOLDER'."
        )
    if not found:
        raise damaged(path, "it names no image")
    return list(found.values())


def _images(folder: Path) -> tuple[list[Item], list[str]]:
    """The images of a domain's class folders, and what else lies there; hidden files are passed over."""
    inside = _entries(folder)
    missing = [label for label in CLASSES if (folder / label, True) not in inside]
    if missing:
        raise UserError(
            f"pacs: there is no folder {missing[0]} in {folder}. A domain has the class folders {', '.join(CLASSES)}: "
            "get a complete copy and run 'metadr data import pacs FOLDER'."
        )
    unused = [path.name for path, _ in inside if path.name not in CLASSES]
    images = []
    for label in CLASSES:
        for path, is_folder in _entries(folder / label):
            if is_folder or path.suffix.lower() not in SUFFIXES:
                unused.append(f"{label}/{path.name}")
            else:
                images.append(Item(f"{label}/{path.name}", path, label))
        if not images or images[-1].label != label:
            raise UserError(f"pacs: there is no image in {folder / label}. Get a complete copy.")
    return images, unused


def _entries(folder: Path) -> list[tuple[Path, bool]]:
    with reading(folder), os.scandir(folder) as entries:
        return sorted((Path(each.path), each.is_dir()) for each in entries if not each.name.startswith("."))


def tops(files: Files, domains: Iterable[str]) -> list[Path]:
    """The folders and lists of some domains: their times tell whether an image was added, removed or renamed."""
    paths = []
    for domain in domains:
        paths += [files[domain] / label for label in CLASSES]
        paths += [files[role] for role in (f"{domain}_{part}" for part in LISTS) if role in files]
    return paths
