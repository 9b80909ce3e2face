"""Anyone's own images: what lies in a folder of domains, before a single image is decoded.

ROOT/DOMAIN/CLASS/*                     split into train and test by the hash of each file's name
ROOT/DOMAIN/train/CLASS/*, .../test/    the owner's own test set
ROOT/DOMAIN.csv                         a list of paths and labels (folder_list.py)
"""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from metadr.data.folder_list import read_list
from metadr.data.source import reading
from metadr.errors import UserError

LAYOUT = "ROOT/DOMAIN/CLASS/images, ROOT/DOMAIN/train and test/CLASS/images, or ROOT/DOMAIN.csv"
PLAIN = re.compile(r"\w[\w.-]*")  # names that an --order can hold
# Formats that Pillow recognises and cannot read, or only where Ghostscript (EPS) or Windows (WMF) does it: the same
# files must count on every machine, because the split depends on how many there are.
NOT_READ = ("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF")
RESERVED = ("untrained",)  # what a run calls the moment before its first domain


class Item(NamedTuple):
    """An image file and its class."""

    name: str  # seen from its domain: the same wherever ROOT lies
    path: Path
    label: str


class DomainScan(NamedTuple):
    """One domain as it was found. Images are in the order of their hashes: the first ones are of all classes."""

    name: str
    train: tuple[Item, ...]  # none of a domain that is only tested on
    test: tuple[Item, ...]
    own_test: bool  # the owner's test set, or made here
    unused: tuple[str, ...]


class Scan(NamedTuple):
    """What lies in a folder: domains in alphabetical order, and the classes of all of them together."""

    domains: dict[str, DomainScan]
    classes: tuple[str, ...]
    stamps: dict[Path, int]  # every folder and list that was looked at, and when it was last changed

    @property
    def holds(self) -> bool:
        """Nothing was added, removed or renamed since."""
        try:
            return all(path.stat().st_mtime_ns == stamp for path, stamp in self.stamps.items())
        except OSError:
            return False


def scan(root: Path, test_share: float, classes: Iterable[str] = ()) -> Scan:
    """Find domains, their splits and classes, and refuse what cannot be trained or tested on."""
    scanner = _Scanner(test_share)
    domains = scanner.domains(root)
    trained = {*classes, *(item.label for domain in domains.values() for item in domain.train or domain.test)}
    for domain in domains.values():
        strange = sorted({item.label for item in domain.test} - trained)
        if strange:
            raise UserError(
                f"The test images of domain '{domain.name}' have a class that no training image has: '{strange[0]}'. "
                "Add training images of it, or remove it from the test set."
            )
    if len(trained) < 2:
        raise UserError(f"All images in {root} are of one class, '{min(trained)}'. At least two are needed: {LAYOUT}.")
    return Scan(domains, tuple(sorted(trained)), scanner.stamps)


def hashed(items: Iterable[Item]) -> list[Item]:
    """Images in an order that depends on nothing but their names, and has no classes in a row."""
    return sorted(items, key=lambda item: hashlib.sha256(item.name.encode("utf-8", "surrogateescape")).digest())


def split(items: Iterable[Item], test_share: float) -> tuple[list[Item], list[Item]]:
    """Train and test: of each class, the images whose names have the smallest hashes are for testing.

    The same names are split alike on every machine. A class with a single image only trains.
    """
    by_class: dict[str, list[Item]] = {}
    for item in hashed(items):
        by_class.setdefault(item.label, []).append(item)
    train: list[Item] = []
    test: list[Item] = []
    for members in by_class.values():
        count = min(max(1, round(test_share * len(members))), len(members) - 1)
        test += members[:count]
        train += members[count:]
    return hashed(train), hashed(test)


class _Entries(NamedTuple):
    """What a folder holds, hidden entries left out."""

    folders: list[Path]
    images: list[Path]
    others: list[Path]


