"""What a data set is: its origin, the files it consists of, how many images it holds; and where it lies on disk."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from metadr.core import Split
from metadr.data.remote import RemoteFile
from metadr.errors import UserError
from metadr.files import data_root as data_root
from metadr.progress import Watch
from metadr.settings import check, setting

Part = Literal["train", "test"]
Files = Mapping[str, Path]  # what a file is to its data set ("train_images") -> where it was found
NUM_CLASSES = 10
MAX_ENTRIES = 500_000  # of a folder that is searched: more than any copy of these data sets has


@dataclass(frozen=True)
class Decoding:
    """Which training images are taken and how they become 32x32: what the paper leaves open."""

    resize: Literal["lanczos", "bilinear", "pad"] = setting(
        "lanczos", "28x28 to 32x32: a Pillow filter, or a black rim"
    )
    first: int = setting(
        0, "the training image to begin at: 0, or 5000 as an earlier loader of the authors does", low=0
    )
    num_train: int = setting(10_000, "training images taken", low=1)
    num_val: int = setting(0, "of these, the last so many are held out as val", low=0)
    test_on: Literal["test", "val"] = setting("test", "images to test on: the test set, or val, to choose settings on")
    syn: Literal["standard", "easy", "hard"] = setting(
        "standard", "SYN: as usual, or rendered easier or harder to read"
    )

    def __post_init__(self) -> None:
        check(self)
        if self.test_on == "val" and not self.num_val:
            raise UserError("test_on=val tests on held-out training images, but num_val is 0. Set it to 1000, say.")
        if self.num_val >= self.num_train:
            raise UserError(f"num_val must be below num_train, {self.num_train}. Got {self.num_val}. Hold out fewer.")

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.num_train)


class Need(NamedTuple):
    """A file (or a folder) of a data set, and the names it is found under, the preferred one first."""

    role: str
    names: tuple[str, ...]
    is_folder: bool = False


class Counts(NamedTuple):
    """Images of both parts."""

    train: int
    test: int


class Decoded(NamedTuple):
    """What was read: images (N, 3, 32, 32) uint8 with labels 0 to 9, and how many there were to choose from."""

    train: Split
    test: Split
    found: Counts


def own_files(files: Files, decoding: Decoding) -> Iterable[Path]:
    """The files as they were found: all that decides what is read, where a data set is a handful of files."""
    return files.values()


@dataclass(frozen=True, eq=False)
class Source:
    """A published data set of digits."""

    name: str
    title: str
    about: str
    licence: str
    homepage: str
    files: tuple[RemoteFile, ...]
    needs: tuple[Need, ...]
    expected: Counts
    count: Callable[[Files, Part], int]
    """How many images a part holds, without decoding them."""
    read: Callable[[Files, Part, slice, Decoding, Watch | None], Split]
    """Those rows of a part; who watches is told where that takes long."""
    inputs: Callable[[Files, Decoding], Iterable[str | Path]] = own_files
    """The paths whose names, sizes and times stand for the content of what is read."""
    settings: tuple[str, ...] = ("first", "num_train")
    """The fields of Decoding that make a difference here."""
    train_classes: tuple[int, ...] | None = None
    """Images per digit, where known."""
    test_classes: tuple[int, ...] | None = None
    unpacked: Mapping[str, str] | None = None
    """Checksums of files as they are after unpacking, by name."""
    revision: int = 1
    """Of the reader: raise it when an edit changes pixels or labels."""
    build: str = ""
    """A command that makes a substitute, if there is one."""

    @property
    def advice(self) -> str:
        """The next command for whoever lacks it."""
        fetch = f"metadr data fetch {self.name}" if self.files else ""
        commands = [fetch, f"metadr data import {self.name} FOLDER", self.build]
        return "Run " + " or ".join(f"'{command}'" for command in commands if command) + "."


def find(source: Source, folder: Path) -> dict[str, Path]:
    """The files of a source at or below a folder."""
    return search(source.name, source.needs, folder)


def search(name: str, needs: tuple[Need, ...], folder: Path) -> dict[str, Path]:
    """The files of a data set at or below a folder, by name, wherever they lie: of each the nearest.

    Folders that are themselves part of the data set are not searched: they hold tens of thousands of images. What has
    the right name and is a folder instead of a file, or the reverse, is taken only where nothing better is found.
    """
    wanted = {known: need for need in needs for known in need.names}
    found: dict[str, Path] = {}
    unfit: dict[str, Path] = {}
    visited: set[Path] = set()
    level, num_seen = [folder], 0
    while level and len(found) < len(needs):
        fit: dict[str, list[Path]] = {}
        below: list[Path] = []
        for place in level:
            if place.resolve() in visited:
                continue
            visited.add(place.resolve())
            for path, is_folder in _entries(place):
                num_seen += 1
                need = wanted.get(path.name)
                if need is not None and need.is_folder == is_folder:
                    fit.setdefault(need.role, []).append(path)
                elif need is not None:
                    unfit.setdefault(need.role, path)
                if is_folder and not (need is not None and need.is_folder):
                    below.append(path)
        if num_seen > MAX_ENTRIES:
            raise UserError(
                f"{folder} holds more than {MAX_ENTRIES:,} files, too many to search for {name}. "
                "Name the folder that the data set is in."
            )
        for role, paths in fit.items():
            found.setdefault(role, min(paths, key=lambda path: wanted[path.name].names.index(path.name)))
        level = below
    return {**unfit, **found}


def _entries(folder: Path) -> list[tuple[Path, bool]]:
    with reading(folder), os.scandir(folder) as entries:
        return sorted((Path(entry.path), entry.is_dir()) for entry in entries)


def locate(source: Source, folder: Path) -> dict[str, Path]:
    """The same, or one sentence on what is missing."""
    files = find(source, folder) if folder.exists() else {}
    if len(files) < len(source.needs):
        raise UserError(missing(source, files, folder))
    return files


def missing(source: Source, files: Files, folder: Path) -> str:
    """What a folder lacks of a source, and the next command."""
    names = [need.names[0] for need in source.needs if need.role not in files]
    what = "no data" if len(names) == len(source.needs) else "no " + " and no ".join(names)
    return f"{source.name}: {what} in {folder}. {source.advice}"


def made_here(source: Source, files: Files) -> str:
    """What a stand-in says of itself in NAME.json beside its files; nothing for the published files."""
    record = files[source.needs[0].role].parent / f"{source.name}.json"
    try:
        return str(json.loads(record.read_text())["what"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return f"made by someone ({record.name} cannot be read)"


def decode(source: Source, files: Files, decoding: Decoding, watch: Watch | None = None) -> Decoded:
    """Read the training images asked for and all test images, and refuse what is not the data set."""
    found = Counts(source.count(files, "train"), source.count(files, "test"))
    problem = count_problem(source, files, found, decoding)
    if problem:
        raise UserError(problem)
    train = source.read(files, "train", decoding.rows, decoding, watch)
    test = source.read(files, "test", slice(None), decoding, watch)
    for part, split in (("train", train), ("test", test)):
        check_digits(f"{source.name}/{part}", split)
    return Decoded(train, test, found)


def count_problem(source: Source, files: Files, found: Counts, decoding: Decoding) -> str:
    """What is wrong with the number of images, or nothing; a part of the training set may be all there is."""
    place = next(iter(files.values())).parent
    again = f"Remove it and get it again: {source.advice}"
    for part, here, all_of_it in zip(("train", "test"), found, source.expected, strict=True):
        if here > all_of_it or (part == "test" and here != all_of_it):
            return f"{source.name}/{part}: expected {all_of_it} images, found {here} in {place}. {again}"
    if found.train < decoding.rows.stop:
        return (
            f"{source.name}/train: images {decoding.first} to {decoding.rows.stop - 1} are needed, found only the "
            f"first {found.train} of {source.expected.train} in {place}. {again}"
        )
    return ""


def check_digits(place: str, split: Split) -> None:
    """Labels must be digits, and all ten must occur."""
    labels = split.y
    if labels.min() < 0 or labels.max() >= NUM_CLASSES:
        wrong = int(labels[(labels < 0) | (labels >= NUM_CLASSES)][0])
        raise UserError(f"{place}: label {wrong} is out of range; digits are 0 to 9. Replace its file by a sound copy.")
    absent = sorted(set(range(NUM_CLASSES)) - set(labels.tolist()))
    if absent:
        raise UserError(
            f"{place}: no image of digit {', '.join(map(str, absent))}; all ten must be there. "
            "Replace its files by a sound copy."
        )


def to_split(images: NDArray[np.uint8], labels: NDArray[np.integer]) -> Split:
    """Tensors of images (N, 3, 32, 32) and labels (N,)."""
    return Split(
        torch.from_numpy(np.array(images, np.uint8, order="C")), torch.from_numpy(np.array(labels, np.int64, order="C"))
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into one sentence."""
    try:
        yield
    except IsADirectoryError:
        raise UserError(f"{path} is a folder, but a file is expected there. Put the file in its place.") from None
    except NotADirectoryError:
        raise UserError(f"{path} is a file, but a folder is expected there. Put the folder in its place.") from None
    except OSError as error:
        raise UserError(
            f"Cannot read {path}: {error.strerror or error}. Check that it exists and may be read."
        ) from error


def damaged(path: Path, what: str) -> UserError:
    """The error for a file that is not what its name says."""
    return UserError(f"{path} is damaged: {what}. Replace it by a sound copy.")


def in_words(found: Counts, expected: Counts) -> str:
    """'10,000 of 59,001 training images, all 9,001 test images'."""
    return ", ".join(
        f"all {all_of_it:,} {part} images" if here == all_of_it else f"{here:,} of {all_of_it:,} {part} images"
        for part, here, all_of_it in zip(("training", "test"), found, expected, strict=True)
    )
