"""Lanes: whose turn it is, who waits for memory, what a failure, a stop or little time leaves of the others."""

import itertools
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from metadr.engine.log import steps_in
from metadr.errors import NoRoom, UserError
from metadr.lanes import Happened, interleave
from metadr.run import advance
from metadr.sequence import LOOK_SECONDS, Progress

CPU = torch.device("cpu")


class Runs:
    """Jobs by their letters, each so many turns long; an error in place of a number of turns is raised at once."""

    def __init__(self, progress: Callable[[int], Progress], **lengths: "int | list[int | Exception]") -> None:
        self.progress = progress
        self.lengths = lengths
        self.log: list[str] = []  # every turn, as it is taken
        self.started: list[str] = []
        self.closed: list[str] = []

    def start(self, job: str) -> Iterator[Progress]:
        self.started.append(job)
        length = self.lengths[job]
        if isinstance(length, list):
            length = length.pop(0)

        def stages() -> Iterator[Progress]:
            if isinstance(length, Exception):
                self.log.append(job)
                raise length
            for turn in range(1, length + 1):
                self.log.append(job)
                try:
                    yield self.progress(turn)
                except GeneratorExit:
                    self.closed.append(job)
                    raise

        return stages()

    def play(self, lanes: Any = 2, device: torch.device = CPU, **options: Any) -> list[Happened]:
        return list(interleave(self.lengths, self.start, lanes, device, **options))


@pytest.fixture
def runs_of(progress) -> Callable[..., Runs]:
    """Makes jobs by their letters, each of so many turns."""
    return partial(Runs, progress)


def summary(happened: list[Happened]) -> str:
    """a1 for the first turn of a, a. for its end, a! for its failure, a~ where it waits for memory."""

    def word(each: Happened) -> str:
        return str(each.progress.step) if each.progress else "!" if each.error else "~" if each.waits else "."

    return " ".join(each.job + word(each) for each in happened)


# Turns.


def test_runs_take_turns_and_the_next_job_takes_the_place_of_one_that_ended(runs_of):
    runs = runs_of(a=2, b=1, c=2)
    assert summary(runs.play(2)) == "a1 b1 a2 b. a. c1 c2 c."
    assert runs.started == ["a", "b", "c"]
    assert not runs.closed


@pytest.mark.parametrize(("lanes", "most"), [(1, 1), (2, 2), (3, 3), (4, 4), (9, 5), ("auto", 1)])
def test_there_are_never_more_runs_side_by_side_than_lanes(lanes, most, runs_of):
    runs, running, widths = runs_of(a=3, b=1, c=4, d=2, e=3), set(), []
    for happened in interleave(runs.lengths, runs.start, lanes, CPU):
        (running.add if happened.progress else running.discard)(happened.job)
        widths.append(len(running))
    assert max(widths) == most
    assert not running


def test_one_lane_runs_one_job_after_another(runs_of):
    runs = runs_of(a=2, b=0, c=1)
    assert summary(runs.play(1)) == "a1 a2 a. b. c1 c."


@pytest.mark.parametrize(
    ("taken", "seconds", "chunk"), [(10, 0.1, 50), (1, 0.01, 50), (1, 3.0, 1), (200, 0.02, 256), (256, 0.5, 256)]
)
def test_a_turn_is_as_long_for_a_lane_that_took_few_steps_as_for_one_that_took_many(taken, seconds, chunk):
    assert steps_in(LOOK_SECONDS, taken, seconds) == chunk


def test_slow_steps_on_a_cpu_are_looked_at_one_by_one(registered_toys, classification, tmp_path, monkeypatch):
    """So that whoever asks a run to stop there need not wait for ten of them."""
    monkeypatch.setattr("metadr.sequence.PATIENCE_SECONDS", 1e-9)
    recipe = classification.recipe(overrides=(("steps", 13),))
    looks = [now.step for now in advance(recipe, out=tmp_path, device="cpu") if now is not None and now.stage == 0]
    assert looks == [10, 11, 12, 13]


