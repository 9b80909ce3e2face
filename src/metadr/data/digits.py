"""The four digit data sets: by name, loaded through the cache, and how a copy of them stands."""

import functools
import gzip
import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from metadr.core import Domain, Split
from metadr.data.cache import Entry, cached, fingerprint
from metadr.data.mnist import MNIST
from metadr.data.mnist_m import MNIST_M
from metadr.data.source import (
    NUM_CLASSES,
    Counts,
    Decoding,
    Files,
    Part,
    Source,
    count_problem,
    data_root,
    decode,
    find,
    in_words,
    locate,
    made_here,
    missing,
)
from metadr.data.standing import FileCheck, State, Status, Verified
from metadr.data.svhn import SVHN
from metadr.data.syn import RENDERED, SYN
from metadr.errors import UserError, unknown
from metadr.progress import Watch

SOURCES: dict[str, Source] = {source.name: source for source in (MNIST, MNIST_M, SYN, SVHN)}
PAPER = Decoding()


class Info(NamedTuple):
    """What a domain was made from."""

    source: str
    found: Counts
    expected: Counts
    content: str
    path: Path
    origin: str = ""
    """What a stand-in for the published files says of itself."""

    @property
    def partial(self) -> bool:
        return self.found != self.expected

    def __str__(self) -> str:
        state = "partial" if self.partial else "complete"
        return f"{self.source}: {state}, {in_words(self.found, self.expected)}" + (self.origin and f"; {self.origin}")


class Loaded(NamedTuple):
    """A domain, and what it was made from."""

    domain: Domain
    info: Info


def get_source(name: str) -> Source:
    """The data set of a name; MNIST-M is `mnist_m` or `mnist-m`."""
    known = {**SOURCES, **RENDERED}
    source = known.get(name.replace("-", "_"))
    if source is None:
        raise unknown("data set", name, known)
    return source


def load(
    source: Source | str,
    decoding: Decoding = PAPER,
    *,
    root: Path | None = None,
    checked: bool = False,
    watch: Watch | None = None,
) -> Loaded:
    """A data set as a domain: decoded once, then opened memory-mapped.

    Args:
        source: a data set or its name.
        decoding: which training images, how they become 32x32, and how many are held out.
        root: where data sets lie; `data_root()` unless given.
        checked: compare every cached byte with its hash (about 0.1 s for 100 MB).
        watch: told how far decoding is, where it takes long.
    """
    source = get_source(source) if isinstance(source, str) else source
    entry = _entry(source, decoding, root or data_root(), checked=checked, watch=watch)
    kept = decoding.num_train - decoding.num_val
    whole = Split(entry.tensors["train_x"], entry.tensors["train_y"])
    val = Split(whole.x[kept:], whole.y[kept:]) if decoding.num_val else None
    test = Split(entry.tensors["test_x"], entry.tensors["test_y"])
    domain = Domain(source.name, whole.first(kept), val if decoding.test_on == "val" and val else test, val)
    found = Counts(*entry.about["found"])
    origin = made_here(source, locate(source, (root or data_root()) / source.name))
    return Loaded(domain, Info(source.name, found, source.expected, entry.content, entry.path, origin))


def content_of(source: Source | str, decoding: Decoding = PAPER, *, root: Path | None = None) -> str:
    """The hash of a domain's pixels and labels, for keys; decodes it where that was not done before."""
    source = get_source(source) if isinstance(source, str) else source
    root = root or data_root()
    # A sweep asks this for every run, and a set of single images takes a tenth of a second to look through: within a
    # process, its lists and folders say whether it was replaced.
    top = fingerprint(locate(source, root / source.name).values())
    return _content(source, decoding, root, top)


@functools.lru_cache(maxsize=64)
def _content(source: Source, decoding: Decoding, root: Path, top: str) -> str:
    return _entry(source, decoding, root).content


