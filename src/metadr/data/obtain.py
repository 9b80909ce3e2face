"""Get a data set into the data root: downloaded, taken from a folder or archive, or made from another."""

import fcntl
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image

from metadr.data.archives import is_archive, unpack
from metadr.data.catalog import DataSet, get_set
from metadr.data.fetch import Download, fetch
from metadr.data.idx import read_idx
from metadr.data.mnist import MNIST
from metadr.data.mnist_m import MNIST_M
from metadr.data.source import data_root, find, in_words, locate, made_here
from metadr.data.standing import Status
from metadr.errors import UserError
from metadr.progress import Meter, Watch
from metadr.synthetic.mnist_m import blend

# Ganin's release keeps the first images of MNIST: 59,001 to train on and 9,001 to test.
BLENDED = {"train": 59_001, "test": 9_001}


def download(name: str, *, root: Path | None = None, watch: Callable[[Download], None] | None = None) -> Status:
    """Fetch a data set's files from their publisher, unpack what is packed, and put it in its place."""
    wanted, root = get_set(name), root or data_root()
    name = wanted.name
    if not wanted.files:
        raise UserError(f"{name} is not published. Make it with '{wanted.build}'.")
    parts = root / "downloads" / name
    hint = f"Get the files by hand ({wanted.homepage}) and run 'metadr data import {name} FOLDER'" + (
        f", or make your own with '{wanted.build}'." if wanted.build else "."
    )
    files = fetch(wanted.files, parts, hint=hint, watch=watch)
    # Several files are taken together; one that the reader does not know by name is an archive that holds it all.
    together = len(files) > 1 or files[0].name in wanted.readable
    now = bring(name, parts if together else files[0], root=root)
    shutil.rmtree(parts)
    return now


def bring(name: str, place: str | Path, *, root: Path | None = None, watch: Watch | None = None) -> Status:
    """Copy a data set from a folder or an archive, in any layout it is found in, into the data root.

    The copy appears when all of it is there; a copy that was there before is replaced only then, and a sound one only
    by one that can be read. Scenes are added to those that are there; of other sets, a copy with fewer images or
    without some of the files is refused.
    """
    wanted, root, place = get_set(name), root or data_root(), Path(place)
    name, given = wanted.name, place
    if not place.exists():
        raise UserError(f"There is no {place} to import {name} from. Give a folder or an archive that holds it.")
    with _workplace(root) as work:
        found = wanted.locate(_opened(wanted, place, work / "unpacked", watch))
        problem = ""
        try:
            wanted.check(found, root, watch)
        except UserError as error:
            problem = str(error).replace(f"{work / 'unpacked'}", str(given))
            if not wanted.adds and wanted.status(root).state in ("present", "partial"):
                raise UserError(f"{problem} The {name} that is in {root / name} was kept.") from None
        offered = found
        try:
            found = wanted.taken(offered, root / name)
        except UserError as error:
            raise UserError(str(error).replace(f"{work / 'unpacked'}", str(given))) from None
        copy = work / name
        copy.mkdir()
        num_files = {role: sum(1 for _ in path.rglob("*")) if path.is_dir() else 1 for role, path in found.items()}
        meter = Meter(f"copying {name}", sum(num_files.values()), watch)

        def take(here: str | Path, there: str | Path) -> None:
            shutil.copy2(here, there)
            meter.add()

        for role, path in found.items():
            there = copy / wanted.lands(role, path)
            there.parent.mkdir(parents=True, exist_ok=True)
            if path.is_relative_to(work):
                path.rename(there)  # it was unpacked for this
                meter.add(num_files[role])
            elif path.is_dir():
                shutil.copytree(path, there, copy_function=take)
            else:
                take(path, there)
        record = next(iter(found.values())).parent / f"{name}.json"  # what a stand-in says of itself
        if record.is_file():
            shutil.copy2(record, copy / record.name)
        kept = wanted.keep(root / name, copy, found)
        if not kept:
            _refuse_fewer(wanted.status(root), wanted.status(work))
        _replace(copy, root / name)
    now = wanted.status(root)
    if not kept and problem and now.state != "broken":  # a look at the files alone does not see all that is wrong
        return now._replace(state="broken", problems=(problem, *now.problems))
    if not problem or now.problems:
        return now
    left = [role for role in offered if role not in found]
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    note = f"Not taken, because what was there is sound and what is new is not whole: {left[0]}{more}." if left else ""
    return now._replace(problems=(note,) if note else ())


def _refuse_fewer(before: Status, new: Status) -> None:
    """Images are not to vanish because a copy with some of them is imported over one with more."""
    if before.state == "broken" and new.state != "broken":
        return  # it mends what is there
    if before.found and new.found and any(has > gets for has, gets in zip(before.found, new.found, strict=True)):
        raise UserError(
            f"{before.folder} holds {in_words(before.found, before.expected)}, and the {before.name} to import "
            f"{in_words(new.found, new.expected)}: it was kept. Move it away to import that one instead."
        )


