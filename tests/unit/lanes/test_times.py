"""How long a sweep takes: what it says of that, and the runs that it starts in the time it has."""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from metadr import sweep as sweep_module
from metadr.benchmarks import steps_of
from metadr.core import Recipe
from metadr.parts import MetaDR, Randomize
from metadr.sequence import Progress
from metadr.sweep import Job, Standing, sweep


def tally_of(jobs: list[Job]) -> Any:
    """What a sweep of these runs counts."""
    made: Any = sweep_module._Tally(jobs)
    made.jobs = jobs
    return made


# What a sweep says of itself.


@pytest.fixture
def tally(registered_toys, classification, jobs_of, clock) -> Any:
    """Of runs of three domains of 100 steps, with two methods."""
    return tally_of(jobs_of(classification, (), (MetaDR(),), steps=100))


def test_a_sweep_says_how_far_it_is_and_how_long_it_will_take(tally, clock, progress):
    first, second = tally.jobs
    assert tally.standing(0) == Standing(done=0, running=0, left=2, steps_per_second=0.0, seconds_left=None)
    tally.start(first)
    assert tally.standing(0) == Standing(0, 1, 1, 0.0, None)  # it loads its data, or is tested untrained
    tally.went_on(first, progress(20, stage=1, num_stages=3, num_steps=100))
    clock(10)
    # What was there before is not counted as taken here.
    assert tally.standing(0) == Standing(0, 1, 1, 0.0, None)
    tally.went_on(first, progress(70, stage=1, num_stages=3, num_steps=100))
    assert tally.standing(0) == Standing(0, 1, 1, 5.0, (130 + 300) / 5)
    tally.start(second)
    tally.went_on(second, progress(50, stage=0, num_stages=3, num_steps=100))
    tally.went_on(first, progress(100, stage=2, num_stages=3, num_steps=100))
    clock(8)
    assert tally.ended(first) == 18
    assert tally.standing(1) == Standing(1, 1, 0, 10.0, 25.0)


def test_a_failed_run_is_not_counted_as_fast(tally, clock, progress):
    first, second = tally.jobs
    tally.start(first)
    tally.went_on(first, progress(10, stage=0, num_stages=3, num_steps=100))
    tally.went_on(first, progress(30, stage=0, num_stages=3, num_steps=100))
    clock(10)
    tally.ended(first)
    assert tally.standing(1) == Standing(1, 0, 1, 2.0, 150.0)
    tally.start(second)
    tally.ended(second)  # which failed before its first step
    assert tally.standing(2) == Standing(2, 0, 0, 2.0, 0.0)


# What a run will take.


@pytest.fixture
def tally_of_four(registered_toys, classification, jobs_of, clock) -> Any:
    """Of two seeds of each."""
    return tally_of(jobs_of(classification, (), (MetaDR(),), seeds=2, steps=100))


def test_a_run_will_take_what_others_of_its_method_took_a_step(tally_of_four, clock, progress):
    tally = tally_of_four
    first, other, second, another = tally.jobs
    tally.start(first)
    clock(3)
    tally.went_on(first, progress(10, num_stages=3, num_steps=100))
    assert tally.seconds_with(second, 0) == 0  # some of these ten steps may have been there before
    clock(9)
    tally.went_on(first, progress(70, num_stages=3, num_steps=100))
    share = 12 / 60  # its start counts
    assert tally.seconds_with(second, 0) == pytest.approx((230 + 300) * share)  # with what is left of the first
    assert tally.seconds_with(second, 2) == pytest.approx((230 + 100) * share)
    assert tally.seconds_with(another, 0) == pytest.approx(230 * share)
    tally.start(second)
    clock(8)
    tally.went_on(second, progress(50, stage=1, num_stages=3, num_steps=100))
    clock(20)
    tally.went_on(second, progress(90, stage=1, num_stages=3, num_steps=100))
    share = (12 + 28 / 2) / (60 + 40)  # side by side, each has half of the device
    assert tally.seconds_with(another, 0) == pytest.approx(2 * 230 * share)  # the first has no more of the device
    clock(10)
    tally.ended(second)
    share = (12 + 38 / 2) / (60 + 40)  # and its last test
    tally.ended(first)
    share = (12 + 38 / 2 + 38) / (60 + 40)  # nobody said what the first did meanwhile
    assert tally.seconds_with(second, 0) == pytest.approx(2 * 300 * share)  # alone it takes what two took side by side
    tally.most = 16
    assert tally.seconds_with(second, 0) == pytest.approx(2.5 * 300 * share)  # a full device does no more for it
    tally.start(other)
    tally.ended(other)  # which failed before its first step
    assert tally.seconds_with(another, 0) == 0