class _Scanner:
    """Looks through folders and remembers which ones."""

    def __init__(self, test_share: float) -> None:
        self.test_share = test_share
        self.stamps: dict[Path, int] = {}
        self._suffixes = image_suffixes()

    def domains(self, root: Path) -> dict[str, DomainScan]:
        with reading(root):
            there = root.exists()
        if not there:
            raise UserError(f"There is no folder {root}. Give --data a folder of domains: {LAYOUT}.")
        inside = self._look(root)
        lists = [path for path in inside.others if path.suffix.lower() == ".csv"]
        found: dict[str, DomainScan] = {}
        for path in lists:
            if path.stem in found:
                raise UserError(f"{path} is a second list of domain '{path.stem}'. Rename or remove one of them.")
            found[path.stem] = self._from_list(path)
        # Folders that lists point into hold their images.
        stores = {item.path for domain in found.values() for item in (*domain.train, *domain.test)}
        pointed = {path.relative_to(root).parts[0] for path in stores if path.is_relative_to(root)}
        for folder in inside.folders:
            if folder.name not in pointed and folder.name not in found:
                found[folder.name] = self._from_folder(folder)
        if not found:
            raise UserError(f"There are no domains in {root}. It must hold one folder or list per domain: {LAYOUT}.")
        return dict(sorted(found.items()))

    def _from_list(self, path: Path) -> DomainScan:
        self._stamp(path)
        rows = read_list(path)
        parts = {
            part: [Item(row.name, row.path, _class(row.label, path)) for row in rows if row.split == part]
            for part in ("train", "test")
        }
        return self._domain(path.stem, path, parts["train"], parts["test"], ())

    def _from_folder(self, place: Path) -> DomainScan:
        inside = self._look(place)
        if not inside.folders:
            what = "images but no class folders" if inside.images else "no class folders"
            raise UserError(f"Domain folder {place} holds {what}. Sort its images into class folders: {LAYOUT}.")
        parts = {folder.name: folder for folder in inside.folders if self._is_part(folder)}
        unused = [path.name for path in (*inside.images, *inside.others)]
        if "test" in parts and "train" not in parts:  # an empty one is left where the images were removed
            inside.folders[:] = [each for each in inside.folders if each.name != "train" or any(self._look(each))]
        if not parts:
            return self._domain(place.name, place, self._classes(inside.folders, place, unused), [], unused)
        names = [folder.name for folder in inside.folders]
        strange = [name for name in names if name not in ("train", "test")]
        if strange:
            raise UserError(
                f"Domain folder {place} holds {' and '.join(sorted(parts))} with class folders, but also "
                f"'{strange[0]}'. It must hold class folders, or train and test and nothing else."
            )
        for folder in inside.folders:
            if folder.name not in parts:
                raise UserError(
                    f"Domain folder {place} holds {' and '.join(sorted(parts))} with class folders, but {folder} holds "
                    "none. Sort its images into class folders, or remove it."
                )
        read = {}
        for name in sorted(parts):
            around = self._look(parts[name])
            unused += [path.relative_to(place).as_posix() for path in (*around.images, *around.others)]
            read[name] = self._classes(around.folders, place, unused)
        return self._domain(place.name, place, read.get("train", []), read.get("test", []), unused)

    def _is_part(self, folder: Path) -> bool:
        """train, test or val around class folders; a class may be called 'train' too."""
        if folder.name not in ("train", "test", "val"):
            return False
        return bool(self._look(folder).folders)

    def _classes(self, folders: list[Path], place: Path, unused: list[str]) -> list[Item]:
        items = []
        for folder in folders:
            inside = self._look(folder)
            if inside.folders:
                raise UserError(
                    f"Class folder {folder} holds a folder, '{inside.folders[0].name}', where images are expected. "
                    f"The layout is {LAYOUT}."
                )
            if not inside.images:
                raise UserError(
                    f"Class folder {folder} holds no images. Put some there, or remove it: a domain may lack a class."
                )
            label = _class(folder.name, folder)
            items += [Item(path.relative_to(place).as_posix(), path, label) for path in inside.images]
            unused += [path.relative_to(place).as_posix() for path in inside.others]
        return items

    def _domain(self, name: str, place: Path, train: list[Item], test: list[Item], unused: Iterable[str]) -> DomainScan:
        if not PLAIN.fullmatch(name) or name in RESERVED:
            reserved = f" other than {', '.join(RESERVED)}" if name in RESERVED else ""
            raise UserError(
                f"{name!a} cannot name a domain: a name is of letters, digits, '_', '-' and '.'{reserved}. "
                f"Rename {str(place)!a}."
            )
        own_test = bool(test)
        if own_test:
            train, test = hashed(train), hashed(test)
        else:
            train, test = split(train, self.test_share)
        for part, items in (("training", train), ("test", test)):
            if not items and not own_test:
                raise UserError(
                    f"Domain '{name}' has no {part} images in {place}. Without a test set of its own, it needs at "
                    "least two images of a class."
                )
        return DomainScan(name, tuple(train), tuple(test), own_test, tuple(unused))

    def _look(self, folder: Path) -> _Entries:
        self._stamp(folder)
        found = _Entries([], [], [])
        with reading(folder), os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    found.folders.append(Path(entry.path))
                # A link that leads nowhere is taken for what its name says: reading it tells what is wrong.
                elif Path(entry.name).suffix.lower() in self._suffixes and (entry.is_file() or entry.is_symlink()):
                    found.images.append(Path(entry.path))
                else:
                    found.others.append(Path(entry.path))
        return found

    def _stamp(self, path: Path) -> None:
        with reading(path):
            self.stamps[path] = path.stat().st_mtime_ns


def _class(name: str, place: Path) -> str:
    if not name.isprintable():
        raise UserError(f"{name!a} in {str(place)!a} cannot name a class: it cannot be printed. Rename it.")
    return name


def image_suffixes() -> frozenset[str]:
    """The endings of every image format that Pillow reads on any machine."""
    Image.init()
    known = Image.registered_extensions().items()
    return frozenset(suffix for suffix, form in known if form in Image.OPEN and form not in NOT_READ)
