"""A file on its way: `NAME.part`, and `NAME.part.json` beside it, which says what it is a part of."""

import fcntl
import functools
import hashlib
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from metadr import files
from metadr.errors import UserError

CHUNK = 1 << 18  # bytes read at once


class Origin(NamedTuple):
    """What a part is a part of, as its server described it."""

    url: str
    etag: str | None = None
    modified: str | None = None
    total: int | None = None

    @property
    def validator(self) -> str | None:
        """What makes the server send the rest only if the file is still the same. A weak ETag cannot (RFC 9110)."""
        return self.etag if self.etag and not self.etag.startswith("W/") else self.modified

    def contradicts(self, other: "Origin") -> bool:
        """Whether these cannot be the same file. Two mirrors may describe one file differently, but for its size."""
        mine: tuple[object, ...] = (self.total, self.etag, self.modified)
        theirs: tuple[object, ...] = (other.total, other.etag, other.modified)
        compared = 3 if self.url == other.url else 1
        return any(a and b and a != b for a, b in list(zip(mine, theirs, strict=True))[:compared])


def checksum_of(path: Path, kind: str = "sha256") -> str:
    """The checksum of a file, written as in `RemoteFile.checksum`."""
    with told(path, "read"), path.open("rb") as file:
        return f"{kind}:{hashlib.file_digest(file, lambda: _hasher(kind)).hexdigest()}"


class PartialFile:
    """A file on its way, held for this process: the bytes so far, their checksum and their origin."""

    def __init__(self, target: Path, handle: io.FileIO, kind: str) -> None:
        self.target = target
        self.path, self.note = _part_of(target)
        self.handle = handle
        self.kind = kind
        self.origin = self._read_note()
        self.digest = _hasher(kind)
        self.length = 0
        self.resumed = False
        with told(self.path, "read"):
            handle.seek(0)
            while data := handle.read(CHUNK):
                self.digest.update(data)
                self.length += len(data)

    @property
    def checksum(self) -> str:
        return f"{self.kind}:{self.digest.hexdigest()}"

    def begin(self, origin: Origin) -> None:
        """Start from the first byte. Empty before the note changes: a kill between the two leaves nothing to glue."""
        self.clear()
        self.describe(origin)

    def describe(self, origin: Origin) -> None:
        if origin != self.origin:
            with told(self.note):
                self.note.write_text(json.dumps(origin._asdict()))
            self.origin = origin

    def append(self, data: bytes) -> None:
        rest = memoryview(data)
        with told(self.path):
            while rest:
                # Counted as it is written: on a full disk what fitted is kept, and the part must know of it.
                written = self.handle.write(rest)
                self.digest.update(rest[:written])
                self.length += written
                rest = rest[written:]

    def clear(self) -> None:
        with told(self.path):
            self.handle.truncate(0)
        self.digest, self.length, self.resumed = _hasher(self.kind), 0, False

    def finish(self) -> None:
        """Put the whole file in place, also for a machine that stops right after."""
        with told(self.target):
            os.fsync(self.handle.fileno())
            self.note.unlink(missing_ok=True)
            self.path.replace(self.target)
            directory = os.open(self.target.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def discard(self) -> None:
        with told(self.path):
            self.note.unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)

    def _read_note(self) -> Origin | None:
        try:
            return Origin(**json.loads(self.note.read_text()))
        except (OSError, ValueError, TypeError):  # none, or cut by a kill: the part then has no known origin
            return None


@contextmanager
def claimed(target: Path, kind: str) -> Iterator[PartialFile]:
    """Hold the part of a file for this process. The part is its own lock: no lock file stays behind."""
    path, _ = _part_of(target)
    while True:
        with told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("a+b", buffering=0)  # unbuffered: what is counted is written
        with handle:
            with told(path):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise UserError(
                        f"{target} is being downloaded by another process. Wait for it or stop it, then run the same "
                        "command again: what has arrived is kept."
                    ) from None
            try:
                held = os.path.samestat(os.fstat(handle.fileno()), path.stat())
            except FileNotFoundError:
                held = False  # another process renamed or removed it between open and lock: there may be a new one
            if held:
                yield PartialFile(target, handle, kind)
                return


def _part_of(target: Path) -> tuple[Path, Path]:
    return target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")


def _hasher(kind: str) -> "hashlib._Hash":
    return hashlib.new(kind, usedforsecurity=False)  # md5 is what some publishers state: it finds damage, not malice


told = functools.partial(
    files.told,
    then="What has arrived before is kept: make room or choose another folder, then run the same command again.",
)
