"""Archives: what is unpacked, what is refused, and what stays on disk after a failure. All are made here."""

import bz2
import fcntl
import gzip
import io
import lzma
import os
import resource
import signal
import stat
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from metadr.data import unpacked
from metadr.data.archives import is_archive, unpack
from metadr.data.unpacked import Limits
from metadr.errors import UserError

FILES = {"a/one.txt": b"one\n" * 300, "a/b/two.bin": bytes(range(256)), "empty": b"", "né.txt": b"3"}
# The package without its __init__, which imports torch: seconds that these processes have no use for.
LIGHT = (
    "import sys, types; sys.modules['metadr'] = types.ModuleType('metadr')\nsys.modules['metadr'].__path__ = [{!r}]\n"
)
COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def tar_of(members, form=tarfile.PAX_FORMAT):
    """Names and contents, or TarInfos for what is not a plain file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, content in members:
            info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zip_of(members, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def link(name, kind, to="target"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def tree(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def refused(tmp_path):
    """Unpack bytes that must be refused: in one line that names the archive, with nothing left on disk."""

    def check(data, name, **limits):
        archive = tmp_path / "in" / name
        archive.parent.mkdir()
        archive.write_bytes(data)
        with pytest.raises(UserError) as error:
            unpack(archive, tmp_path / "out" / "data", limits=Limits(**limits))
        assert sorted(path.name for path in tmp_path.iterdir()) in (["in"], ["in", "out"])
        assert [path.name for path in archive.parent.iterdir()] == [name]
        assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())
        message = str(error.value)
        assert str(archive) in message
        assert "\n" not in message and message.isascii()
        assert len(message) < 500 + len(str(archive))
        return message

    return check


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_tar(tmp_path, suffix, form):
    archive = tmp_path / f"data.tar{suffix}"
    archive.write_bytes(COMPRESS[suffix](tar_of(FILES.items(), form)))
    assert is_archive(archive)
    assert unpack(archive, tmp_path / "data") == tmp_path / "data"
    assert tree(tmp_path / "data") == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", archive.name]


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip(tmp_path, compression):
    archive = tmp_path / "data.zip"
    archive.write_bytes(zip_of([("a/", b""), ("hollow/", b""), *FILES.items()], compression))
    unpack(archive, tmp_path / "deep" / "data")
    assert tree(tmp_path / "deep" / "data") == FILES
    assert (tmp_path / "deep" / "data" / "hollow").is_dir()


@pytest.mark.parametrize(("suffix", "compress"), [(s, c) for s, c in COMPRESS.items() if s])
def test_a_single_compressed_file(tmp_path, suffix, compress):
    content = bytes(600) + b"images"  # zeros at the start are not an empty tar
    archive = tmp_path / f"train-images-idx3-ubyte{suffix}"
    archive.write_bytes(compress(content))
    unpack(archive, tmp_path / "data")
    assert tree(tmp_path / "data") == {"train-images-idx3-ubyte": content}


def test_the_content_decides_and_not_the_name(tmp_path):
    for number, data in enumerate([tar_of(FILES.items()), zip_of(FILES.items()), gzip.compress(tar_of(FILES.items()))]):
        archive = tmp_path / f"download-{number}"
        archive.write_bytes(data)
        assert is_archive(archive)
        unpack(archive, tmp_path / f"data{number}")
        assert tree(tmp_path / f"data{number}") == FILES


def test_real_tar_with_dot_and_folders(tmp_path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "x").write_bytes(b"x")
    subprocess.run(["tar", "-czf", tmp_path / "x.tgz", "-C", source, "."], check=True)
    unpack(tmp_path / "x.tgz", tmp_path / "data")
    assert tree(tmp_path / "data") == {"sub/x": b"x"}


def test_modes_and_times_are_not_taken_over(tmp_path):
    info = tarfile.TarInfo("run")
    info.mode, info.mtime = 0o6777, 1
    (tmp_path / "x.tar").write_bytes(tar_of([(info, b"x")]))
    unpack(tmp_path / "x.tar", tmp_path / "data")
    found = (tmp_path / "data" / "run").stat()
    assert not found.st_mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IXUSR)
    assert found.st_mtime > 1e9


def test_is_archive(tmp_path):
    (tmp_path / "folder.zip").mkdir()
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(600))
    (tmp_path / "zeros").write_bytes(bytes(2000))
    (tmp_path / "nothing").write_bytes(b"")
    (tmp_path / "broken.ZIP").write_bytes(b"")  # named like one: `unpack` says what is wrong with it
    names = ["folder.zip", "image.png", "zeros", "nothing", "missing.zip", "broken.ZIP"]
    assert [is_archive(tmp_path / name) for name in names] == [False] * 5 + [True]


ESCAPES = {
    "../up": "leaves the folder",
    "a/../../up": "leaves the folder",
    "a/..": "leaves the folder",
    "/etc/evil": "absolute",
    "C:/evil": "absolute",
    "c:evil": "absolute",
    "..\\up": "backslash",
    "a\\b": "backslash",
    "\\\\host\\share": "backslash",
    "new\nline": "control character",
    "\x1b[2Jx": "control character",
    "./": "no name",
    "x" * 256: "too long",
    "é" * 128: "too long",
    "long/" * 300 + "x": "too long",
}


@pytest.mark.parametrize("name", ESCAPES, ids=ascii)
def test_names_that_leave_the_folder(refused, tmp_path, name):
    message = refused(tar_of([("good", b"good"), (name, b"evil")]), "x.tar")
    assert ESCAPES[name] in message and ascii(name)[:50] in message
    if name != "./":  # a zip calls that a folder
        (tmp_path / "in" / "x.tar").unlink()
        (tmp_path / "in").rmdir()
        message = refused(zip_of([("good", b"good"), (name, b"evil")]), "x.zip")
        assert ESCAPES[name] in message and ascii(name)[:50] in message


def test_a_folder_that_leaves_the_folder(refused):
    info = tarfile.TarInfo("../../up")
    info.type = tarfile.DIRTYPE
    assert "'../../up' leaves the folder" in refused(tar_of([(info, b"")]), "x.tar")


def test_a_zero_byte_does_not_hide_the_rest_of_a_name(refused):
    data = zip_of([("good.txt@evil", b"evil")]).replace(b"@", b"\0")
    assert "control character" in refused(data, "x.zip")


@pytest.mark.parametrize(
    ("kind", "called"),
    [
        (tarfile.SYMTYPE, "a symbolic link to '/etc'"),
        (tarfile.LNKTYPE, "a hard link to '/etc'"),
        (tarfile.FIFOTYPE, "a pipe"),
        (tarfile.CHRTYPE, "a device"),
        (tarfile.BLKTYPE, "a device"),
        (tarfile.GNUTYPE_SPARSE, "a sparse file"),
        (b"Z", "neither a file nor a folder"),
    ],
)
def test_links_and_devices_in_a_tar(refused, kind, called):
    members = [("good", b"good"), (link("a/odd", kind, "/etc"), b""), ("a/odd/passwd", b"evil")]
    assert f"its member 'a/odd' is {called}" in refused(tar_of(members), "x.tar")


@pytest.mark.parametrize(
    ("mode", "called"),
    [
        (stat.S_IFLNK, "a symbolic link"),
        (stat.S_IFIFO, "a pipe"),
        (stat.S_IFCHR, "a device"),
        (stat.S_IFSOCK, "a socket"),
    ],
)
def test_links_and_devices_in_a_zip(refused, mode, called):
    info = zipfile.ZipInfo("odd")
    info.create_system, info.external_attr = 3, (mode | 0o777) << 16
    assert f"its member 'odd' is {called}." in refused(zip_of([("good", b"good"), (info, b"/etc")]), "x.zip")


@pytest.mark.parametrize("pack", [tar_of, zip_of])
@pytest.mark.filterwarnings("ignore:Duplicate name")  # what zipfile says when the test makes one
@pytest.mark.parametrize("second", ["a", "./a", "a/b"])
def test_one_name_twice(refused, pack, second):
    assert f"its member '{second}' is there twice" in refused(pack([("a", b"first"), (second, b"second")]), "x.bin")


def test_a_file_where_a_folder_was(refused):
    assert "its member 'a' is there twice" in refused(tar_of([("a/b", b"first"), ("a", b"second")]), "x.tar")


def test_names_that_differ_in_case(tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_of([("a", b"small"), ("A", b"large")]))
    if (tmp_path / "X.ZIP").exists():  # a file system that ignores case
        with pytest.raises(UserError, match="'A' is there twice"):
            unpack(tmp_path / "x.zip", tmp_path / "data")
    else:
        unpack(tmp_path / "x.zip", tmp_path / "data")
        assert tree(tmp_path / "data") == {"a": b"small", "A": b"large"}


@pytest.mark.parametrize("suffix", ["zip", "tar.gz", "gz"])
def test_bombs_by_ratio(refused, suffix):
    zeros = bytes(17 << 20)
    pack = {"zip": lambda: zip_of([("z", zeros)]), "tar.gz": lambda: gzip.compress(tar_of([("z", zeros)]), 9)}
    data = pack.get(suffix, lambda: gzip.compress(zeros, 9))()
    assert len(zeros) > 200 * len(data)
    assert "more than 200 times its" in refused(data, f"x.{suffix}")


def test_well_packed_is_no_bomb(tmp_path):
    (tmp_path / "x.zip").write_bytes(zip_of([("z", bytes(4 << 20))]))  # a thousandfold, and harmless
    unpack(tmp_path / "x.zip", tmp_path / "data")
    assert (tmp_path / "data" / "z").stat().st_size == 4 << 20


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_bombs_by_size_and_count(refused, tmp_path, pack):
    data = pack([(f"f{i}", bytes(100)) for i in range(11)])
    archive = tmp_path / "ok.bin"
    archive.write_bytes(data)
    unpack(archive, tmp_path / "data", limits=Limits(max_bytes=1100, max_files=11))
    assert len(tree(tmp_path / "data")) == 11
    for path in sorted((tmp_path / "data").iterdir()):
        path.unlink()
    (tmp_path / "data").rmdir()
    archive.unlink()
    assert "more than 1099 bytes" in refused(data, "x.bin", max_bytes=1099)
    (tmp_path / "in" / "x.bin").unlink()
    (tmp_path / "in").rmdir()
    assert "more than 10 files and folders" in refused(data, "x.bin", max_files=10)


def test_folders_count_too(refused):
    data = zip_of([(f"d{i}/", b"") for i in range(20)])
    assert "more than 10 files and folders" in refused(data, "x.zip", max_files=10)


@pytest.mark.parametrize("claim", [1, 2**31])
def test_a_zip_that_lies_about_its_sizes(refused, claim):
    content = os.urandom(3000)
    data = bytearray(zip_of([("z", content)], zipfile.ZIP_DEFLATED))
    centre = data.rindex(b"PK\x01\x02")
    struct.pack_into("<I", data, centre + 24, claim)
    assert "damaged or cut short" in refused(bytes(data), "x.zip")


def test_overlapping_members(refused):
    """One megabyte of zeros that a hundred entries point to, as in the zip bombs without nesting."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = bytes(1 << 20)
    packed = packer.compress(zeros) + packer.flush()
    sizes = struct.pack("<III", zlib.crc32(zeros), len(packed), len(zeros))
    local = b"PK\x03\x04" + struct.pack("<5H", 20, 0, 8, 0, 33) + sizes + struct.pack("<2H", 1, 0) + b"z" + packed
    entry = b"PK\x01\x02" + struct.pack("<6H", 20, 20, 0, 8, 0, 33) + sizes + struct.pack("<5H2I", 1, *[0] * 4, 0, 0)
    centre = (entry + b"z") * 100
    end = b"PK\x05\x06" + struct.pack("<4H2IH", 0, 0, 100, 100, len(centre), len(local), 0)
    message = refused(local + centre + end, "x.zip")
    assert "is there twice" in message or "Overlapped" in message  # later Pythons see it first


