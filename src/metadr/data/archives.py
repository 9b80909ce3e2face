"""Archives opened without trusting them: nothing leaves the folder, no links, no bombs, all of it or nothing."""

import bz2
import gzip
import io
import lzma
import re
import stat
import tarfile
import zipfile
from pathlib import Path
from typing import Literal, NamedTuple

from metadr.data.unpacked import CHUNK, Limits, Readable, Refused, Writer, intact, new_folder, refused, shown
from metadr.errors import UserError
from metadr.progress import Meter, Watch

HEADERS = 16 << 20  # bytes that may be unpacked between two members of a tar: their headers are read into memory
Kind = Literal["zip", "tar", "gz", "bz2", "xz"]
SUFFIXES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".tbz2", ".tbz", ".xz", ".txz")
MAGIC: dict[bytes, Kind] = {
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
}


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
    with new_folder(folder) as building:
        _extract(archive, kind, building, limits or Limits(), watch)
    return folder


def unpack_into(archive: Path, folder: Path, *, limits: Limits | None = None) -> None:
    """The same into an empty folder that is the caller's alone, and the caller's to remove if this fails."""
    _extract(archive, _kind_of_archive(archive), folder, limits or Limits())


def _kind_of_archive(archive: Path) -> Kind:
    if not archive.is_file():
        raise UserError(f"No archive {archive}. Give a zip, tar, tar.gz, tar.bz2, tar.xz or gz file.")
    with intact(archive):
        kind = _kind(archive)
    if kind is None:
        raise UserError(
            f"{archive} is no zip, tar, gz, bz2 or xz archive, or its beginning is damaged. Get it again, or unpack it "
            "by hand and give the folder."
        )
    return kind


def _extract(archive: Path, kind: Kind, folder: Path, limits: Limits, watch: Watch | None = None) -> None:
    writer = Writer(archive, folder, limits, Meter(f"unpacking {archive.name}", 0, watch))
    if kind == "zip":
        _unpack_zip(archive, writer)
    else:
        _unpack_stream(archive, kind, writer)
    if not writer.num_files:
        raise Refused(
            f"{archive} holds no files. Get it again, or give another archive or folder.", "it holds no files"
        )


def _unpack_zip(path: Path, writer: Writer) -> None:
    with intact(path):
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
            with intact(path):
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


def _unpack_stream(path: Path, kind: Kind, writer: Writer) -> None:
    with intact(path):
        raw = _decompressed(path, kind)
    with raw:
        with intact(path):
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
                raise refused(self.archive, f"it has headers or padding of more than {HEADERS} bytes, as a bomb has")
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


def _unpack_tar(path: Path, source: _Source, writer: Writer) -> None:
    source.allow()
    with intact(path):
        archive = tarfile.open(fileobj=source, mode="r|", tarinfo=_Header)  # type: ignore[call-overload]  # noqa: SIM115
    with archive:
        while True:
            source.allow()
            with intact(path):
                member = archive.next()
            if member is None:
                break
            archive.members.clear()  # a million headers are a gigabyte
            if member.isdir():
                writer.folder(member.name)
            elif member.type in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE) and not member.issparse():
                with intact(path):
                    content = archive.extractfile(member)
                assert content, "extractfile has none for links and folders only"
                with content:
                    writer.file(member.name, _Content(source, content), member.size)
            else:
                raise writer.refuse(member.name, f"is {_tar_kind(member)}")
    source.allow()
    with intact(path):
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