def _opened(wanted: DataSet, place: Path, unpacked: Path, watch: Watch | None) -> Path:
    """The folder to look in: the one that was given, or what is in an archive, or in those that it was published as."""
    if place.is_file():
        if not is_archive(place):
            raise UserError(
                f"{place} is neither a folder nor an archive (zip, tar, gz, bz2, xz). Give the folder that holds "
                f"{wanted.holds}."
            )
        return unpack(place, unpacked, watch=watch)
    names = [file.name for file in wanted.files if file.name not in wanted.readable]
    archives = [place / name for name in names if (place / name).is_file()]
    with suppress(UserError):
        if archives and wanted.locate(place):
            return place  # they were unpacked before
    for archive in archives:
        unpacked.mkdir(exist_ok=True)
        unpack(archive, unpacked / archive.name, watch=watch)
    return unpacked if archives else place


def build_mnist_m(
    photos: str | Path,
    *,
    root: Path | None = None,
    seed: int = 0,
    num_train: int = 10_000,
    watch: Watch | None = None,
) -> Status:
    """Blend MNIST with photographs, and write it in the layout of the release: PNG files and lists of labels."""
    root = root or data_root()
    with _workplace(root) as work:
        files = locate(MNIST, root / MNIST.name)
        place = root / MNIST_M.name
        there = find(MNIST_M, place) if place.exists() else {}
        if len(there) == len(MNIST_M.needs) and not made_here(MNIST_M, there):
            raise UserError(
                f"{place} holds a copy of MNIST-M that was not made here, which blending would replace. Move it away, "
                "or set METADR_DATA to another folder."
            )
        copy = work / "copy"
        for split, all_of_it in BLENDED.items():
            count = min(num_train, all_of_it) if split == "train" else all_of_it
            digits = read_idx(files[f"{split}_images"], 3)[:count]
            labels = read_idx(files[f"{split}_labels"], 1)[:count]
            images = blend(digits, photos, seed=seed if split == "train" else seed + 1)
            folder = copy / f"mnist_m_{split}"
            folder.mkdir(parents=True)
            names = [f"{index:08d}.png" for index in range(len(images))]
            meter = Meter(f"writing mnist_m/{split}", len(names), watch)
            for image, png in zip(images, names, strict=True):
                Image.fromarray(np.ascontiguousarray(image)).save(folder / png, compress_level=1)
                meter.add()
            lines = [f"{png} {label}\n" for png, label in zip(names, labels, strict=True)]
            (copy / f"mnist_m_{split}_labels.txt").write_text("".join(lines))
        record = {"what": "MNIST blended over other photographs by the recipe of MNIST-M; not its files", "seed": seed}
        (copy / "mnist_m.json").write_text(json.dumps(record, indent=1) + "\n")
        _replace(copy, place)
    return get_set(MNIST_M.name).status(root)


@contextmanager
def _workplace(root: Path) -> Iterator[Path]:
    """A folder beside the data sets, on the same disk, that is gone at the end; after a kill, at the next attempt."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(root)
        claim = _claim(root)
        lock, work = Path(claim.name), Path(claim.name).with_suffix("")
        work.mkdir()
    except OSError as error:
        raise UserError(
            f"Cannot write {root}: {error.strerror}. Set METADR_DATA to a folder that can be written to."
        ) from error
    try:
        yield work
    except OSError as error:
        raise UserError(
            f"Cannot write {root}: {error.strerror}. Nothing was changed: make room, or set METADR_DATA to another "
            "folder."
        ) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.unlink(missing_ok=True)
        claim.close()


def _claim(root: Path) -> IO[bytes]:
    """A file .import-*.lock, locked: the folder of its name is made only then, so one without a lock is nobody's."""
    while True:
        claim = tempfile.NamedTemporaryFile(prefix=".import-", suffix=".lock", dir=root, delete=False)  # noqa: SIM115
        fcntl.flock(claim, fcntl.LOCK_EX)
        if Path(claim.name).exists():
            return claim
        claim.close()  # taken for a leftover before it was locked


def _remove_leftovers(root: Path) -> None:
    """Remove what killed processes left: nobody holds its lock."""
    for lock in {path.with_suffix(".lock") for path in root.glob(".import-*")}:
        with suppress(OSError), lock.open("a") as claim:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an OSError where a living process has it
            work = lock.with_suffix("")
            for old in work.glob("old-*"):  # killed when it was moved aside and the new one was not in its place
                place = root / old.name.removeprefix("old-")
                if not place.exists():
                    old.rename(place)
            shutil.rmtree(work, ignore_errors=True)
            lock.unlink()


def _replace(new: Path, place: Path) -> None:
    """Put a folder in its place; the old one is moved aside first and put back if that fails."""
    old = new.with_name(f"old-{place.name}")
    if place.exists():
        place.rename(old)
    try:
        new.rename(place)
    except OSError:
        if old.exists():
            old.rename(place)
        raise
