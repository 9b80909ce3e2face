"""Runs go from folder to folder as one file: they go on to the same bits, and no kill or mistake leaves half of one."""

import itertools
import json
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import metadr
from metadr.packs import pack, unpack
from metadr.packs.content import newest_moment
from metadr.run import advance
from metadr.store import RunDirectory, finished_runs

Command = Callable[..., Any]


def assert_told(ended: Any, *words: str) -> None:
    assert ended.code == 2, ended
    assert ended.err.startswith("Error: "), ended.err
    assert ended.err.count("\n") == 1, ended.err
    assert ended.err.rstrip().endswith("."), ended.err
    assert not ended.out
    for word in words:
        assert word in ended.err


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(files)}


def assert_same_result(one: Path, other: Path) -> None:
    mine, theirs = (load_file(max(path.glob("checkpoint-*"))) for path in (one, other))
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name
    assert (one / "rows.json").read_bytes() == (other / "rows.json").read_bytes()
    assert (one / "done.json").exists()


def leave(recipe: metadr.Recipe, out: Path, looks: int, seed: int = 0) -> Path:
    """Start a run and leave it in the middle."""
    going = advance(recipe, seed, out=out, device="cpu", checkpoint_seconds=0)
    for _ in range(looks):
        next(going)
    going.close()
    return RunDirectory(out, recipe, seed).path


@pytest.mark.parametrize("method", ["er+meta-dr", "dr+ewc+gem"])
def test_a_run_goes_on_from_a_pack_to_the_same_bits(
    method: str, make_toy: Command, command: Command, tmp_path: Path
) -> None:
    make_toy()
    fields = ("--method", method, "--set", "steps=21", "--device", "cpu")
    recipe = metadr.recipe("toy", method, steps=21)
    whole = metadr.run(recipe, out=tmp_path / "whole", device="cpu")
    left = leave(recipe, tmp_path / "a", looks=5)  # in the second domain
    ended = command("results", "pack", tmp_path / "p.tar.gz", "--out", tmp_path / "a")
    assert ended.out.startswith("Packed 0 finished and 1 unfinished runs; checkpoints: 1.\nWrote ")
    ended = command("results", "unpack", tmp_path / "p.tar.gz", "--out", tmp_path / "b")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "0 finished and 1 unfinished runs: 1 new, 0 kept, 0 replaced.\n"
    place = tmp_path / "b" / left.relative_to(tmp_path / "a")
    moment = newest_moment(place)
    assert moment is not None
    assert moment.reached[0] == 1
    assert command("run", "toy", *fields, "--out", tmp_path / "b").code == 0
    assert_same_result(place, whole.path)
    assert moment.name not in [path.name for path in place.glob("checkpoint-*")]  # it went on, and dropped it


def test_finished_runs_are_reported_from_a_pack(make_toy: Command, command: Command, tmp_path: Path) -> None:
    make_toy()
    for seed in (0, 1):
        metadr.run(metadr.recipe("toy"), seed, out=tmp_path / "a", device="cpu")
    assert command("results", "pack", tmp_path / "p", "--out", tmp_path / "a").code == 0
    assert command("results", "unpack", tmp_path / "p", "--out", tmp_path / "b").code == 0
    assert not list((tmp_path / "b").rglob("checkpoint-*"))
    mine, theirs = (command("report", tmp_path / each, "-o", tmp_path / f"report-{each}") for each in "ba")
    assert (mine.code, mine.out.replace("report-b", "report-a")) == (0, theirs.out)
    assert (tmp_path / "report-a.csv").read_bytes() == (tmp_path / "report-b.csv").read_bytes()
    again = command("run", "toy", "--out", tmp_path / "b", "--device", "cpu")  # finished: only read
    assert again.code == 0
    assert not list((tmp_path / "b").rglob("checkpoint-*"))


