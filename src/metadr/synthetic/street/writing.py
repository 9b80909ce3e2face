"""Files in the layout of Virtual KITTI 2, and a record beside them that says that they are not.

SceneNN/CONDITION/frames/rgb/Camera_C/rgb_NNNNN.jpg and
SceneNN/CONDITION/frames/classSegmentation/Camera_C/classgt_NNNNN.png, the latter in the official colours.
"""

import io
import json
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import PIL
from PIL import Image

from metadr.errors import UserError, unknown
from metadr.files import told, write_file
from metadr.progress import Meter, Watch
from metadr.synthetic.street.camera import SIZE
from metadr.synthetic.street.frames import render
from metadr.vkitti2_classes import CAMERAS, CLASSES, CONDITIONS, FRAMES, RECORD

REVISION: int = 2
"""Part of the record: raise it when any pixel or label changes."""

WHAT = "streets rendered by metadr in the layout and colours of Virtual KITTI 2; not that data set"
SIDES = (32, 4096)  # pixels, the smallest and the largest width and height
QUALITY = 92  # of the JPEG files
COLOURS = np.array([colour for _, colour in CLASSES], dtype=np.uint8)


class Made(NamedTuple):
    """What a build leaves: how many frames there are (each a picture and its classes), and how many of them are new."""

    folder: Path
    frames: int
    new: int


class Unit(NamedTuple):
    """One moment before one camera, in the conditions that are not there yet."""

    scene: str
    number: int  # of the file
    moment: int  # of the scene
    camera: int
    conditions: tuple[str, ...]


def build(
    folder: Path,
    *,
    size: tuple[int, int] = SIZE,
    scenes: Sequence[str] = tuple(FRAMES),
    conditions: Sequence[str] = CONDITIONS,
    frames: int | None = None,
    seed: int = 0,
    processes: int | None = None,
    watch: Watch | None = None,
) -> Made:
    """Write what is missing of a rendering; a second call has nothing to do, one after a stop goes on.

    Every file appears whole or not at all. The number of processes changes nothing but the time.

    Args:
        size: width and height, pixels.
        scenes: as "Scene01", "01" or "1".
        frames: so many moments of each scene, evenly spread over it; all of them if not given.
        processes: as many as there are processors if not given.

    Raises:
        UserError: If an argument is out of its range, or the folder cannot be written, or holds frames that were not
            made here or were made otherwise: those are kept.
    """
    scenes, conditions = [scene_named(scene) for scene in scenes], [condition_named(each) for each in conditions]
    _check(size, frames, seed, processes)
    identity = {"revision": REVISION, "seed": seed, "size": list(size), "frames": frames}
    complete = _claim(folder, identity)
    units = [
        Unit(scene, number, moment, camera, tuple(dict.fromkeys(conditions)))
        for scene in dict.fromkeys(scenes)
        for number, moment in enumerate(moments(scene, frames))
        for camera in CAMERAS
    ]
    missing = _missing(folder, units)
    total = sum(len(unit.conditions) for unit in missing)
    meter = Meter("rendering streets", total, watch)
    for unit in _done(partial(_make, folder, size, seed), missing, processes or os.cpu_count() or 1):
        meter.add(len(unit.conditions))
    for scene in scenes:
        complete[scene] = [name for name in CONDITIONS if name in {*complete.get(scene, []), *conditions}]
    _write_record(folder, identity, complete)
    return Made(folder, sum(len(unit.conditions) for unit in units), total)


