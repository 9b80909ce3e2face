"""Full disks, damaged files, foreign checkpoints, losses that explode, two processes: nothing good is ever lost."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import metadr
from metadr.core import Context, Domain
from metadr.parts import PARTS
from metadr.run import advance
from metadr.store import Checkpoint, RunDirectory

# One checkpoint at the start, four within each domain (after steps 10, 20, 30 and 35) and one at its end: 11 in all.
FIELDS: dict[str, Any] = {"order": "handwritten,blended", "steps": 35}
SETTINGS = [word for name, value in FIELDS.items() for word in ("--set", f"{name}={value}")]
RUN = ("run", "embedded", "--tiny", "--device", "cpu", "--checkpoint-seconds", "0", *SETTINGS)


@pytest.fixture(scope="module")
def whole(launch: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    out = tmp_path_factory.mktemp("whole")
    assert launch(*RUN, "--out", str(out)).code == 0
    return only_run(out)


@pytest.fixture
def stopped(launch: Callable[..., Any], tmp_path: Path) -> Path:
    """The same run, killed soon after the seventh checkpoint: in the second domain, with one more to fall back on."""

    def kill(pid: int) -> None:
        until(lambda: any(tmp_path.rglob("checkpoint-000007-*.safetensors")))
        os.kill(pid, signal.SIGKILL)

    assert launch(*RUN, "--out", str(tmp_path), meanwhile=kill).code == -signal.SIGKILL
    path = only_run(tmp_path)
    for older in checkpoints(path)[:-2]:  # killed between writing one and dropping the last but one
        older.unlink()
    assert len(checkpoints(path)) == 2
    assert not (path / "done.json").exists()
    return path


def only_run(out: Path) -> Path:
    (path,) = (out / "embedded").iterdir()
    return path


def checkpoints(path: Path) -> list[Path]:
    """Oldest first."""
    return sorted(path.glob("checkpoint-*.safetensors"))


def contents(folder: Path) -> dict[str, bytes]:
    """All that a run has found: not who holds it, nor what a kill left half-written."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "lock" and path.suffix != ".part"}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.001)


def assert_same_result(one: Path, other: Path) -> None:
    mine, theirs = load_file(checkpoints(one)[-1]), load_file(checkpoints(other)[-1])
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name
    assert (one / "rows.json").read_bytes() == (other / "rows.json").read_bytes()
    assert (one / "done.json").exists()


def assert_told(ended: Any, *words: str) -> None:
    assert ended.code == 2, ended
    assert ended.err.startswith("Error: "), ended.err
    assert ended.err.count("\n") == 1, ended.err
    assert not ended.out
    for word in words:
        assert word in ended.err


def test_a_full_disk_loses_nothing(launch: Callable[..., Any], whole: Path, stopped: Path, tmp_path: Path) -> None:
    """The system refuses files of the size of a checkpoint with an optimiser in it; the first has none."""
    largest = max(path.stat().st_size for path in checkpoints(stopped)) - 4096
    out = tmp_path / "full"
    ended = launch(*RUN, "--out", str(out), largest_file=largest)
    assert_told(ended, "Cannot write", "checkpoint-000002", "File too large", "Nothing written before is lost")
    path = only_run(out)
    assert [file.name[:17] for file in checkpoints(path)] == ["checkpoint-000001"]
    assert contents(path).keys() == {"recipe.json", "environment.json", "rows.json", checkpoints(path)[0].name}
    before = contents(path)
    assert launch(*RUN, "--out", str(out), largest_file=largest).code == 2
    assert contents(path) == before
    assert launch(*RUN, "--out", str(out)).code == 0
    assert_same_result(path, whole)


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": flip,
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checkpoint_before_a_damaged_one_is_used(
    damage: str, launch: Callable[..., Any], whole: Path, stopped: Path
) -> None:
    newest = checkpoints(stopped)[-1]
    newest.write_bytes(DAMAGES[damage](newest.read_bytes()))
    ended = launch(*RUN, "--out", str(stopped.parents[1]))
    assert ended.code == 0
    assert ended.err == f"{newest} is damaged (its hash differs): trying the one before it.\n"
    assert_same_result(stopped, whole)