def test_a_header_that_fills_the_memory(refused):
    """A pax header of 64 MiB, which tarfile would read in one go."""
    header = tarfile.TarInfo("h")
    header.type, header.size = tarfile.XHDTYPE, 64 << 20
    data = gzip.compress(header.tobuf(tarfile.USTAR_FORMAT) + bytes(64 << 20) + tar_of([("x", b"x")]), 6)
    assert "headers or padding" in refused(data, "x.tar.gz")


def test_padding_without_end(refused):
    assert "headers or padding" in refused(gzip.compress(tar_of([("x", b"x")]) + bytes(32 << 20), 6), "x.tar.gz")


def test_many_nested_headers(refused):
    header = tarfile.TarInfo("h")
    header.type = tarfile.XGLTYPE
    data = header.tobuf(tarfile.USTAR_FORMAT) * 3000 + tar_of([("x", b"x")])
    message = refused(data, "x.tar")
    assert "damaged or cut short" in message


def test_an_encrypted_zip(refused):
    data = bytearray(zip_of([("secret", b"x" * 50)]))
    data[6] |= 1
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    message = refused(bytes(data), "x.zip")
    assert "is encrypted (its member 'secret')" in message and "by hand with its password" in message


def test_an_unknown_compression(refused):
    data = bytearray(zip_of([("x", b"x" * 50)]))
    struct.pack_into("<H", data, 8, 98)
    struct.pack_into("<H", data, data.rindex(b"PK\x01\x02") + 10, 98)
    assert "Cannot unpack" in refused(bytes(data), "x.zip")


