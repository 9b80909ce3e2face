"""Sweeps: the bits of one run after another, what a failure or a stop leaves, what is said of it."""

import dataclasses
import json
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from metadr.core import Part, Recipe
from metadr.errors import UserError
from metadr.parts import EWC, GEM, MetaDR, Randomize, Replay
from metadr.sequence import Progress
from metadr.store import RunDirectory
from metadr.sweep import Job, Standing, each_reason_once, plan, sweep

pytestmark = pytest.mark.usefixtures("whole_ends")


class Watched(NamedTuple):
    shown: list[str]
    ended: list[str]
    standings: list[Standing]


@pytest.fixture
def watched() -> Any:
    """Writes down all that a sweep tells its watcher."""

    class Watcher:
        def __init__(self) -> None:
            self.seen = Watched([], [], [])

        def show(self, title: str, now: Progress) -> None:
            self.seen.shown.append(title)

        def end(self, title: str, text: str) -> None:
            self.seen.ended.append(text)

        def overall(self, now: Standing) -> None:
            self.seen.standings.append(now)

    return Watcher()


@dataclasses.dataclass(frozen=True)
class Breaking(Part):
    """A part that fails on the second domain."""

    name = "breaking"

    def penalty(self, raw: Any, batch: Any, ctx: Any) -> float:
        if ctx.state:
            raise ArithmeticError("out of luck")
        return 0.0

    def end_domain(self, domain: Any, ctx: Any) -> dict[str, Tensor]:
        return {"ended": torch.ones(())}


METHODS = ((), (MetaDR(),), (Replay(), GEM(), EWC()))


def test_a_sweep_side_by_side_gives_the_bits_of_one_after_another(registered_toys, toys, tmp_path, jobs_of):
    jobs = [job for toy in toys.TOYS.values() for job in jobs_of(toy, *METHODS, seeds=2)]
    for lanes in (1, 3):
        outcome = sweep(jobs, out=tmp_path / str(lanes), device="cpu", lanes=lanes)
        assert sorted(outcome.done, key=jobs.index) == jobs
        assert outcome.failed == []
    for job in jobs:
        toys.assert_same_bits(toys.final(tmp_path / "3", job), toys.final(tmp_path / "1", job))


def test_a_sweep_goes_on_when_a_run_fails_and_keeps_its_traceback(
    registered_toys, classification, watched, tmp_path, jobs_of
):
    jobs = jobs_of(classification, (), (Breaking(),), (Randomize(),))
    outcome = sweep(jobs, out=tmp_path, device="cpu", lanes=3, watcher=watched)
    assert sorted(outcome.done, key=jobs.index) == [jobs[0], jobs[2]]  # which of them ends first is up to the disk
    assert outcome.failed == [(jobs[1], "ArithmeticError: out of luck")]
    directory = RunDirectory(tmp_path, jobs[1].recipe, 0)
    kept = json.loads((directory.path / "failed.json").read_text())
    assert kept["reason"] == "ArithmeticError: out of luck"
    assert 'raise ArithmeticError("out of luck")' in kept["traceback"]
    assert not directory.finished
    assert len(list(tmp_path.rglob("failed.json"))) == 1
    assert len(list(tmp_path.rglob("done.json"))) == 2
    first, *others = [text.partition(" in ")[0] for text in watched.seen.ended]
    assert first == "toy-shapes breaking seed 0: failed"
    assert sorted(others) == ["toy-shapes dr seed 0: done", "toy-shapes naive seed 0: done"]
    assert set(watched.seen.shown) == {job.title for job in jobs}
    with directory.claimed():  # nobody holds it any more
        pass


def test_a_stop_leaves_checkpoints_and_a_second_call_goes_on_to_the_same_bits(
    registered_toys, classification, toys, tmp_path, after, jobs_of
):
    jobs = jobs_of(classification, *METHODS, steps=12)
    sweep(jobs, out=tmp_path / "whole", device="cpu")
    stops, done = 0, set()
    while len(done) < len(jobs) and stops < 40:
        missing = plan([job.recipe for job in jobs], [0], tmp_path / "stopped").missing
        outcome = sweep(missing, out=tmp_path / "stopped", device="cpu", lanes=2, stop=after(3))
        assert outcome.failed == []
        assert not done & set(outcome.done)
        done |= set(outcome.done)
        stops += 1
        if stops == 1:
            saved = [RunDirectory(tmp_path / "stopped", job.recipe, 0).load() for job in jobs]
            assert [each and (each.position["stage"], each.position["step"]) for each in saved] == [
                (0, 10),
                (0, 10),
                None,
            ]
    assert len(done) == len(jobs)
    assert stops > 3
    for job in jobs:
        toys.assert_same_bits(toys.final(tmp_path / "stopped", job), toys.final(tmp_path / "whole", job))


def test_a_precision_that_the_device_lacks_is_refused_once(registered_toys, classification, tmp_path):
    recipe = classification.recipe(overrides=(("precision", "tf32"),))
    with pytest.raises(UserError, match="Precision 'tf32' needs a GPU, and this run is on cpu"):
        sweep([Job(recipe, 0), Job(recipe, 1)], out=tmp_path, device="cpu")
    assert not list(tmp_path.iterdir())


def test_a_sweep_tells_its_watcher_of_every_turn(registered_toys, classification, watched, tmp_path, jobs_of):
    jobs = jobs_of(classification, (), (Randomize(),), seeds=2)
    sweep(jobs, out=tmp_path, device="cpu", lanes=2, watcher=watched)
    standings = watched.seen.standings
    assert len(standings) == 4 * (3 + 1)  # three domains of one turn, and the end
    assert all(now.done + now.running + now.left == 4 for now in standings)
    assert max(now.running for now in standings) == 2
    assert (standings[-1].done, standings[-1].running, standings[-1].left) == (4, 0, 0)
    assert standings[-1].seconds_left == 0
    assert len(watched.seen.shown) == 4 * 3


def test_a_plan_names_every_wrong_recipe_and_starts_nothing(registered_toys, classification, tmp_path):
    good = classification.recipe()
    wrong = [
        Recipe("toy-shapes", ("red", "purple")),
        dataclasses.replace(good, overrides=(("model", "toy_nett"),)),
    ]
    with pytest.raises(UserError, match=r"Nothing was started\. .*'purple'.*'toy_nett'"):
        plan([good, *wrong], [0], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_reason_that_many_share_is_told_once():
    assert each_reason_once([("naive", "No."), ("dr", "Never."), ("er", "No."), ("er", "No.")]) == (
        "naive, er: No. dr: Never."
    )
    many = [(f"run {number}", "It is full.") for number in range(11)]
    assert each_reason_once(many).endswith("run 6, run 7 and 3 more: It is full.")
    own = [(f"run {number}", f"Place {number} is full.") for number in range(11)]
    assert each_reason_once(own).endswith(" run 7: Place 7 is full. And 3 more like these.")