def test_no_jobs_are_no_turns(runs_of):
    assert runs_of().play() == []


@pytest.mark.parametrize("lanes", [0, -1])
def test_lanes_are_at_least_one(lanes, runs_of):
    with pytest.raises(UserError, match=rf"--lanes must be 'auto' or a whole number >= 1\. Got {lanes} instead\."):
        runs_of(a=1).play(lanes)


def test_a_failing_run_does_not_stop_the_others(runs_of):
    error = ArithmeticError("no")
    runs = runs_of(a=2, b=error, c=2)
    happened = runs.play(2)
    assert summary(happened) == "a1 b! a2 c1 a. c2 c."
    assert [each.error for each in happened if each.error] == [error]


def test_an_interrupt_closes_the_others(progress, runs_of):
    runs = runs_of(a=5, c=5)

    def start(job: str) -> Iterator[Progress]:
        if job != "b":
            return runs.start(job)

        def stages() -> Iterator[Progress]:
            yield progress(1)
            raise KeyboardInterrupt

        return stages()

    turns = interleave("abc", start, 3, CPU)
    with pytest.raises(KeyboardInterrupt):
        list(turns)
    assert runs.closed == ["a", "c"]


# Memory.


def test_a_run_without_memory_beside_others_waits_and_there_are_fewer_of_them(runs_of):
    runs = runs_of(a=3, b=2, c=[torch.OutOfMemoryError("full"), 1], d=1)
    # c goes to the front of the queue; there are never again three of them.
    assert summary(runs.play(3)) == "a1 b1 c~ a2 b2 a3 b. a. c1 c. d1 d."
    assert runs.started == ["a", "b", "c", "c", "d"]


def test_runs_without_memory_end_up_alone(runs_of):
    full = torch.OutOfMemoryError
    runs = runs_of(a=1, b=[full("beside two"), 2], c=[full("beside one"), 2])
    assert summary(runs.play(3)) == "a1 b~ c~ a. c1 c2 c. b1 b2 b."


def test_a_run_that_never_fits_keeps_no_others_waiting(runs_of):
    """Beside others it is tried twice; then they all have their turns, side by side to the end."""
    full = torch.OutOfMemoryError("full")
    others = dict.fromkeys("cdefghijk", 3)
    runs, running, widths = runs_of(a=3, b=full, **others), set(), []
    for happened in interleave(runs.lengths, runs.start, 4, CPU):
        (running.add if happened.progress else running.discard)(happened.job)
        widths.append(len(running))
    assert runs.started.count("b") == 3
    assert runs.started[-1] == happened.job == "b" and happened.error is full
    assert max(widths[-12:]) == 3


def test_images_without_room_beside_others_wait_too(runs_of):
    """And so do those of which the driver says so in words."""
    runs = runs_of(a=2, b=[NoRoom("no room"), 1], c=3, d=[RuntimeError("CUDA error: out of memory"), 1])
    assert summary(runs.play(4)) == "a1 b~ c1 d~ a2 c2 a. c3 c. d1 d. b1 b."


def test_a_run_that_failed_holds_nothing_while_the_next_one_runs(progress):
    class Activations:
        pass

    held: list[weakref.ref[Activations]] = []
    seen: list[bool] = []

    def start(job: str) -> Iterator[Progress]:
        def fails() -> Iterator[Progress]:
            there = Activations()
            held.append(weakref.ref(there))
            yield progress(1)
            try:
                raise torch.OutOfMemoryError("full")
            except torch.OutOfMemoryError:
                raise ArithmeticError("no") from None

        def goes_on() -> Iterator[Progress]:
            for turn in range(1, 3):
                seen.append(held[0]() is not None)
                yield progress(turn)

        return fails() if job == "a" else goes_on()

    happened = list(interleave("ab", start, 1, CPU))
    assert summary(happened) == "a1 a! b1 b2 b."
    assert seen == [False, False]
    assert "ArithmeticError: no" in happened[1].trace and "in fails" in happened[1].trace


