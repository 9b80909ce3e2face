"""Archives opened without trusting them: nothing leaves the folder, no links, no bombs, all of it or nothing."""

import bz2
import fcntl
import gzip
import io
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from metadr.errors import UserError
from metadr.progress import Meter, Watch

CHUNK = 1 << 18  # bytes read and written at once
HEADERS = 16 << 20  # bytes that may be unpacked between two members of a tar: their headers are read into memory
HARMLESS = 16 << 20  # bytes: what unpacks to less is no bomb, however well it packs
MAX_NAME, MAX_PATH = 255, 1024  # bytes, of one part of a name and of all of it

Kind = Literal["zip", "tar", "gz", "bz2", "xz"]
SUFFIXES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz2", ".tbz", ".xz", ".txz")
MAGIC: dict[bytes, Kind] = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
}
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


def is_archive(path: Path) -> bool:
    """Whether a file is named or begins like an archive that `unpack` opens."""
    try:
        return path.is_file() and (path.name.lower().endswith(SUFFIXES) or _kind(path) is not None)
    except OSError:
        return False


def unpack(archive: Path, folder: Path, *, limits: Limits | None = None, watch: Watch | None = None) -> Path:
    """Unpack a zip, a tar (plain or gz, bz2, xz) or a single compressed file into a new folder.

    What the archive is, its content says and not its name. The folder appears when all of it is there; a kill leaves
    a hidden folder beside it at most, which the next attempt removes. Times, owners and modes are not kept.
    """
    kind = _kind_of_archive(archive)
    with _new_folder(folder) as building:
        _extract(archive, kind, building, limits or Limits(), watch)
    return folder


def unpack_into(archive: Path, folder: Path, *, limits: Limits | None = None) -> None:
    """The same into an empty folder that is the caller's alone, and the caller's to remove if this fails."""
    _extract(archive, _kind_of_archive(archive), folder, limits or Limits())


def _kind_of_archive(archive: Path) -> Kind:
    if not archive.is_file():
        raise UserError(f"No archive {archive}. Give a zip, tar, tar.gz, tar.bz2, tar.xz or gz file.")
    with _intact(archive):
        kind = _kind(archive)
    if kind is None:
        raise UserError(
            f"{archive} is no zip, tar, gz, bz2 or xz archive, or its beginning is damaged. Get it again, or unpack it "
            "by hand and give the folder."
        )
    return kind


def _extract(archive: Path, kind: Kind, folder: Path, limits: Limits, watch: Watch | None = None) -> None:
    writer = _Writer(archive, folder, limits, Meter(f"unpacking {archive.name}", 0, watch))
    if kind == "zip":
        _unpack_zip(archive, writer)
    else:
        _unpack_stream(archive, kind, writer)
    if not writer.num_files:
        raise Refused(
            f"{archive} holds no files. Get it again, or give another archive or folder.", "it holds no files"
        )


class _Writer:
    """Writes the members of one archive below a folder, and refuses those it should not."""

    def __init__(self, archive: Path, root: Path, limits: Limits, meter: Meter) -> None:
        self.archive = archive
        self.root = root
        self.limits = limits
        self.meter = meter
        with _intact(archive):
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
            raise _damaged(self.archive, f"{shown(name)} has {self.num_bytes - before} bytes instead of {size}")
        self.num_files += 1
        self.meter.add()

    def refuse(self, name: str, what: str) -> UserError:
        return _refused(self.archive, f"its member {shown(name)} {what}")

    def _read(self, source: Readable) -> bytes:
        with _intact(self.archive):
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
        return _refused(self.archive, f"it unpacks to {what}, as a bomb does")

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


def _unpack_zip(path: Path, writer: _Writer) -> None:
    with _intact(path):
        archive = zipfile.ZipFile(path)
    with archive:
        for info in archive.infolist():
            name = info.orig_filename  # `filename` ends at the first zero byte
            kind = stat.S_IFMT(info.external_attr >> 16)  # of Unix; 0 where it was packed on another system
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise writer.refuse(name, f"is {_KINDS.get(kind, 'neither a file nor a folder')}")
            if info.flag_bits & 0x1:
                raise UserError(
                    f"{path} is encrypted (its member {shown(name)}). Unpack it by hand with its password and give the "
                    "folder."
                )
            if name.endswith("/"):
                writer.folder(name)
                continue
            with _intact(path):
                member = archive.open(info)
            with member:
                writer.file(name, member, info.file_size)