def moments(scene: str, frames: int | None = None) -> list[int]:
    """Which moments of a scene are rendered: all of them, or `frames` evenly spread over it."""
    count = FRAMES[scene]
    kept = count if frames is None else min(frames, count)
    return [number * count // kept for number in range(kept)]


def paths(folder: Path, scene: str, condition: str, camera: int, number: int) -> tuple[Path, Path]:
    """The picture and the class image of a frame."""
    frames = folder / scene / condition / "frames"
    return (
        frames / "rgb" / f"Camera_{camera}" / f"rgb_{number:05d}.jpg",
        frames / "classSegmentation" / f"Camera_{camera}" / f"classgt_{number:05d}.png",
    )


def size_of(text: str) -> tuple[int, int]:
    """(416, 128) for "416x128"."""
    found = re.fullmatch(r"(\d{1,6})[xX](\d{1,6})", text.strip())
    if not found:
        raise UserError(f"The size of a rendering must be WIDTHxHEIGHT in pixels, as 416x128. Got '{text}' instead.")
    return int(found[1]), int(found[2])


def scene_named(text: str) -> str:
    """ "Scene01" for itself, "01" or "1"."""
    number = text.strip().removeprefix("Scene")
    name = f"Scene{number.zfill(2)}"
    if name not in FRAMES:
        raise unknown("scene", text, FRAMES, within=" of the rendered streets")
    return name


def condition_named(text: str) -> str:
    if text.strip() not in CONDITIONS:
        raise unknown("condition", text, CONDITIONS, within=" of the rendered streets")
    return text.strip()


def _check(size: tuple[int, int], frames: int | None, seed: int, processes: int | None) -> None:
    low, high = SIDES
    if not all(low <= side <= high for side in size):
        raise UserError(
            f"The size of a rendering must be {low} to {high} pixels each way. Got {size[0]}x{size[1]} instead."
        )
    for name, value, least in (("frames", frames, 1), ("seed", seed, 0), ("processes", processes, 1)):
        if value is not None and value < least:
            raise UserError(f"The '{name}' of a rendering must be an integer >= {least}. Got {value} instead.")


def _claim(folder: Path, identity: dict[str, Any]) -> dict[str, list[str]]:
    """Make the folder and its record, or take them up; tell which conditions of which scenes are complete."""
    record = folder / RECORD
    if not record.exists():
        if any((folder / scene).exists() for scene in FRAMES):
            raise UserError(
                f"'{folder}' holds scenes but no {RECORD}: frames from elsewhere, which rendering would overwrite. "
                "Move them away, or choose another folder with --out."
            )
        with told(folder):
            folder.mkdir(parents=True, exist_ok=True)
        _write_record(folder, identity, {})
        return {}
    try:
        before = json.loads(record.read_text())
        complete: dict[str, list[str]] = before["complete"]
        differing = [f"{name} {before[name]}" for name, value in identity.items() if before[name] != value]
    except (ValueError, KeyError, TypeError, OSError):
        raise UserError(f"'{record}' cannot be read. Remove the folder, or choose another one with --out.") from None
    if differing:
        raise UserError(
            f"'{folder}' holds another rendering: {', '.join(differing)}. "
            "Remove it, or choose another folder with --out."
        )
    return complete


def _write_record(folder: Path, identity: dict[str, Any], complete: dict[str, list[str]]) -> None:
    versions = {"numpy": np.__version__, "pillow": PIL.__version__}
    content = {"what": WHAT, **identity, "made with": versions, "complete": dict(sorted(complete.items()))}
    write_file(folder / RECORD, (json.dumps(content, indent=1) + "\n").encode())


def _missing(folder: Path, units: Iterable[Unit]) -> list[Unit]:
    """Units with the conditions of which a file is not there."""
    there: dict[Path, frozenset[str]] = {}

    def exists(path: Path) -> bool:
        if path.parent not in there:  # one listing of a folder, not a question for each of its files
            listed = path.parent.iterdir() if path.parent.is_dir() else ()
            there[path.parent] = frozenset(each.name for each in listed)
        return path.name in there[path.parent]

    left = []
    for unit in units:
        lacking = tuple(
            name
            for name in unit.conditions
            if not all(map(exists, paths(folder, unit.scene, name, unit.camera, unit.number)))
        )
        if lacking:
            left.append(unit._replace(conditions=lacking))
    return left


def _make(folder: Path, size: tuple[int, int], seed: int, unit: Unit) -> Unit:
    """Render and write a unit."""
    frame = render(unit.scene, unit.moment, unit.camera, unit.conditions, size=size, seed=seed)
    classes = _encoded(COLOURS[frame.labels], "PNG")
    for name, picture in frame.pictures.items():
        rgb, classgt = paths(folder, unit.scene, name, unit.camera, unit.number)
        for path, content in ((rgb, _encoded(picture, "JPEG", quality=QUALITY)), (classgt, classes)):
            with told(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, content, sync=False)
    return unit


def _encoded(pixels: np.ndarray, kind: str, **options: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **options)
    return buffer.getvalue()


def _done(make: "partial[Unit]", units: list[Unit], processes: int) -> Iterator[Unit]:
    processes = min(processes, len(units))
    if processes <= 1:
        yield from map(make, units)
        return
    # Spawned, not forked: a fork of a process with threads (torch has some) can hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_begin) as pool:
        try:
            yield from pool.map(make, units)
        except BrokenProcessPool:
            raise UserError(
                "A process that renders streets was stopped from outside. Nothing written is lost: run it again, "
                "with fewer processes if memory is short."
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)  # after Ctrl-C too: what is begun is written to its end


def _begin() -> None:
    """A process of the pool leaves Ctrl-C to the one that started it, and ends when that is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()