def test_steps_that_are_taken_again_are_no_fewer(tally_of_four, clock, progress):
    """A run that found no memory goes on from its last checkpoint."""
    tally = tally_of_four
    first, _, second, _ = tally.jobs
    for taken in (10, 60):
        tally.start(first)
        tally.went_on(first, progress(taken, num_stages=3, num_steps=100))
        clock(5)
        tally.went_on(first, progress(taken + 50, num_stages=3, num_steps=100))
        tally.put_back(first)
        clock(70)  # in no lane
    tally.start(first)
    tally.went_on(first, progress(20, num_stages=3, num_steps=100))
    assert tally.seconds_with(second, 0) == pytest.approx((280 + 300) * 10 / 100)


# Runs that end in time.


@pytest.fixture
def steady(monkeypatch, clock, progress) -> None:
    """Runs that train nothing: a step of naive takes a second, one of any other method a tenth."""

    def advance(recipe: Recipe, seed: int, **_: Any) -> Iterator[Progress]:
        steps = steps_of(recipe)[0]
        for stage, step in itertools.product(range(3), range(10, steps + 1, 10)):
            clock(10 * (0.1 if recipe.method else 1.0))
            yield progress(step, stage=stage, num_stages=3, num_steps=steps)

    monkeypatch.setattr(sweep_module, "advance", advance)


def whole(jobs: list[Job], out: Path, seconds: float, lanes: int = 1) -> list[Job]:
    """What a sweep of so many seconds does, of runs that end in that time."""
    deadline = sweep_module.time.monotonic() + seconds
    seconds_left = lambda: deadline - sweep_module.time.monotonic()  # noqa: E731
    outcome = sweep(jobs, out=out, device="cpu", lanes=lanes, seconds_left=seconds_left)
    assert outcome.failed == []
    return outcome.done


def test_a_sweep_starts_only_runs_that_end_in_time(registered_toys, classification, steady, tmp_path, jobs_of):
    jobs = jobs_of(classification, (), (Randomize(),), seeds=3, steps=100)
    slow, fast, slow_again, fast_again, _, fast_at_last = jobs
    # 300 seconds and 30: after two of each, there is time for another of the fast ones alone.
    assert whole(jobs, tmp_path, 720) == [slow, fast, slow_again, fast_again, fast_at_last]
    assert whole(jobs, tmp_path, 660 + 29) == [slow, fast, slow_again, fast_again]
    assert whole(jobs, tmp_path, 310) == [slow, fast]  # of which nothing was known
    assert len(whole(jobs, tmp_path, 1200)) == 6


def test_towards_the_end_there_are_as_many_lanes_as_end_in_time(
    registered_toys, classification, steady, clock, tmp_path, jobs_of
):
    """Among eight lanes a run of 300 seconds takes 2400: of 4000, 25 minutes would be left idle."""
    jobs = jobs_of(classification, (), seeds=20, steps=100)
    began = sweep_module.time.monotonic()
    assert len(whole(jobs, tmp_path, 4000, lanes=8)) == 8 + 5  # five at once take 1500
    assert sweep_module.time.monotonic() - began <= 4000


def test_no_run_is_started_that_keeps_a_running_one_from_ending_in_time(
    registered_toys, classification, steady, clock, tmp_path, jobs_of
):
    long, *_ = jobs_of(classification, (), steps=100)
    short, shorter = jobs_of(classification, (), seeds=2, steps=10)
    for seconds, done in ((350, [short, long]), (380, [short, shorter, long])):  # they take 300, 30 and 30
        began = sweep_module.time.monotonic()
        assert whole([long, short, shorter], tmp_path, seconds, lanes=2) == done
        assert sweep_module.time.monotonic() - began <= seconds


def test_a_beginning_that_nobody_has_left_saves_no_time(registered_toys, classification, steady, tmp_path):
    """Two orders of the domains begin alike: the second would take 200 seconds, if there were 300 for the first."""
    recipe = classification.recipe(overrides=(("steps", 100),))
    first, *others = recipe.order
    other = dataclasses.replace(recipe, order=(first, *reversed(others)))
    jobs = [Job(recipe, 1), Job(recipe, 0), Job(other, 0)]
    assert sweep_module._Tally(jobs).total[jobs[2]] == 200
    assert whole(jobs, tmp_path, 300 + 250) == jobs[:1]
    assert whole(jobs, tmp_path, 600 + 350) == jobs
