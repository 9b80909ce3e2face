"""Unpack runs: all of a pack is checked before any run is put in place, and no run that is further along is lost.

A run that is not there yet appears whole, by one rename. One that is there is taken forward in its own folder, under
its lock and in the order in which a run writes its files, done.json last: whenever it is killed, the run can go on.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, get_args

from metadr.data.archives import unpack_into
from metadr.data.unpacked import Refused, shown
from metadr.errors import UserError
from metadr.files import told
from metadr.packs import published
from metadr.packs.content import (
    FORMAT,
    JSON_FILES,
    MANIFEST,
    UNREADABLE,
    checkpoints,
    count,
    is_named_after,
    newest_moment,
    whole_moment,
)
from metadr.store import Busy, RunDirectory

STAGING = ".unpacking"  # within the folder of runs; what a kill leaves there the next unpack removes
GZIP = b"\x1f\x8b"  # what a pack begins with
NOTHING = (-1, -1)  # where a run without a checkpoint stands
Verdict = Literal["new", "kept", "replaced", "busy"]


class Unpacked(NamedTuple):
    """What the packs held, and what became of it."""

    finished: int
    unfinished: int
    new: list[str]
    kept: list[str]
    replaced: list[str]
    busy: list[str]  # left alone: a process is running them


class _Staged(NamedTuple):
    """A run of a pack, checked, in a folder of its own."""

    pack: Path
    name: str
    folder: Path
    identity: dict[str, Any]
    finished: bool
    reached: tuple[int, int]
    rows: Any
    checkpoint: str | None


def unpack(files: Sequence[str | Path], *, out: str | Path = "runs", replace: bool = False) -> Unpacked:
    """Put the runs of packs, or of files of records, into a folder of runs.

    Of a run that is in both, the finished one stays, or the one whose newest checkpoint is further along, or that of
    the folder. A run that a process is running is left alone.

    Args:
        files: packs, such as the numbered files of one `pack`, or files of records that a report wrote.
        out: folder of runs.
        replace: where both are finished and their scores differ, take the pack's; an error otherwise.
    """
    packs = [_checked_file(Path(file)) for file in files]
    root = Path(out)
    with _staging(root) as staging:
        runs = []
        for number, file in enumerate(packs):
            folder = staging / str(number)
            with told(folder):
                folder.mkdir()
            runs += _runs_of(file, folder)
        conflicts = [run for run in runs if _verdict(run, root / run.name) == "conflict"]
        if conflicts and not replace:
            raise _conflict(conflicts, root)
        placed = [(_place(run, root, replace=replace), run.name) for run in runs]
    finished = sum(run.finished for run in runs)
    names = {each: [name for verdict, name in placed if verdict == each] for each in get_args(Verdict)}
    return Unpacked(finished=finished, unfinished=len(runs) - finished, **names)


def _checked_file(file: Path) -> Path:
    if file.is_dir():
        raise UserError(f"{file} is a folder. Give a file that 'metadr results pack' or 'metadr report' wrote.")
    if not file.exists():
        raise UserError(f"No file {file}. Give a file that 'metadr results pack' or 'metadr report' wrote.")
    with told(file, "read"), file.open("rb") as opened:
        start = opened.read(len(GZIP))
    if start != GZIP and not published.is_of_records(file):
        raise _no_pack(file)
    return file


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A hidden folder within the folder of runs, so that a rename puts in place; one process at a time has it."""
    folder, lock, fresh = root / STAGING, root / f"{STAGING}.lock", not root.exists()
    with told(root):
        root.mkdir(parents=True, exist_ok=True)
        handle = _claim(lock)
    try:
        with handle, told(folder):
            if folder.exists():
                shutil.rmtree(folder)
            folder.mkdir()
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
                lock.unlink()
    finally:
        if fresh:
            with suppress(OSError):  # unless there is something in it now
                root.rmdir()