def test_a_run_that_another_process_is_running_is_packed_and_left_alone(
    launch: Command, command: Command, tmp_path: Path
) -> None:
    run = ("run", "embedded", "--tiny", "--device", "cpu", "--checkpoint-seconds", "0", "--set", "steps=35")
    order = ("--set", "order=handwritten,blended")
    recipe = metadr.recipe("embedded", tiny=True, steps=35, order="handwritten,blended")
    early = leave(recipe, tmp_path / "early", looks=1)
    pack(tmp_path / "early.tar.gz", out=tmp_path / "early")
    told = []

    def meddle(pid: int) -> None:
        deadline = time.monotonic() + 60
        while not any((tmp_path / "live").rglob("checkpoint-000001-*")):
            assert time.monotonic() < deadline, "waited for a minute"
            time.sleep(0.001)
        told.append(command("results", "pack", tmp_path / "live.tar.gz", "--out", tmp_path / "live"))
        os.kill(pid, signal.SIGSTOP)
        further = leave(recipe, tmp_path / "far", looks=8)
        pack(tmp_path / "far.tar.gz", out=tmp_path / "far")
        told.append(command("results", "unpack", tmp_path / "far.tar.gz", "--out", tmp_path / "live"))
        assert (tmp_path / "live" / further.relative_to(tmp_path / "far")).exists()
        os.kill(pid, signal.SIGCONT)

    assert launch(*run, *order, "--out", str(tmp_path / "live"), meanwhile=meddle).code == 0
    packed, unpacked = told
    assert packed.out.startswith("Packed 0 finished and 1 unfinished runs; checkpoints: 1.")
    assert (unpacked.code, unpacked.err) == (0, "")
    assert unpacked.out.startswith("0 finished and 1 unfinished runs: 0 new, 0 kept, 0 replaced. Left alone, because a")
    unpack([tmp_path / "live.tar.gz"], out=tmp_path / "b")
    assert launch(*run, *order, "--out", str(tmp_path / "b")).code == 0
    name = early.relative_to(tmp_path / "early")
    assert_same_result(tmp_path / "b" / name, tmp_path / "live" / name)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def packed(make_toy: Command, made: Path, tmp_path: Path) -> Path:
    """A pack of one finished run and one that was left; they are run once, then copied."""
    make_toy()
    if not (made / "p.tar.gz").exists():
        metadr.run(metadr.recipe("toy"), out=made / "runs", device="cpu")
        leave(metadr.recipe("toy"), made / "runs", looks=2, seed=1)
        pack(made / "p.tar.gz", out=made / "runs")
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path / "p.tar.gz"


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


