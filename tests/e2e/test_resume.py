"""Runs that are killed, stopped or left in the middle end with the same bits as runs that never were."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import metadr
from metadr import models
from metadr.run import advance
from metadr.sequence import Progress
from metadr.store import RunDirectory

RUN = ("run", "embedded", "--tiny", "--checkpoint-seconds", "0", "--device", "cpu")
ORDER = "order=handwritten,blended,rendered"
STEPS = 21
# One checkpoint at the start, three within each domain (after steps 10, 20 and 21) and one at its end: 13 in all.
CHECKPOINTS = 1 + 3 * 4
BEFORE_SWITCH = (4, 8)  # the last checkpoint within a domain: next come its end, the test and the next domain's start
KILLS = 5  # attempts; on a busy machine a late one may come too late

METHODS = {
    "naive": ("naive",),
    "sgd": ("naive", "optimizer=sgd", "momentum=0.9", "lr=0.01", "later_lr=0.01"),
    "dr+er": ("dr+er", "memory_per_domain=5"),
    "ewc+meta-dr": ("ewc+meta-dr", "inner_lr=0.05"),
    "gem": ("gem", "memory_per_domain=4"),
}


def arguments(name: str, out: Path) -> list[str]:
    method, *fields = METHODS[name]
    settings = [word for field in (ORDER, f"steps={STEPS}", *fields) for word in ("--set", field)]
    return [*RUN, "--method", method, *settings, "--out", str(out)]


def only_run(out: Path) -> Path:
    (path,) = (out / "embedded").iterdir()
    return path


def count(out: Path) -> int:
    """The number of the newest checkpoint, by its name; 0 before there is one."""
    return max((int(path.name.split("-")[1]) for path in out.glob("*/*/checkpoint-*.safetensors")), default=0)


def newest(path: Path) -> Path:
    return max(path.glob("checkpoint-*.safetensors"))


def position(checkpoint: Path) -> dict[str, Any]:
    data = checkpoint.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    found: dict[str, Any] = json.loads(header["__metadata__"]["position"])
    return {name: value for name, value in found.items() if name not in ("seconds", "own_seconds")}


def assert_same_tensors(one: Path, other: Path) -> None:
    mine, theirs = load_file(one), load_file(other)
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        assert value.dtype == theirs[name].dtype, name
        assert torch.equal(value, theirs[name]), name


def assert_same_result(one: Path, other: Path) -> None:
    """Every tensor of the network at the end, where it stands, and every score."""
    assert_same_tensors(newest(one), newest(other))
    assert position(newest(one)) == position(newest(other))
    assert (one / "rows.json").read_bytes() == (other / "rows.json").read_bytes()
    assert (one / "recipe.json").read_bytes() == (other / "recipe.json").read_bytes()


@pytest.mark.parametrize("name", METHODS)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    name: str, launch: Callable[..., Any], tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert launch(*arguments(name, whole)).code == 0
    rng = random.Random(name)
    switch = rng.choice(BEFORE_SWITCH)
    moments = sorted([switch, *rng.sample([moment for moment in range(1, 11) if moment != switch], KILLS - 1)])
    interrupted = 0
    for moment in moments:
        wait = rng.uniform(0, 0.02)

        def kill(pid: int, moment: int = moment, wait: float = wait) -> None:
            until(lambda: count(killed) >= moment)
            time.sleep(wait)
            os.kill(pid, signal.SIGKILL)

        ended = launch(*arguments(name, killed), meanwhile=kill)
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL, ended
        assert not (only_run(killed) / "done.json").exists()
        assert moment <= count(killed) <= CHECKPOINTS
        interrupted += 1
    assert interrupted >= KILLS - 2
    ended = launch(*arguments(name, killed))
    assert ended.code == 0, ended
    assert ended.out.startswith("This run went on from a checkpoint.\n")
    assert count(whole) == count(killed) == CHECKPOINTS
    assert_same_result(only_run(whole), only_run(killed))
    assert not list(only_run(killed).glob("*.part"))


def test_a_checkpoint_holds_all_that_a_method_keeps_and_the_last_one_no_optimiser(tmp_path: Path) -> None:
    """The comparison above would pass on nothing: here is what runs go on from, and what it compares."""
    held = {}
    for name in ("sgd", "dr+er", "ewc+meta-dr", "gem"):
        method, *fields = METHODS[name]
        settings = dict(field.split("=") for field in (ORDER, "steps=1", *fields))
        recipe = metadr.recipe("embedded", method, tiny=True, **settings)
        going = advance(recipe, out=tmp_path / name, device="cpu")
        assert [next(going).stage for _ in range(3)] == [0, 1, 2]
        going.close()
        held[name] = set(load_file(newest(only_run(tmp_path / name))))
        path = metadr.run(recipe, out=tmp_path / name, device="cpu").path
        (last,) = path.glob("checkpoint-*.safetensors")
        kept = set(load_file(last))
        assert {tensor for tensor in held[name] if not tensor.startswith("optimizer/")} <= kept
        assert not [tensor for tensor in kept if tensor.startswith("optimizer/")]
    for tensors in held.values():
        assert {"stream/outer", "stream/memory", "stream_of_layers"} <= tensors
        assert any(tensor.startswith("model/") and tensor.endswith("running_mean") for tensor in tensors)
    assert "optimizer/0/momentum_buffer" in held["sgd"]
    assert {"optimizer/0/exp_avg_sq", "stream/dr", "stream/er", "memory/0/x", "memory/1/y"} <= held["dr+er"]
    assert any(tensor.startswith("part/ewc/") for tensor in held["ewc+meta-dr"])
    assert {"stream/gem", "memory/0/x"} <= held["gem"]


def test_a_run_that_ended_just_before_it_was_marked_as_done(launch: Callable[..., Any], tmp_path: Path) -> None:
    run = arguments("naive", tmp_path)
    assert launch(*run).code == 0
    path = only_run(tmp_path)
    before = {file.name: file.read_bytes() for file in path.iterdir() if file.name not in ("lock", "done.json")}
    (path / "done.json").unlink()
    (path / "rows.json").unlink()
    assert launch(*run).code == 0
    assert (path / "done.json").exists()
    assert before == {file.name: file.read_bytes() for file in path.iterdir() if file.name not in ("lock", "done.json")}


def test_an_end_that_is_damaged_before_it_is_marked_as_done_is_reached_again(
    make_toy: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then the checkpoint before it is there, with all that going on takes."""
    make_toy()
    recipe = metadr.recipe("toy", "er", tiny=True)
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "keep_newest", lambda directory: None)  # killed before that
        ended = metadr.run(recipe, out=tmp_path, device="cpu")
    older, end = sorted(ended.path.glob("checkpoint-*.safetensors"))
    kept = {name: value.clone() for name, value in load_file(end).items()}  # not as the file is about to be
    assert "stream/er" in load_file(older) and set(load_file(older)) < set(kept)  # of one domain less
    end.write_bytes(end.read_bytes()[:-1])
    (ended.path / "done.json").unlink()
    again = metadr.run(recipe, out=tmp_path, device="cpu")
    assert again.rows == ended.rows
    (end,) = ended.path.glob("checkpoint-*.safetensors")
    assert load_file(end).keys() == kept.keys()
    assert all(torch.equal(value, kept[name]) for name, value in load_file(end).items())


