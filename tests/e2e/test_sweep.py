"""`metadr sweep`: what is missing is run, until the time is up, and what fails is told."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch

import metadr
from metadr import sweep
from metadr.recipes import get_table
from metadr.stopping import Stop
from metadr.store import RunDirectory

Command = Callable[..., Any]
TableOf = Callable[[str], list[list[str]]]


def done_times(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.rglob("done.json")}


def test_a_sweep_sets_what_a_recipe_has(command: Command, tmp_path: Path) -> None:
    """Of its training for all, and of parts where they are."""
    words = ["--set", "steps=1", "--set", "dr.per=batch", "--set", "recall=0.5"]
    ended = command("sweep", "demo", "--tiny", *words, "--out", tmp_path, "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    made = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("embedded/*/recipe.json"))]
    assert {each["training"]["steps"] for each in made} == {1}
    parts = {part["part"]: part for each in made for part in each["method"]}
    assert (parts["dr"]["per"], parts["meta-dr"]["per"], parts["meta-dr"]["recall"]) == ("batch", "image", 0.5)


def test_a_sweep_runs_what_is_missing_only(table_of: TableOf, command: Command, tmp_path: Path) -> None:
    first = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert (first.code, first.err) == (0, "")
    assert "3 recipes x 1 seed, 0 finished, 3 to run." in first.out
    assert first.out.count("done in") == 3
    before = done_times(tmp_path)
    assert len(before) == 3

    again = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert again.code == 0
    assert "3 finished, 0 to run." in again.out
    assert "done in" not in again.out
    assert done_times(tmp_path) == before
    assert table_of(again.out) == table_of(first.out)

    (tmp_path / "demo-tiny.md").unlink()
    next(path for path in before if "meta-dr" in str(path)).unlink()
    third = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert "2 finished, 1 to run." in third.out
    assert third.out.count("done in") == 1
    assert table_of(third.out) == table_of(first.out)
    assert (tmp_path / "demo-tiny.md").exists()

    some = command("sweep", "demo", "--row", "Naive", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert "1 recipe x 1 seed, 1 finished, 0 to run." in some.out
    assert table_of(some.out) == table_of(first.out)  # of all that was run

    several = command("sweep", "embedded", "demo", "--row", "naive", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert several.out.index("embedded: ") < several.out.index("demo: ") < several.out.index("embedded-tiny.md")
    _, after = several.out.split("embedded-tiny.png")
    assert table_of(after) == table_of(first.out)


def test_a_sweep_stops_when_its_time_is_up_and_goes_on_later(command: Command, tmp_path: Path) -> None:
    words = ("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    stopped = command(*words, "--minutes", 0)
    assert (stopped.code, stopped.err) == (0, "")
    assert stopped.out.endswith("Time is up with 3 runs left. The same command goes on from the last checkpoints.\n")
    assert not list(tmp_path.rglob("done.json"))
    ended = command(*words, "--minutes", 60, "--lanes", 2)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("done in") == 3
    assert "Time is up" not in ended.out
    assert len(done_times(tmp_path)) == 3


def test_a_sweep_of_whole_runs_leaves_those_that_would_not_end_in_time(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("sweep", "demo", "--tiny", "--seeds", 3, "--out", tmp_path, "--device", "cpu", "--minutes", 60)
    monkeypatch.setattr(Stop, "seconds_left", lambda self: 1e-6)  # always: it is never up, and nothing would end in it
    some = command(*words, "--whole")
    assert (some.code, some.err) == (0, "")
    assert some.out.count("done in") == 3  # the first of each method, of which nothing is known
    assert "demo: 3 of 9 runs done, 0 failed" in some.out
    assert some.out.endswith(
        "Not started: 6 runs, to end in time. The same command goes on from the last checkpoints.\n"
    )
    others = command(*words)
    assert (others.code, others.err) == (0, "")
    assert others.out.count("done in") == 6
    assert "Left out" not in others.out
    assert len(done_times(tmp_path)) == 9


def test_whole_runs_without_a_time_are_one_sentence(command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--whole")
    assert (ended.code, ended.out) == (2, "")
    told = "--whole starts only runs that will end in time, and no time is given. Add --minutes 9 or so."
    assert ended.err == f"Error: {told}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lanes", ["0", "-1", "many", "1.5", "²", ""])
def test_a_number_of_lanes_that_is_none(lanes: str, command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--lanes", lanes)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"Error: --lanes must be 'auto' or a whole number >= 1. Got '{lanes}' instead.\n"
    assert not list(tmp_path.iterdir())


def test_a_sweep_in_a_precision_that_the_device_lacks_is_one_sentence(command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu", "--set", "precision=tf32")
    assert ended.code == 2
    assert ended.err == "Error: Precision 'tf32' needs a GPU, and this run is on cpu. Use fp32, bf16 or a GPU.\n"
    assert not list(tmp_path.iterdir())


def test_a_sweep_in_half_precision_is_another_one(command: Command, tmp_path: Path) -> None:
    words = ("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    half = command(*words, "--set", "precision=bf16")
    assert (half.code, half.err) == (0, "")
    full = command(*words)
    assert (full.code, full.err) == (0, "")
    assert "0 finished, 3 to run." in full.out
    assert len(done_times(tmp_path)) == 6


def test_a_sweep_of_every_method_gives_one_row_each(table_of: TableOf, command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "embedded", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    rows = [
        line.split("|")[1].strip()
        for line in (tmp_path / "embedded-tiny.md").read_text().splitlines()
        if line[:1] == "|"
    ]
    plain, memory = ["Naive", "Naive + DR", "Meta-DR", "L2", "L2 + DR", "EWC", "EWC + DR"], ["GEM", "GEM + DR"]
    memory += ["ER", "ER + DR", "ER + Meta-DR"]
    assert rows == ["method", "---", *plain, *memory, "Oracle (all)", "Oracle (cumul.)"]
    assert len(table_of(ended.out)) == 1 + 14


def test_a_failed_run_is_a_stored_result_and_the_others_go_on(
    table_of: TableOf, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, raw: object, batch: object, ctx: object) -> float:
        raise ArithmeticError("the meta-learner is out")

    with monkeypatch.context() as patch:
        patch.setattr(metadr.MetaDR, "penalty", broken)
        ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert ended.code == 2
    assert "1 of 3 runs failed" in ended.err
    assert "meta-dr seed 0: ArithmeticError: the meta-learner is out" in ended.err
    assert "Traceback" not in ended.err
    assert [row[0] for row in table_of(ended.out)] == ["method", "Naive", "Naive"]
    (failed,) = tmp_path.rglob("failed.json")
    assert "meta-dr" in failed.parent.name
    stored = json.loads(failed.read_text())
    assert stored["reason"] == "ArithmeticError: the meta-learner is out"
    assert 'raise ArithmeticError("the meta-learner is out")' in stored["traceback"]
    assert not (failed.parent / "done.json").exists()
    assert len(list(tmp_path.rglob("done.json"))) == 2

    repaired = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert (repaired.code, repaired.err) == (0, "")
    assert "2 finished, 1 to run." in repaired.out
    assert not list(tmp_path.rglob("failed.json"))


def test_a_device_without_memory_is_one_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, raw: object, batch: object, ctx: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has 8 GiB.\nSee the manual.")

    monkeypatch.setattr(metadr.MetaDR, "penalty", full)
    sentence = "The device is out of memory (CUDA out of memory). Use a smaller batch_size, --set recompute=true, "
    alone = command("run", "embedded", "--method", "meta-dr", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert (alone.code, alone.out) == (2, "")
    assert alone.err.startswith(f"Error: {sentence}")
    among = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert among.code == 2
    assert f"meta-dr seed 0: {sentence}" in among.err


def test_a_failed_run_of_a_sweep_that_is_run_by_itself_has_not_failed(
    make_toy: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_toy()
    recipe = metadr.recipe("toy", "l2", tiny=True)
    with monkeypatch.context() as patch:
        patch.setattr(metadr.L2, "end_domain", None)
        outcome = sweep.sweep([sweep.Job(recipe, 0)], out=tmp_path, device="cpu")
    assert [job.recipe for job, _ in outcome.failed] == [recipe]
    assert list(tmp_path.rglob("failed.json"))
    assert metadr.run(recipe, out=tmp_path, device="cpu").rows
    assert not list(tmp_path.rglob("failed.json"))


def test_a_sweep_waits_for_a_run_that_another_process_has(command: Command, tmp_path: Path) -> None:
    held = RunDirectory(tmp_path, get_table("demo", tiny=True).recipes[0], 0)
    found: list[set[str]] = []

    def hold() -> None:
        with held.claimed():
            claimed.set()
            before = {path.name for path in held.path.iterdir()}
            deadline = time.monotonic() + 60
            while len(done_times(tmp_path)) < 2 and time.monotonic() < deadline:
                time.sleep(0.05)
            found.extend([before, {path.name for path in held.path.iterdir()}])

    claimed = Event()
    holder = Thread(target=hold)
    holder.start()
    claimed.wait(60)
    ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    holder.join()
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("waits: another process has it") == 1
    assert found[0] == found[1]  # it was left alone
    assert len(done_times(tmp_path)) == 3