BAD_FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "text": (lambda data: b"no pack", "is no pack of runs"),
    "empty": (lambda data: b"", "is no pack of runs"),
    "other-archive": (lambda data: data[data.index(b"\x1f\x8b", 2) :], "is no pack of runs"),  # without the manifest
    "cut": (lambda data: data[: len(data) // 2], "damaged"),
    "flipped": (flipped, "damaged"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_told_and_nothing_is_unpacked(name: str, packed: Path, command: Command, tmp_path: Path) -> None:
    change, words = BAD_FILES[name]
    packed.write_bytes(change(packed.read_bytes()))
    assert_told(command("results", "unpack", packed, "--out", tmp_path / "other"), str(packed), words)
    assert not (tmp_path / "other").exists()


MISTAKES: dict[str, tuple[list[str], str]] = {
    "unpack-folder": (["unpack", "runs"], "runs is a folder. Give a file that"),
    "unpack-nothing": (["unpack", "none.tar.gz"], "No file none.tar.gz."),
    "pack-to-folder": (["pack", "runs"], "runs is a folder. Give the file to write"),
    "pack-to-nowhere": (["pack", "none/p"], "Cannot write none/p: No such file"),
    "no-folder": (["pack", "new", "--out", "none"], "No folder none."),
    "no-runs": (["pack", "new", "--out", "empty"], "No runs in empty."),
    "no-finished-runs": (["pack", "new", "--out", "empty", "--only", "finished"], "No finished runs in empty."),
    "light-and-more": (["pack", "new", "--light", "--checkpoints"], "Give one of the two."),
    "size": (["pack", "new", "--max-size", "large"], "--max-size must be a size > 0 such as 500K"),
    "no-size": (["pack", "new", "--max-size", "0M"], "Got '0M' instead."),
    "small-size": (["pack", "new", "--max-size", "1K"], "more than --max-size 1024"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_and_nothing_is_written(
    name: str, packed: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments, words = MISTAKES[name]
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    before = contents(tmp_path)
    assert_told(command("results", *arguments), words)
    assert contents(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_told(packed: Path, command: Command, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    assert_told(command("results", "unpack", packed, "--out", closed), "Cannot write", "Permission denied")
    assert_told(command("results", "pack", closed / "p", "--out", tmp_path / "runs"), "Cannot write", "Permission")
    assert not list(closed.iterdir())


def test_a_full_disk_leaves_nothing_behind(packed: Path, launch: Command, tmp_path: Path) -> None:
    other, new = tmp_path / "other", tmp_path / "new"
    ended = launch("results", "unpack", str(packed), "--out", str(other), largest_file=4096)
    assert_told(ended, "Cannot write", "File too large")
    assert not other.exists()
    ended = launch("results", "pack", str(new), "--out", str(tmp_path / "runs"), largest_file=4096)
    assert_told(ended, f"Cannot write {new}: File too large")
    assert not list(tmp_path.glob("new*"))


def test_conflicting_scores_name_the_run(packed: Path, command: Command, tmp_path: Path) -> None:
    (done,) = finished_runs(tmp_path / "runs")
    rows = json.loads((done / "rows.json").read_text())
    (done / "rows.json").write_text(json.dumps([{**rows[0], "value": -1.0}, *rows[1:]]))
    before = contents(tmp_path / "runs")
    assert_told(command("results", "unpack", packed, "--out", tmp_path / "runs"), f"other scores: {done}.", "--replace")
    assert contents(tmp_path / "runs") == before
    ended = command("results", "unpack", packed, "--out", tmp_path / "runs", "--replace")
    assert ended.out == "1 finished and 1 unfinished runs: 0 new, 1 kept, 1 replaced.\n"
    assert json.loads((done / "rows.json").read_text()) == rows


CALLS = {"os.rename", "os.remove"}


def unpack_and_die(file: Path, out: Path, calls: int) -> bool:
    """Unpack in a process that is gone at a file-system call, after so many of them; whether it came to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads; the child does without them
        pid = os.fork()
    if not pid:
        left = [None] * calls

        def die(event: str, _: object) -> None:
            if event in CALLS:
                left.pop() if left else os._exit(9)

        code = 1
        try:
            sys.addaudithook(die)
            unpack([file], out=out, replace=True)
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, 9)
    return code == 0


def test_an_unpack_that_is_killed_at_any_moment_leaves_no_half_run(packed: Path, tmp_path: Path) -> None:
    """Seeds: 0 new and finished, 1 new and left, 2 finished here unfinished, 3 further there, 4 with other scores."""
    recipe, theirs, start = metadr.recipe("toy"), tmp_path / "runs", tmp_path / "start"
    for seed in (2, 4):
        metadr.run(recipe, seed, out=theirs, device="cpu")
    leave(recipe, theirs, looks=3, seed=3)
    for seed in (2, 3):
        leave(recipe, start, looks=1, seed=seed)
    other = metadr.run(recipe, 4, out=start, device="cpu").path
    (other / "rows.json").write_text("[]")
    pack(packed, out=theirs)
    shutil.copytree(start, tmp_path / "whole")
    unpack([packed], out=tmp_path / "whole", replace=True)
    expected, before = contents(tmp_path / "whole"), contents(start)
    states = set()
    for calls in itertools.count():
        copy = tmp_path / f"copy{calls}"
        shutil.copytree(start, copy)
        if unpack_and_die(packed, copy, calls):
            break
        runs, finished = set(copy.glob("toy/*")), finished_runs(copy)
        for path in runs:
            name, found = path.relative_to(copy), contents(path)
            found = {f"{name}/{key}": data for key, data in found.items() if not key.startswith("checkpoint")}
            if path in finished:
                assert found.items() <= expected.items() or found.items() <= before.items()
            else:
                assert newest_moment(path) is not None  # it can go on
        states.add(frozenset(contents(copy).items()))
        unpack([packed], out=copy, replace=True)
        after = contents(copy)
        assert expected.items() <= after.items()
        assert all("/checkpoint-" in name for name in after.keys() - expected.keys())  # older ones at most
        shutil.rmtree(copy)
    assert len(states) > 10