def test_a_run_that_finds_no_memory_alone_has_failed(runs_of):
    runs = runs_of(a=torch.OutOfMemoryError("full"), b=1)
    happened = runs.play(1)
    assert summary(happened) == "a! b1 b."
    assert isinstance(happened[0].error, torch.OutOfMemoryError)


# Stopping.


def test_a_stop_closes_every_run_once_and_starts_no_other(after, runs_of):
    runs = runs_of(a=9, b=9, c=9, d=9)
    happened = runs.play(3, stop=after(8))
    assert runs.log == list("abcabc")
    assert summary(happened) == "a1 b1 c1 a2 b2 c2"
    assert runs.closed == ["a", "b", "c"]
    assert runs.started == ["a", "b", "c"]


def test_a_stop_in_the_middle_of_a_round_is_heard_at_once(after, runs_of):
    runs = runs_of(a=9, b=9, c=9)
    assert summary(runs.play(3, stop=after(2))) == "a1 b1"
    assert runs.closed == ["a", "b"]


def test_a_stop_before_the_first_turn_starts_nothing(runs_of):
    runs = runs_of(a=1, b=1)
    assert runs.play(2, stop=lambda: True) == []
    assert runs.started == []


def test_who_leaves_early_closes_every_run_once(runs_of):
    runs = runs_of(a=9, b=9)
    turns = interleave("ab", runs.start, 2, CPU)
    assert [next(turns).job for _ in range(3)] == ["a", "b", "a"]
    turns.close()
    assert runs.closed == ["a", "b"]


def test_a_run_that_cannot_be_closed_does_not_keep_the_others_from_it(progress, after, runs_of):
    runs = runs_of(a=9, c=9)

    def start(job: str) -> Iterator[Progress]:
        def stages() -> Iterator[Progress]:
            try:
                yield progress(1)
            except GeneratorExit:
                raise UserError("The disk is full.") from None

        return stages() if job == "b" else runs.start(job)

    with pytest.raises(UserError, match="The disk is full") as raised:
        list(interleave("abc", start, 3, CPU, stop=after(4)))
    assert runs.closed == ["a", "c"]
    assert raised.tb is not None  # held until here: it keeps the frames from being closed by the way


# What fits in the time that is left.


def not_for_ever() -> Callable[[], bool]:
    """A stop that never comes, and fails where nothing else ends the turns."""
    count = itertools.count()

    def stop() -> bool:
        assert next(count) < 100
        return False

    return stop


def test_a_job_that_does_not_fit_lets_those_behind_it_go_first_and_is_left(runs_of):
    runs = runs_of(a=2, b=9, c=1)
    happened = runs.play(2, fits=lambda job: job != "b", stop=not_for_ever())
    assert summary(happened) == "a1 c1 a2 c. a."
    assert runs.started == ["a", "c"]


def test_a_job_that_did_not_fit_may_do_so_later(runs_of):
    runs = runs_of(a=3, b=1)
    happened = runs.play(2, fits=lambda job: job == "a" or len(runs.log) >= 2, stop=not_for_ever())
    assert summary(happened) == "a1 a2 a3 b1 a. b."


def test_where_nothing_fits_nothing_is_started(runs_of):
    runs = runs_of(a=1, b=1)
    assert runs.play(2, fits=lambda job: False, stop=not_for_ever()) == []
    assert runs.started == []


@pytest.mark.parametrize(("starts", "ends"), [(3, " c1 c."), (2, "")], ids=["fits", "does not fit any more"])
def test_a_run_that_found_no_memory_comes_last_though_others_that_do_not_fit_are_left(starts, ends, runs_of):
    full = torch.OutOfMemoryError
    runs = runs_of(a=2, b=4, c=[full("beside two"), full("beside one"), 1], d=1)

    def fits(job: str) -> bool:
        return job in "ab" or (job == "c" and runs.started.count("c") < starts)

    assert summary(runs.play(3, fits=fits, stop=not_for_ever())) == f"a1 b1 c~ a2 b2 a. b3 b4 c~ b.{ends}"
    assert "d" not in runs.started