def whole(suffix):
    content = [("first", os.urandom(3000)), ("second", os.urandom(3000))]
    if suffix == ".zip":
        return zip_of(content)
    if suffix == ".gz":
        return gzip.compress(content[0][1] + content[1][1])
    return COMPRESS[suffix.removeprefix(".tar")](tar_of(content))


@pytest.mark.parametrize("suffix", [".zip", ".gz", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz"])
@pytest.mark.parametrize("kept", [0, 1, 100, 512, 2000, 3584, 4096, 0.5, 0.9, -9, -1])
def test_truncated_archives(refused, suffix, kept):
    data = whole(suffix)
    if suffix == ".tar":
        data = data[: 2 * (512 + 3072) + 512]  # without the padding after the block of zeros that ends it
    cut = data[: int(len(data) * kept)] if isinstance(kept, float) else data[:kept]
    assert "damaged" in refused(cut, f"x{suffix}")


@pytest.mark.parametrize("suffix", [".zip", ".gz", ".tar.gz", ".tar.bz2", ".tar.xz"])
def test_a_flipped_byte(refused, suffix):
    data = bytearray(whole(suffix))
    data[len(data) // 3] ^= 0xFF
    assert "damaged" in refused(bytes(data), f"x{suffix}")


def test_a_damaged_header_is_not_the_end(refused):
    data = bytearray(tar_of([("first", b"1" * 512), ("second", b"2")]))
    data[1024] ^= 0xFF  # tarfile would stop here and say nothing
    assert "damaged or cut short (bad checksum" in refused(bytes(data), "x.tar")


@pytest.mark.parametrize(
    ("data", "name"), [(zip_of([]), "x.zip"), (tar_of([]), "x.tar.gz"), (zip_of([("only/", b"")]), "x.zip")]
)
def test_empty_archives(refused, data, name):
    assert "holds no files" in refused(gzip.compress(data) if name.endswith("gz") else data, name)


def test_a_web_page_named_zip(refused):
    assert "is no zip, tar, gz, bz2 or xz archive" in refused(b"<!doctype html><p>Quota exceeded", "x.zip")


def test_no_archive(tmp_path):
    for path in (tmp_path, tmp_path / "missing.zip"):
        with pytest.raises(UserError, match=f"^No archive {path}"):
            unpack(path, tmp_path / "data")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there(tmp_path):
    archive = tmp_path / "x.zip"
    archive.write_bytes(zip_of(FILES.items()))
    folder = tmp_path / "data"
    folder.mkdir()
    unpack(archive, folder)  # an empty one is taken
    assert tree(folder) == FILES
    (folder / "own").write_bytes(b"mine")
    with pytest.raises(UserError, match="is there already"):
        unpack(archive, folder)
    assert tree(folder) == FILES | {"own": b"mine"}
    with pytest.raises(UserError, match="is there already"):
        unpack(archive, archive)
    with pytest.raises(UserError, match=r"Cannot write .*: (Not a directory|File exists)"):
        unpack(archive, archive / "below")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "x.zip"]


def test_no_room(tmp_path):
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(gzip.compress(tar_of([("small", b"s"), ("large", os.urandom(300_000))])))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"Cannot write .*: File too large\. Nothing was unpacked"):
            unpack(archive, tmp_path / "data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar.gz"]


def test_leftovers_of_a_kill_go(tmp_path):
    archive = tmp_path / "x.zip"
    archive.write_bytes(zip_of(FILES.items()))
    leftover = tmp_path / ".data.unpacking"
    (leftover / "a").mkdir(parents=True)
    (leftover / "a" / "half").write_bytes(b"half")
    (leftover / "stray").write_bytes(b"stray")
    (leftover / "link").symlink_to(tmp_path)
    unpack(archive, tmp_path / "data")
    assert tree(tmp_path / "data") == FILES
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "x.zip"]


