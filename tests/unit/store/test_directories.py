"""Run directories: what a write leaves behind, which checkpoints stay, who holds a run."""

import errno
import os
import re
import signal
import time
import typing
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import metadr
from metadr.files import write_file
from metadr.store import Checkpoint, RunDirectory, finished_runs


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path, metadr.recipe("toy"), 0)
    made.path.mkdir(parents=True)
    return made


def refuse(*_: object, **__: object) -> typing.NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*_: object, **__: object) -> typing.NoReturn:
    raise KeyboardInterrupt


# Files.


@pytest.mark.parametrize("place", ["metadr.files.os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    write_file(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(place, refuse)
        with pytest.raises(metadr.UserError, match=r"Cannot write .*rows\.json: No space left on device"):
            write_file(path, b"new and longer")
    assert [file.name for file in tmp_path.iterdir()] == ["rows.json"]
    assert path.read_bytes() == b"old"
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_write_that_is_interrupted_leaves_the_old_file_and_the_leftover_of_a_kill_goes_with_the_next_claim(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write("rows.json", ["old"])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            directory.write("rows.json", ["new"])
    assert directory.read("rows.json") == ["old"]
    assert not list(directory.path.glob("*.part"))
    (directory.path / "rows.json.part").write_text('["ne')
    with directory.claimed():
        assert not list(directory.path.glob("*.part"))
        assert directory.read("rows.json") == ["old"]


def test_a_new_name_appears_only_when_its_content_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader sees at the moment of the sync: the old file under its name, the new one under another."""
    path = tmp_path / "rows.json"
    path.write_bytes(b"old")
    seen: list[dict[str, bytes]] = []
    sync: Callable[[int], None] = os.fsync

    def look(handle: int) -> None:
        seen.append({re.sub(r"\w+\.part$", "part", file.name): file.read_bytes() for file in tmp_path.iterdir()})
        sync(handle)

    monkeypatch.setattr("metadr.files.os.fsync", look)
    write_file(path, b"new")
    assert seen == [{"rows.json": b"old", "rows.json.part": b"new"}, {"rows.json": b"new"}]


def test_two_who_write_one_file_at_once_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As do two processes that end one sweep: their reports have the same names."""
    path, replace = tmp_path / "table.md", Path.replace

    def after_the_other(part: Path, target: Path) -> Path:
        patch.undo()
        write_file(path, b"theirs")
        assert path.read_bytes() == b"theirs"
        return replace(part, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", after_the_other)
        write_file(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert list(tmp_path.iterdir()) == [path]


# Checkpoints.


def moment(step: int) -> Checkpoint:
    return Checkpoint({"step": step}, {"model/x": torch.full((3,), float(step)), "stream": torch.arange(5)})


def test_only_the_newest_two_checkpoints_stay(directory: RunDirectory) -> None:
    for step in range(12):
        directory.save(moment(step))
        loaded = directory.load()
        assert loaded is not None
        assert loaded.position == {"key": directory.key, "step": step}
        assert torch.equal(loaded.tensors["model/x"], torch.full((3,), float(step)))
        assert loaded.tensors["stream"].dtype == torch.int64
    assert [path.name[:17] for path in directory.checkpoints()] == ["checkpoint-000012", "checkpoint-000011"]


def test_of_a_finished_run_the_newest_checkpoint_stays(directory: RunDirectory) -> None:
    for step in (1, 2):
        directory.save(moment(step))
    directory.settle()
    directory.keep_newest()
    loaded = directory.load()
    assert loaded is not None and loaded.position["step"] == 2
    assert [path.name[:17] for path in directory.checkpoints()] == ["checkpoint-000002"]


def test_a_checkpoint_that_cannot_be_written_costs_no_other(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(3):
        directory.save(moment(step))
    directory.settle()
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    monkeypatch.setattr("metadr.files.os.fsync", refuse)
    with pytest.raises(metadr.UserError, match="Nothing written before is lost"):
        directory.save(moment(3))
        directory.settle()
    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == before
    directory.settle()  # it has been told


def test_a_checkpoint_holds_the_moment_when_it_was_taken(directory: RunDirectory) -> None:
    """However long its writing takes: training goes on in the same tensors."""
    weights = torch.zeros(1 << 20)
    for step in range(5):
        weights.fill_(step)
        directory.save(Checkpoint({"step": step}, {"model/x": weights}))
        weights.fill_(-1)
        loaded = directory.load()
        assert loaded is not None
        assert loaded.tensors["model/x"].unique().tolist() == [step]


def test_a_forked_process_writes_checkpoints_of_its_own(directory: RunDirectory) -> None:
    directory.save(moment(1))
    directory.settle()
    child = os.fork()
    if child == 0:
        directory.save(moment(2))
        directory.settle()
        os._exit(0)
    deadline = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child waits for a thread that stayed with its parent")
        time.sleep(0.02)
    loaded = directory.load()
    assert loaded is not None
    assert loaded.position["step"] == 2


def test_a_run_is_not_let_go_of_before_its_checkpoint_is_written(directory: RunDirectory) -> None:
    with directory.claimed():
        directory.save(moment(7))
    assert len(list(directory.path.glob("checkpoint-*"))) == 1


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.save(moment(1))
    directory.save(moment(2))
    directory.settle()
    newest, older = directory.checkpoints()
    newest.write_bytes(newest.read_bytes()[:-1])
    loaded = directory.load()
    assert loaded is not None
    assert loaded.position["step"] == 1
    assert caplog.messages == [f"{newest} is damaged (its hash differs): trying the one before it."]
    older.write_bytes(b"")
    assert directory.load() is None
    assert caplog.messages[-1] == f"No checkpoint in {directory.path} is whole: starting afresh."
    directory.save(moment(3))
    loaded = directory.load()
    assert loaded is not None
    assert loaded.position["step"] == 3


def test_a_damaged_checkpoint_is_not_kept_in_the_place_of_a_whole_one(directory: RunDirectory) -> None:
    for step in (1, 2):
        directory.save(moment(step))
    directory.settle()
    damaged = directory.checkpoints()[0]
    damaged.write_bytes(b"")
    assert directory.load() is not None
    directory.save(moment(3))
    directory.settle()
    directory.checkpoints()[0].write_bytes(b"")
    loaded = directory.load()
    assert loaded is not None
    assert loaded.position["step"] == 1


def test_a_fresh_run_has_no_checkpoint_and_no_warning(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    assert directory.load() is None
    assert not caplog.messages
    assert not directory.finished


# Runs.


def test_a_run_that_goes_on_elsewhere_says_so(directory: RunDirectory) -> None:
    here, there = {"torch": "2.11", "gpu": None}, {"torch": "2.15", "gpu": None}
    directory.goes_on_with(here)  # of a run that has no such file nothing is made up
    assert not (directory.path / "environment.json").exists()
    directory.write("environment.json", {**here, "data": {"toy": "1"}})
    for now, known in ((here, []), (there, [there]), (there, [there]), (here, [there, here])):
        directory.goes_on_with(now)
        assert directory.read("environment.json").get("resumed", []) == known


def test_a_claim_is_exclusive_and_ends_with_its_block(directory: RunDirectory) -> None:
    with directory.claimed():
        assert directory.read("recipe.json") == directory.identity
        with pytest.raises(metadr.UserError, match=f"is being run by process {os.getpid()}"), directory.claimed():
            raise AssertionError("claimed twice")
    with directory.claimed():
        pass
    with pytest.raises(ZeroDivisionError), directory.claimed():
        raise ZeroDivisionError
    with directory.claimed():
        assert (directory.path / "lock").read_text() == str(os.getpid())


def test_finished_runs_are_those_with_the_last_file_written(tmp_path: Path) -> None:
    for name, files in {
        "whole": ("rows.json", "done.json"),
        "going": ("rows.json",),
        "odd": ("done.json",),
        "deep/er": ("rows.json", "done.json"),
    }.items():
        (tmp_path / name).mkdir(parents=True)
        for file in files:
            (tmp_path / name / file).write_text("[]")
    assert finished_runs(tmp_path) == [tmp_path / "deep/er", tmp_path / "whole"]
    assert finished_runs(tmp_path / "whole") == [tmp_path / "whole"]