def test_a_run_whose_checkpoints_are_all_damaged_starts_afresh(
    launch: Callable[..., Any], whole: Path, stopped: Path
) -> None:
    for checkpoint in checkpoints(stopped):
        checkpoint.write_bytes(flip(checkpoint.read_bytes()))
    ended = launch(*RUN, "--out", str(stopped.parents[1]))
    assert ended.code == 0
    assert ended.err.count("is damaged") == 2
    assert ended.err.endswith(f"No checkpoint in {stopped} is whole: starting afresh.\n")
    assert_same_result(stopped, whole)


def test_a_checkpoint_of_another_recipe_is_refused(
    launch: Callable[..., Any], whole: Path, stopped: Path, tmp_path: Path
) -> None:
    assert launch(*RUN, "--out", str(tmp_path / "other"), "--set", "lr=0.5").code == 0
    foreign = checkpoints(only_run(tmp_path / "other"))[-1]
    assert foreign.name.startswith("checkpoint-000011")
    shutil.copy(foreign, stopped)
    before = contents(stopped)
    ended = launch(*RUN, "--out", str(stopped.parents[1]))
    assert_told(ended, f"{stopped / foreign.name} belongs to another recipe", "or remove it to start this one afresh.")
    assert contents(stopped) == before
    (stopped / foreign.name).unlink()
    assert launch(*RUN, "--out", str(stopped.parents[1])).code == 0
    assert_same_result(stopped, whole)


@pytest.mark.parametrize("content", ["{", "{}"], ids=["half", "another"])
def test_a_folder_that_describes_another_run_is_refused(
    content: str, launch: Callable[..., Any], stopped: Path
) -> None:
    (stopped / "recipe.json").write_text(content)
    before = contents(stopped)
    ended = launch(*RUN, "--out", str(stopped.parents[1]))
    assert_told(ended, str(stopped / "recipe.json"), "folder to run")
    assert contents(stopped) == before