def _claim(lock: Path) -> IO[str]:
    while True:
        handle = lock.open("a")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(handle.fileno()), lock.stat()):
                return handle
        except FileNotFoundError:
            pass  # removed between open and lock by the process that had it, as is one that is not the same
        except BlockingIOError:
            handle.close()
            raise UserError(
                f"Another process is unpacking into {lock.parent}. Wait for it, then run this again."
            ) from None
        handle.close()


def _runs_of(file: Path, folder: Path) -> list[_Staged]:
    """The runs of a file, each in a folder of its own below `folder`."""
    if published.is_of_records(file):
        runs = published.write_runs(file, folder)
    else:
        try:
            unpack_into(file, folder)
        except Refused as error:
            raise _refused(file, error.why) from None
        runs = _checked_runs(file, folder)
    return [_staged(file, folder, name, files) for name, files in sorted(runs.items())]


def _checked_runs(file: Path, folder: Path) -> dict[str, set[str]]:
    """The files of every run of an unpacked pack, after a look at every byte."""
    runs = _manifest(file, folder)
    listed = {f"{name}/{each}": digest for name, files in runs.items() for each, digest in files.items()}
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    del there[MANIFEST]
    if listed.keys() != there.keys():
        odd = min(listed.keys() ^ there.keys())
        raise _damaged(file, f"{shown(odd)} is {'missing' if odd in listed else 'not in its manifest'}")
    for name, path in there.items():
        with told(path, "read"), path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
            os.fsync(opened.fileno())  # before a rename puts it in place
        if digest != listed[name]:
            raise _damaged(file, f"the hash of {shown(name)} differs")
    return {name: set(files) for name, files in runs.items()}


def _manifest(file: Path, folder: Path) -> dict[str, dict[str, str]]:
    path = folder / MANIFEST
    if not path.is_file():
        raise _no_pack(file)
    try:
        manifest = json.loads(path.read_bytes())
        if (version := manifest["format"]) != FORMAT:
            raise UserError(
                f"{file} is a pack of format {shown(str(version))}; this metadr reads format {FORMAT}. "
                "Pack or unpack it with the other version of metadr."
            )
        runs: dict[str, dict[str, str]] = manifest["runs"]
        for name, files in runs.items():
            for each, digest in files.items():
                if not isinstance(digest, str) or not (each in JSON_FILES or count(each)):
                    raise ValueError(f"{each} is no file of a run")
            if len(parts := name.split("/")) < 2 or any(part in ("", "..") or part[0] == "." for part in parts):
                raise ValueError(f"{name} is no place of a run")
            if any("/".join(parts[:end]) in runs for end in range(1, len(parts))):
                raise ValueError(f"{name} lies within another run")
        if manifest["count"] != len(runs):
            raise ValueError(f"it counts {manifest['count']} runs and lists {len(runs)}")
    except UNREADABLE as error:
        raise _damaged(file, f"its manifest is wrong: {shown(str(error))}") from None
    return runs


def _staged(file: Path, folder: Path, name: str, files: set[str]) -> _Staged:
    """Look into a run, so that what is put in place is one."""
    place = folder / name
    try:
        parsed = {each: json.loads((place / each).read_bytes()) for each in files if each in JSON_FILES}
        if not is_named_after(name, parsed.get("recipe.json")):
            raise ValueError("its name does not end with the key of its recipe.json")
        finished = "done.json" in files
        if finished and not {"rows.json", "environment.json"} <= files:
            raise ValueError("it is finished without scores")
        moments = [whole_moment(each, (place / each).read_bytes()) for each in files if count(each)]
        if len(moments) > 1 or any(not name.endswith(f"-{moment.position['key']}") for moment in moments):
            raise ValueError("it has a checkpoint of another run")
    except UNREADABLE as error:
        raise _damaged(file, f"run {shown(name)}: {shown(str(error))}") from None
    return _Staged(
        pack=file,
        name=name,
        folder=place,
        identity=parsed["recipe.json"],
        finished=finished,
        reached=moments[0].reached if moments else NOTHING,
        rows=parsed.get("rows.json"),
        checkpoint=moments[0].name if moments else None,
    )