def _entry(
    source: Source, decoding: Decoding, root: Path, *, checked: bool = False, watch: Watch | None = None
) -> Entry:
    folder = root / source.name
    files = locate(source, folder)
    settings = {name: getattr(decoding, name) for name in source.settings}

    def make() -> tuple[dict[str, Tensor], dict[str, Any]]:
        train, test, found = decode(source, files, decoding, watch)
        tensors = {"train_x": train.x, "train_y": train.y, "test_x": test.x, "test_y": test.y}
        return tensors, {"source": source.name, "settings": settings, "found": list(found)}

    return cached(
        root / "cache",
        source.name,
        {"revision": source.revision, **settings},
        fingerprint(source.inputs(files, decoding)),
        make,
        checked=checked,
    )


def status(source: Source | str, decoding: Decoding = PAPER, *, root: Path | None = None) -> Status:
    """What there is of a data set: quick, from the files' names and headers."""
    source = get_source(source) if isinstance(source, str) else source
    folder = (root or data_root()) / source.name

    def stands(state: State, found: Counts | None = None, problem: str = "") -> Status:
        return Status(source.name, state, folder, found, source.expected, (problem,) if problem else ())

    try:
        files = find(source, folder) if folder.exists() else {}
        if len(files) < len(source.needs):
            return stands("missing", problem=missing(source, files, folder))
        found = Counts(source.count(files, "train"), source.count(files, "test"))
    except UserError as error:
        return stands("broken", problem=str(error))
    problem = count_problem(source, files, found, decoding)
    if problem:
        return stands("broken", found, problem)
    return stands("present" if found == source.expected else "partial", found)._replace(origin=made_here(source, files))


def verify(
    source: Source | str, decoding: Decoding = PAPER, *, root: Path | None = None, watch: Watch | None = None
) -> Verified:
    """Read all of a data set: checksums, every image, images per digit, and the cache."""
    source = get_source(source) if isinstance(source, str) else source
    seen = status(source, decoding, root=root)
    if seen.found is None or seen.problems:
        return Verified(seen)
    content, problems = None, []
    try:
        files = locate(source, seen.folder)
        problems = _class_problems(source, files, seen.found, watch)
        content = load(source, decoding, root=root, checked=True, watch=watch).info.content
        checks = tuple(_check_file(source, path) for path in files.values() if path.is_file())
    except UserError as error:
        return Verified(seen._replace(state="broken", problems=(*problems, str(error))))
    if problems:
        seen = seen._replace(state="broken", problems=tuple(problems))
    return Verified(seen, checks, content)


def _class_problems(source: Source, files: Files, found: Counts, watch: Watch | None) -> list[str]:
    """Complete parts whose images per digit are not the known ones."""
    problems = []
    parts: tuple[tuple[Part, int, int, tuple[int, ...] | None], ...] = (
        ("train", found.train, source.expected.train, source.train_classes),
        ("test", found.test, source.expected.test, source.test_classes),
    )
    for part, here, all_of_it, known in parts:
        if known is not None and here == all_of_it:
            labels = source.read(files, part, slice(None), Decoding(resize="pad"), watch).y
            counted = tuple(torch.bincount(labels.clamp(0), minlength=NUM_CLASSES).tolist())
            if counted != known:
                digit = next((d for d, n in enumerate(known) if counted[d] != n), NUM_CLASSES)
                problems.append(
                    f"{source.name}/{part}: expected {known[digit]} images of digit {digit}, found {counted[digit]}. "
                    f"{source.advice}"
                )
    return problems


def _check_file(source: Source, path: Path) -> FileCheck:
    published = {file.name: file.checksum for file in source.files}
    unpacked = source.unpacked or {}
    name = path.name.replace(".idx", "-idx")
    known = [(checksum, False) for checksum in (published.get(name), unpacked.get(name)) if checksum]
    if name.removesuffix(".gz") in unpacked and name.endswith(".gz"):  # another packing is the same content
        known.append((unpacked[name.removesuffix(".gz")], True))
    if not known:
        return FileCheck(path.name, "no checksum published")
    same = any(_digest(path, checksum, unzipped) == checksum for checksum, unzipped in known)
    return FileCheck(path.name, "as published" if same else "differs")


def _digest(path: Path, like: str, unzipped: bool) -> str:
    """The file's checksum, of the kind of another."""
    kind = like.partition(":")[0]
    digest = hashlib.new(kind, usedforsecurity=False)
    with gzip.open(path) if unzipped else path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"