def test_a_finished_run_whose_scores_are_damaged_is_told(
    make_toy: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    make_toy()
    result = metadr.run(metadr.recipe("toy"), out=tmp_path, device="cpu")
    (result.path / "rows.json").write_text("[")
    assert_told(command("run", "toy", "--out", tmp_path), f"Cannot read {result.path / 'rows.json'}", "run this afresh")


@pytest.mark.parametrize("fields", [("lr=1e30",), ("optimizer=sgd", "lr=1e20")], ids=" ".join)
def test_a_loss_that_explodes_stops_the_run_and_keeps_the_last_good_checkpoint(
    fields: tuple[str, ...], make_toy: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    make_toy()
    settings = [word for field in fields for word in ("--set", field)]
    ended = command("run", "toy", "--checkpoint-seconds", 0, "--out", tmp_path, *settings)
    assert_told(ended, "at step 2 of domain 'a'", "The last good checkpoint is kept. Lower lr")
    (path,) = (tmp_path / "toy").iterdir()
    (kept,) = checkpoints(path)
    assert all(value.isfinite().all() for value in load_file(kept).values())
    assert not (path / "done.json").exists()
    assert len(json.loads((path / "rows.json").read_text())) == 3


def test_a_loss_that_explodes_in_the_second_domain_names_it(
    make_toy: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    make_toy()
    ended = command("run", "toy", "--out", tmp_path, "--set", "later_lr=1e30", "--set", "steps=13")
    assert_told(ended, "The loss is ", "of domain 'b' in")
    (path,) = (tmp_path / "toy").iterdir()
    recipe = metadr.recipe("toy", later_lr=1e30, steps=13)
    kept = RunDirectory(tmp_path, recipe, 0).load()
    assert kept is not None
    assert (kept.position["stage"], kept.position["step"]) == (1, 0)
    assert all(value.isfinite().all() for value in kept.tensors.values())
    assert len(json.loads((path / "rows.json").read_text())) == 2 * 3


def test_an_inner_step_that_explodes_stops_the_run(
    make_toy: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    make_toy()
    ended = command("run", "toy", "--method", "meta-dr", "--set", "inner_lr=1e30", "--out", tmp_path)
    assert_told(ended, "The loss is ", "at step 1 of domain 'a'", "inner_lr")


@dataclass(frozen=True)
class Burst(metadr.Part):
    """A gradient that is not finite, behind a loss that is."""

    name: ClassVar[str] = "burst"

    def gradient(self, grads: list[Tensor], ctx: Context) -> list[Tensor]:
        return [grad * float("nan") for grad in grads]


def test_weights_that_explode_in_the_last_step_of_a_domain_are_not_a_result(
    make_toy: Callable[..., Any], command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No later loss of the domain would show it: the model would be tested, saved and reported."""
    make_toy()
    monkeypatch.setitem(PARTS, "burst", Burst)
    ended = command("run", "toy", "--method", "burst", "--set", "steps=1", "--set", "order=a", "--out", tmp_path)
    assert_told(ended, "The weights are no longer finite after step 1 of domain 'a'")
    (path,) = (tmp_path / "toy").iterdir()
    (kept,) = checkpoints(path)
    assert all(value.isfinite().all() for value in load_file(kept).values())


def test_a_run_that_this_process_holds_is_refused_to_another(
    launch: Callable[..., Any], whole: Path, stopped: Path
) -> None:
    out = stopped.parents[1]
    directory = RunDirectory(out, metadr.recipe("embedded", tiny=True, **FIELDS), 0)
    assert directory.path == stopped
    before = contents(stopped)
    with directory.claimed():
        ended = launch(*RUN, "--out", str(out))
    assert_told(ended, f"Run {stopped} is being run by process {os.getpid()}.", "Wait for it, or stop it")
    assert contents(stopped) == before
    assert launch(*RUN, "--out", str(out)).code == 0
    assert_same_result(stopped, whole)


def test_a_run_that_another_process_holds_is_refused_to_this_one(
    launch: Callable[..., Any], whole: Path, tmp_path: Path
) -> None:
    told = []

    def meddle(pid: int) -> None:
        until(lambda: any(tmp_path.rglob("checkpoint-000001-*.safetensors")))
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(metadr.UserError) as refusal:
            metadr.run(metadr.recipe("embedded", tiny=True, **FIELDS), out=tmp_path, device="cpu")
        os.kill(pid, signal.SIGCONT)
        told.append((str(refusal.value), pid))

    assert launch(*RUN, "--out", str(tmp_path), meanwhile=meddle).code == 0
    ((sentence, pid),) = told
    assert f"is being run by process {pid}." in sentence
    assert_same_result(only_run(tmp_path), whole)


def test_a_run_does_not_go_on_on_other_data(
    make_toy: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    """The benchmark says that its data are the same; one pixel is not."""
    benchmark = make_toy()
    run = ("run", "toy", "--checkpoint-seconds", 0, "--set", "steps=25", "--device", "cpu")
    recipe = metadr.recipe("toy", steps=25)
    whole = metadr.run(recipe, out=tmp_path / "whole", device="cpu")
    going = advance(recipe, out=tmp_path / "left", device="cpu", checkpoint_seconds=0)
    for _ in range(3):
        next(going)
    going.close()
    path = RunDirectory(tmp_path / "left", recipe, 0).path
    before = contents(path)

    def changed(name: str) -> Domain:
        domain: Domain = benchmark.load(name)
        domain.test.x[0, 0, 0, 0] ^= 1
        return domain

    make_toy(load=changed)
    ended = command(*run, "--out", tmp_path / "left")
    assert_told(ended, f"The data of run {path} have changed since it was started.", "Restore them")
    assert contents(path) == before
    make_toy()
    assert command(*run, "--out", tmp_path / "left").code == 0
    assert_same_result(path, whole.path)


def test_a_run_does_not_go_on_on_another_kind_of_device(
    make_toy: Callable[..., Any], command: Callable[..., Any], tmp_path: Path
) -> None:
    make_toy()
    directory = RunDirectory(tmp_path, metadr.recipe("toy"), 0)
    directory.path.mkdir(parents=True)
    directory.save(Checkpoint({"stage": 0, "step": 1, "device": "cuda", "data": []}, {"x": torch.zeros(1)}))
    directory.settle()
    ended = command("run", "toy", "--device", "cpu", "--out", tmp_path)
    assert_told(ended, "was started on cuda and cannot go on on cpu. Use --device cuda, or another --out.")
    assert len(checkpoints(directory.path)) == 1