_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def _unpack_stream(path: Path, kind: Kind, writer: _Writer) -> None:
    with _intact(path):
        raw = _decompressed(path, kind)
    with raw:
        with _intact(path):
            start = raw.read(tarfile.BLOCKSIZE)
        source = _Source(raw, start, path)
        if _is_tar(start) or re.search(r"\.(tar(\.\w+)?|tgz|tbz2?|txz)$", path.name.lower()):
            _unpack_tar(path, source, writer)
        else:
            writer.file(path.stem if path.suffix.lower() in SUFFIXES else f"{path.name}.unpacked", source)


def _decompressed(path: Path, kind: Kind) -> io.BufferedIOBase:
    if kind == "gz":
        return gzip.GzipFile(path)
    if kind == "bz2":
        return bz2.BZ2File(path)
    return lzma.LZMAFile(path) if kind == "xz" else path.open("rb")


class _Source:
    """A tar's bytes, unpacked, with a bound on those that are not the content of a member.

    A header may claim any length, and tarfile reads it into memory in one go.
    """

    def __init__(self, raw: Readable, start: bytes, archive: Path) -> None:
        self.raw = raw
        self.start = start  # of the stream: read before, to see what it is
        self.archive = archive
        self.left: int | None = None  # unbounded until the first `allow`

    def allow(self) -> None:
        """Let the next member's header, or the next chunk of its content, pass."""
        self.left = HEADERS

    def read(self, size: int, /) -> bytes:
        data, self.start = self.start[:size], self.start[size:]
        data = data or self.raw.read(size)
        if self.left is not None:
            self.left -= len(data)
            if self.left < 0:
                raise _refused(self.archive, f"it has headers or padding of more than {HEADERS} bytes, as a bomb has")
        return data


class _Header(tarfile.TarInfo):
    """A header that must be whole: tarfile takes a damaged one, after the first, for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> "_Header":
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.HeaderError as error:
            if str(error) == "end of file header":
                raise
            raise tarfile.ReadError(f"{error}, where another member or the end should be") from None


class _Content(NamedTuple):
    """A member's content, each chunk within the bound of its source."""

    source: _Source
    member: Readable

    def read(self, size: int, /) -> bytes:
        self.source.allow()
        return self.member.read(size)


def _unpack_tar(path: Path, source: _Source, writer: _Writer) -> None:
    source.allow()
    with _intact(path):
        archive = tarfile.open(fileobj=source, mode="r|", tarinfo=_Header)  # type: ignore[call-overload]  # noqa: SIM115
    with archive:
        while True:
            source.allow()
            with _intact(path):
                member = archive.next()
            if member is None:
                break
            archive.members.clear()  # a million headers are a gigabyte
            if member.isdir():
                writer.folder(member.name)
            elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE) and not member.issparse():
                with _intact(path):
                    content = archive.extractfile(member)
                assert content, "extractfile has none for links and folders only"
                with content:
                    writer.file(member.name, _Content(source, content), member.size)
            else:
                raise writer.refuse(member.name, f"is {_tar_kind(member)}")
    source.allow()
    with _intact(path):
        while source.read(CHUNK):  # the checksum of the compressed stream comes last
            pass


def _tar_kind(member: tarfile.TarInfo) -> str:
    if member.issym():
        return f"a symbolic link to {shown(member.linkname)}"
    if member.islnk():
        return f"a hard link to {shown(member.linkname)}"
    if member.isfifo():
        return "a pipe"
    if member.isdev():
        return "a device"
    return "a sparse file" if member.issparse() else "neither a file nor a folder"


def _kind(path: Path) -> Kind | None:
    with path.open("rb") as file:
        start = file.read(tarfile.BLOCKSIZE)
    for magic, kind in MAGIC.items():
        if start.startswith(magic):
            return kind
    return "tar" if _is_tar(start) else None


def _is_tar(start: bytes) -> bool:
    """Whether a file begins with a tar header; old ones have no magic, but all have a checksum of the header."""
    try:
        tarfile.TarInfo.frombuf(start, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):  # also of an empty tar: zeros, as other files may begin with
        return False
    return True


def shown(name: str) -> str:
    """A name from a stranger, safe to print."""
    text = ascii(name)
    return text if len(text) <= 100 else f"{text[:60]}...{text[-37:]}"


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
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
def _intact(archive: Path) -> Iterator[None]:
    """Turn what a reader says of a damaged archive into one sentence."""
    try:
        yield
    except NotImplementedError as error:
        raise UserError(f"Cannot unpack {archive}: {error}. Unpack it by hand and give the folder.") from error
    except DAMAGE as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise UserError(f"Cannot read {archive}: {error.strerror}. Put that right, then run this again.") from error
        raise _damaged(archive, error) from error


def _refused(archive: Path, why: str) -> Refused:
    return Refused(
        f"{archive} is refused: {why}. Nothing was unpacked; if you trust it, unpack it by hand and give the folder.",
        why,
    )


def _damaged(archive: Path, how: object) -> UserError:
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
