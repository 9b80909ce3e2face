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
from metadr.data.digits import PAPER, Status, get_source, status
from metadr.data.fetch import Download, fetch
from metadr.data.idx import read_idx
from metadr.data.mnist import MNIST
from metadr.data.source import data_root, decode, find, locate, made_here
from metadr.errors import UserError
from metadr.progress import Meter, Watch
from metadr.synthetic.mnist_m import blend

# Ganin's release keeps the first images of MNIST: 59,001 to train on and 9,001 to test.
BLENDED = {"train": 59_001, "test": 9_001}


def download(name: str, *, root: Path | None = None, watch: Callable[[Download], None] | None = None) -> Status:
    """Fetch a data set's files from their publisher, unpack what is packed, and put it in its place."""
    source, root = get_source(name), root or data_root()
    name = source.name
    parts = root / "downloads" / name
    hint = f"Get the files by hand ({source.homepage}) and run 'metadr data import {name} FOLDER'" + (
        f", or make your own with '{source.build}'." if source.build else "."
    )
    files = fetch(source.files, parts, hint=hint, watch=watch)
    readable = {known for need in source.needs for known in need.names}
    # What the reader knows by name is taken as it came; anything else is one archive that holds it all.
    now = bring(name, parts if all(path.name in readable for path in files) else files[0], root=root)
    shutil.rmtree(parts)
    return now


def bring(name: str, place: str | Path, *, root: Path | None = None, watch: Watch | None = None) -> Status:
    """Copy a data set from a folder or an archive, in any layout it is found in, into the data root.

    The copy appears when all of it is there; a copy that was there before is replaced only then, and a sound one only
    by one that can be read.
    """
    source, root, place = get_source(name), root or data_root(), Path(place)
    name, given = source.name, place
    if not place.exists():
        raise UserError(f"There is no {place} to import {name} from. Give a folder or an archive that holds it.")
    with workplace(root) as work:
        if place.is_file():
            if not is_archive(place):
                raise UserError(
                    f"{place} is neither a folder nor an archive (zip, tar, gz, bz2, xz). Give the folder that holds "
                    f"{source.needs[0].names[0]}."
                )
            place = unpack(place, work / "unpacked", watch=watch)
        found = locate(source, place)
        problem = ""
        try:
            decode(source, found, PAPER, watch)
        except UserError as error:
            problem = str(error).replace(f"{work / 'unpacked'}", str(given))
            if status(source, root=root).state in ("present", "partial"):
                raise UserError(f"{problem} The {name} that is in {root / name} was kept.") from None
        copy = work / "copy"
        copy.mkdir()
        num_files = sum(sum(1 for _ in path.rglob("*")) if path.is_dir() else 1 for path in found.values())
        meter = Meter(f"copying {name}", num_files, watch)

        def take(here: str | Path, there: str | Path) -> None:
            shutil.copy2(here, there)
            meter.add()

        for path in found.values():
            if path.is_dir():
                shutil.copytree(path, copy / path.name, copy_function=take)
            else:
                take(path, copy / path.name)
        record = next(iter(found.values())).parent / f"{name}.json"  # what a stand-in says of itself
        if record.is_file():
            shutil.copy2(record, copy / record.name)
        replace_folder(copy, root / name)
    now = status(source, root=root)
    return now._replace(state="broken", problems=(problem,)) if problem and not now.problems else now


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
    with workplace(root) as work:
        files = locate(MNIST, root / MNIST.name)
        source, place = get_source("mnist_m"), root / "mnist_m"
        there = find(source, place) if place.exists() else {}
        if len(there) == len(source.needs) and not made_here(source, there):
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
        replace_folder(copy, place)
    return status("mnist_m", root=root)


@contextmanager
def workplace(root: Path) -> Iterator[Path]:
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


def replace_folder(new: Path, place: Path) -> None:
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
