"""What comes out of archives: members written below a folder, all of them or nothing, and why they are refused."""

import fcntl
import lzma
import os
import re
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

from metadr.errors import UserError
from metadr.progress import Meter

CHUNK = 1 << 18  # bytes read and written at once
HARMLESS = 16 << 20  # bytes: what unpacks to less is no bomb, however well it packs
MAX_NAME, MAX_PATH = 255, 1024  # bytes, of one part of a name and of all of it

# What the readers of the standard library raise on damaged input; most of it seen when fed archives with random damage.
DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    LookupError,
    RuntimeError,  # also RecursionError: tarfile nests one call per extended header
    MemoryError,
)


class Limits(NamedTuple):
    """What an archive may hold, counted while it is written: headers can claim anything."""

    max_bytes: int = 64 << 30
    max_files: int = 2_000_000
    """Folders included."""
    max_ratio: float = 200
    """Bytes unpacked per byte of the archive, once they are more than 16 MiB."""


class Refused(UserError):
    """An archive whose content is not unpacked; `why` is for callers whose users have another way out."""

    def __init__(self, sentence: str, why: str) -> None:
        super().__init__(sentence)
        self.why = why


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Writer:
    """Writes the members of one archive below a folder, and refuses those it should not."""

    def __init__(self, archive: Path, root: Path, limits: Limits, meter: Meter) -> None:
        self.archive = archive
        self.root = root
        self.limits = limits
        self.meter = meter
        with intact(archive):
            self.packed = max(archive.stat().st_size, 1)
        self.num_bytes = self.num_members = self.num_files = 0

    def folder(self, name: str) -> None:
        self._count()
        path = self._place(name, allow_root=True)
        with self._new(name), _told(self.root):
            path.mkdir(parents=True, exist_ok=True)

    def file(self, name: str, source: Readable, size: int | None = None) -> None:
        """Copy a member; `size` is what its header claims."""
        self._count()
        path = self._place(name)
        # 'x' refuses a second member of one name, also where the file system takes 'A' and 'a' for one.
        with self._new(name), _told(self.root):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("xb")
        before = self.num_bytes
        with _told(self.root), file:
            while data := self._read(source):
                self._measure(len(data))
                file.write(data)
        if size is not None and self.num_bytes - before != size:
            raise damaged(self.archive, f"{shown(name)} has {self.num_bytes - before} bytes instead of {size}")
        self.num_files += 1
        self.meter.add()

    def refuse(self, name: str, what: str) -> UserError:
        return refused(self.archive, f"its member {shown(name)} {what}")

    def _read(self, source: Readable) -> bytes:
        with intact(self.archive):
            return source.read(CHUNK)

    def _count(self) -> None:
        self.num_members += 1
        if self.num_members > self.limits.max_files:
            raise self._too_much(f"more than {self.limits.max_files} files and folders")

    def _measure(self, size: int) -> None:
        self.num_bytes += size
        if self.num_bytes > self.limits.max_bytes:
            raise self._too_much(f"more than {self.limits.max_bytes} bytes")
        if self.num_bytes > HARMLESS and self.num_bytes > self.limits.max_ratio * self.packed:
            raise self._too_much(f"more than {self.limits.max_ratio:g} times its {self.packed} bytes")

    def _too_much(self, what: str) -> UserError:
        return refused(self.archive, f"it unpacks to {what}, as a bomb does")

    def _place(self, name: str, *, allow_root: bool = False) -> Path:
        """Where a member goes: always below the root."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or re.match(r"[A-Za-z]:", name):
            raise self.refuse(name, "has an absolute path")
        if ".." in parts:
            raise self.refuse(name, "leaves the folder")
        if "\\" in name or any(ord(c) < 32 or ord(c) == 127 for c in name):
            raise self.refuse(name, "has a backslash or a control character in its name")
        if not parts and not allow_root:
            raise self.refuse(name, "has no name")
        sizes = [len(os.fsencode(part)) for part in parts]
        if max(sizes, default=0) > MAX_NAME or sum(sizes) + len(sizes) > MAX_PATH:
            raise self.refuse(name, f"has too long a name (over {MAX_NAME} bytes in one part or {MAX_PATH} in all)")
        return self.root.joinpath(*parts)

    @contextmanager
    def _new(self, name: str) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            if isinstance(error.__cause__, FileExistsError | NotADirectoryError | IsADirectoryError):
                raise self.refuse(name, "is there twice, or both as a file and as a folder") from None
            raise


def shown(name: str) -> str:
    """A name from a stranger, safe to print."""
    text = ascii(name)
    return text if len(text) <= 100 else f"{text[:60]}...{text[-37:]}"


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder beside `folder` that becomes it if all goes well and goes if not.

    It is its own lock, so that what a killed process left is told from what a living one is writing.
    """
    building = folder.with_name(f".{folder.name}.unpacking")
    handle = _claim(folder, building)
    try:
        try:
            with _told(building):
                for leftover in building.iterdir():
                    shutil.rmtree(leftover) if leftover.is_dir() and not leftover.is_symlink() else leftover.unlink()
            yield building
            with _told(folder):
                building.rename(folder)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    finally:
        os.close(handle)


def _claim(folder: Path, building: Path) -> int:
    while True:
        with _told(folder):
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise UserError(f"{folder} is there already. Remove it or choose another folder, then run this again.")
            building.parent.mkdir(parents=True, exist_ok=True)
            building.mkdir(exist_ok=True)
            handle = os.open(building, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle), building.stat()):
                return handle
        except FileNotFoundError:
            pass  # renamed or removed between open and lock, as is one that is not the same
        except BlockingIOError:
            os.close(handle)
            raise UserError(
                f"{folder} is being unpacked by another process. Wait for it or stop it, then run this again."
            ) from None
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


@contextmanager
def intact(archive: Path) -> Iterator[None]:
    """Turn what a reader says of a damaged archive into one sentence."""
    try:
        yield
    except NotImplementedError as error:
        raise UserError(f"Cannot unpack {archive}: {error}. Unpack it by hand and give the folder.") from error
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"Cannot read {archive}: {error.strerror}. Put that right, then run this again.") from error
        raise damaged(archive, error) from error


def refused(archive: Path, why: str) -> Refused:
    return Refused(
        f"{archive} is refused: {why}. Nothing was unpacked; if you trust it, unpack it by hand and give the folder.",
        why,
    )


def damaged(archive: Path, how: object) -> UserError:
    text = " ".join(str(how).split()) or type(how).__name__
    return UserError(
        f"{archive} is damaged or cut short ({ascii(text)[1:-1][:150]}). Get it again, then run this again."
    )


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what a file system refuses into one sentence."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"Cannot write {path}: {error.strerror or error}. Nothing was unpacked: make room or choose another "
            "folder, then run this again."
        ) from error