def test_a_second_process_is_told(tmp_path):
    archive = tmp_path / "x.zip"
    archive.write_bytes(zip_of(FILES.items()))
    building = tmp_path / ".data.unpacking"
    building.mkdir()
    (building / "half").write_bytes(b"half")
    handle = os.open(building, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is being unpacked by another process"):
            unpack(archive, tmp_path / "data")
        assert tree(building) == {"half": b"half"}
    finally:
        os.close(handle)
    unpack(archive, tmp_path / "data")
    assert tree(tmp_path / "data") == FILES


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    archive = tmp_path / "x.zip"
    archive.write_bytes(zip_of([("first", b"1"), ("second", b"2")]))
    measure = unpacked.Writer._measure

    def interrupted(writer, size):
        if writer.num_files:
            raise KeyboardInterrupt
        measure(writer, size)

    monkeypatch.setattr(unpacked.Writer, "_measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        unpack(archive, tmp_path / "data")
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]


def test_kill_in_the_middle(tmp_path):
    """A real process, killed in the middle of a member."""
    archive = tmp_path / "x.tar"
    data = tar_of([("first", b"1" * 5000), ("second", os.urandom(4 << 20))])
    archive.write_bytes(data)
    script = (
        LIGHT.format(str(Path(unpacked.__file__).parents[1]))
        + "import time; from pathlib import Path; from metadr.data import archives, unpacked\n"
        "measure = unpacked.Writer._measure\n"
        "def slow(writer, size):\n"
        "    measure(writer, size)\n"
        "    if writer.num_bytes > 1 << 20: print('half-way', flush=True); time.sleep(60)\n"
        "unpacked.Writer._measure = slow\n"
        "archives.unpack(Path(sys.argv[1]), Path(sys.argv[2]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, archive, tmp_path / "data"], stdout=subprocess.PIPE)
    with process:
        assert process.stdout.readline() == b"half-way\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    assert not (tmp_path / "data").exists()
    assert (tmp_path / ".data.unpacking" / "first").read_bytes() == b"1" * 5000
    unpack(archive, tmp_path / "data")
    assert len(tree(tmp_path / "data")["second"]) == 4 << 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "x.tar"]