def _verdict(run: _Staged, place: Path) -> Literal["new", "kept", "replaced", "conflict"]:
    """What is to become of the run that is there."""
    if not place.exists():
        return "new"
    if (place / "recipe.json").exists() and _json_of(place / "recipe.json") != run.identity:
        raise UserError(
            f"{place / 'recipe.json'} describes another run than its folder's name. Nothing more was unpacked: remove "
            "that folder, or choose another --out."
        )
    if (place / "done.json").exists():
        return "conflict" if run.finished and _scores(_json_of(place / "rows.json")) != _scores(run.rows) else "kept"
    if run.finished:
        return "replaced"
    moment = newest_moment(place, quiet=True)
    return "replaced" if run.reached > (moment.reached if moment else NOTHING) else "kept"


def _scores(rows: Any) -> Any:
    """What two runs are compared by: a file of records has no more of a run."""
    try:
        return {(row["after"], row["on"]): row["value"] for row in rows}
    except UNREADABLE:
        return rows


def _json_of(path: Path) -> Any:
    """What a file says; nothing if that cannot be told."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _place(run: _Staged, root: Path, *, replace: bool) -> Verdict:
    place = root / run.name
    if _verdict(run, place) == "new":
        with told(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                run.folder.rename(place)
                return "new"
            except OSError:
                if not place.exists():  # else somebody has just started it
                    raise
    if _verdict(run, place) == "kept":
        return "kept"  # without a claim, which writes to the folder
    directory = RunDirectory.at(place, run.identity)
    try:
        with directory.claimed():
            verdict = _verdict(run, place)  # it may have gone on until it was ours
            if verdict == "kept":
                return "kept"
            if verdict == "conflict" and not replace:
                raise _conflict([run], root)
            with told(place):
                _take_forward(run, place)
    except Busy:
        return "busy"
    return "replaced"


def _take_forward(run: _Staged, place: Path) -> None:
    """Replace a run by one that is further along, or finished: whatever moment this ends at, it can go on or be redone.

    What says how far it is, the checkpoint or done.json, comes last: after a kill before it the next unpack does all of
    this again. Scores that are ahead of the checkpoint are what a run that is killed may leave, too.
    """
    before = checkpoints(place)
    (place / "done.json").unlink(missing_ok=True)  # its scores are about to change
    for name in ("environment.json", "failed.json", "rows.json"):
        _move(run, place, name)
    if run.checkpoint:
        newest = max(count(run.checkpoint), 1 + max((count(path.name) for path in before), default=0))
        digest = run.checkpoint.split("-", 2)[2]
        (run.folder / run.checkpoint).replace(place / f"checkpoint-{newest:06d}-{digest}")
    _move(run, place, "done.json")
    for path in before:
        path.unlink()


def _move(run: _Staged, place: Path, name: str) -> None:
    if (run.folder / name).exists():
        (run.folder / name).replace(place / name)
    else:
        (place / name).unlink(missing_ok=True)


def _conflict(runs: list[_Staged], root: Path) -> UserError:
    names = ", ".join(str(root / run.name) for run in runs)
    return UserError(
        f"Finished here and in {runs[0].pack}, with other scores: {names}. Choose another --out to compare them, or "
        "take the pack's with --replace."
    )


def _no_pack(file: Path) -> UserError:
    return UserError(f"{file} is no pack of runs, or its beginning is damaged. Give one of 'metadr results pack'.")


def _refused(file: Path, why: str) -> UserError:
    return UserError(f"{file} is refused: {why}. Nothing was unpacked: give a file as 'metadr results pack' wrote it.")


def _damaged(file: Path, how: str) -> UserError:
    return UserError(f"{file} is damaged ({how}). Nothing was unpacked: get it again, then run this again.")
