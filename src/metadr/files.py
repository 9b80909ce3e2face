"""Files that are written whole or not at all, and what a file system refuses told in one sentence."""

import os
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from metadr.errors import UserError


def data_root() -> Path:
    """Where data sets lie: $METADR_DATA, else ~/.cache/metadr. Set NAME is found in its folder NAME."""
    given = os.environ.get("METADR_DATA")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "metadr"


def write_file(path: Path, data: bytes | Iterable[bytes], *, sync: bool = True) -> None:
    """All of it or nothing, also when the machine stops half-way: a new file, synced, then renamed into place.

    Without `sync` that holds when the process stops, not when the machine does: for many files that can be made again.
    """
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.part")  # others may write the same file at the same time
    with told(path):
        try:
            with part.open("wb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            part.replace(path)
        except BaseException:  # Ctrl-C too
            part.unlink(missing_ok=True)
            raise
        if not sync:
            return
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def link_tree(source: Path, target: Path, *, without: Collection[Path] = ()) -> None:
    """What is below a folder also below another, but for some of it: by links, which take no room, or as copies."""

    def left_out(folder: str, names: list[str]) -> list[str]:
        return [name for name in names if Path(folder, name) in without]

    def link(here: str, there: str) -> None:
        try:
            os.link(os.path.realpath(here), there)
        except OSError:  # another disk, or a file system without links
            shutil.copy2(here, there)

    shutil.copytree(
        source, target, ignore=left_out, copy_function=link, ignore_dangling_symlinks=True, dirs_exist_ok=True
    )


KEPT = (
    "Nothing written before is lost: make room or choose another place (--out, -o, or METADR_DATA for data), then run "
    "the same command again."
)


@contextmanager
def told(path: Path, doing: str = "write", *, then: str = KEPT) -> Iterator[None]:
    """Turn what a file system refuses into one sentence, and what to do then."""
    try:
        yield
    except OSError as error:
        raise UserError(f"Cannot {doing} {path}: {error.strerror or error}. {then}") from error