class Dropping(nn.Sequential):
    """A network that draws by itself: dropout, besides batch norm."""

    def __init__(self, num_classes: int) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(144, num_classes)
        )


@pytest.mark.parametrize("checkpoint_seconds", [0, 1e9], ids=["every-chunk", "domain-ends-only"])
@pytest.mark.parametrize("method", ["naive", "er+meta-dr", "dr+ewc+gem", "oracle-cumulative"])
def test_a_generator_that_is_closed_in_the_middle_goes_on_with_the_same_bits(
    method: str,
    checkpoint_seconds: float,
    make_toy: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    whole_ends: None,
) -> None:
    make_toy()
    monkeypatch.setitem(models.MODELS, "dropping", Dropping)
    recipe = metadr.recipe("toy", method, tiny=True, model="dropping", steps=21)
    whole = metadr.run(recipe, seed=3, out=tmp_path / "whole", device="cpu")
    left: list[Progress] = []
    for looks in (1, 2, 1, 3):  # closing it leaves a checkpoint of that moment, whatever the time between checkpoints
        going = advance(recipe, 3, out=tmp_path / "left", device="cpu", checkpoint_seconds=checkpoint_seconds)
        left.append([next(going) for _ in range(looks)][-1])
        going.close()
        assert not RunDirectory(tmp_path / "left", recipe, 3).finished
    resumed = metadr.run(recipe, seed=3, out=tmp_path / "left", device="cpu", checkpoint_seconds=checkpoint_seconds)
    assert [(now.domain, now.step) for now in left] == [("a", 10), ("a", 21), ("b", 10), ("c", 10)]
    assert resumed.rows == whole.rows
    assert_same_tensors(newest(resumed.path), newest(whole.path))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.001)
