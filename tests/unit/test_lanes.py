"""Lanes and sweeps: whose turn it is, how many there are, what one failure or a stop leaves of the others."""

import dataclasses
import itertools
import json
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from metadr import lanes as lanes_module
from metadr import sweep as sweep_module
from metadr.benchmarks import steps_of
from metadr.core import Part, Recipe
from metadr.engine.log import steps_in
from metadr.errors import NoRoom, UserError
from metadr.lanes import MOST, WINDOW_SECONDS, Happened, interleave
from metadr.parts import EWC, GEM, MetaDR, Randomize, Replay
from metadr.run import advance
from metadr.sequence import LOOK_SECONDS, Progress
from metadr.store import RunDirectory
from metadr.sweep import Job, Standing, each_reason_once, plan, sweep

pytestmark = pytest.mark.usefixtures("whole_ends")
CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def progress(step: int, *, stage: int = 0, num_stages: int = 1, num_steps: int = 1000) -> Progress:
    taken, total = stage * num_steps + step, num_stages * num_steps
    return Progress("a", stage, num_stages, step, num_steps, taken, total, {"loss": 1.0}, 1.0, 1.0)


class Runs:
    """Jobs by their letters, each so many turns long; an error in place of a number of turns is raised at once."""

    def __init__(self, **lengths: "int | list[int | Exception]") -> None:
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
                    yield progress(turn)
                except GeneratorExit:
                    self.closed.append(job)
                    raise

        return stages()

    def play(self, lanes: Any = 2, device: torch.device = CPU, **options: Any) -> list[Happened]:
        return list(interleave(self.lengths, self.start, lanes, device, **options))


def summary(happened: list[Happened]) -> str:
    """a1 for the first turn of a, a. for its end, a! for its failure, a~ where it waits for memory."""

    def word(each: Happened) -> str:
        return str(each.progress.step) if each.progress else "!" if each.error else "~" if each.waits else "."

    return " ".join(each.job + word(each) for each in happened)


def after(num_questions: int) -> Callable[[], bool]:
    """A stop that says no so many times."""
    count = itertools.count()
    return lambda: next(count) >= num_questions


# Turns.


def test_runs_take_turns_and_the_next_job_takes_the_place_of_one_that_ended():
    runs = Runs(a=2, b=1, c=2)
    assert summary(runs.play(2)) == "a1 b1 a2 b. a. c1 c2 c."
    assert runs.started == ["a", "b", "c"]
    assert not runs.closed


@pytest.mark.parametrize(("lanes", "most"), [(1, 1), (2, 2), (3, 3), (4, 4), (9, 5), ("auto", 1)])
def test_there_are_never_more_runs_side_by_side_than_lanes(lanes, most):
    runs, running, widths = Runs(a=3, b=1, c=4, d=2, e=3), set(), []
    for happened in interleave(runs.lengths, runs.start, lanes, CPU):
        (running.add if happened.progress else running.discard)(happened.job)
        widths.append(len(running))
    assert max(widths) == most
    assert not running


def test_one_lane_runs_one_job_after_another():
    runs = Runs(a=2, b=0, c=1)
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


def test_no_jobs_are_no_turns():
    assert Runs().play() == []


@pytest.mark.parametrize("lanes", [0, -1])
def test_lanes_are_at_least_one(lanes):
    with pytest.raises(UserError, match=rf"--lanes must be 'auto' or a whole number >= 1\. Got {lanes} instead\."):
        Runs(a=1).play(lanes)


def test_a_failing_run_does_not_stop_the_others():
    error = ArithmeticError("no")
    runs = Runs(a=2, b=error, c=2)
    happened = runs.play(2)
    assert summary(happened) == "a1 b! a2 c1 a. c2 c."
    assert [each.error for each in happened if each.error] == [error]


def test_an_interrupt_closes_the_others():
    runs = Runs(a=5, c=5)

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


def test_a_run_without_memory_beside_others_waits_and_there_are_fewer_of_them():
    runs = Runs(a=3, b=2, c=[torch.OutOfMemoryError("full"), 1], d=1)
    # c goes to the front of the queue; there are never again three of them.
    assert summary(runs.play(3)) == "a1 b1 c~ a2 b2 a3 b. a. c1 c. d1 d."
    assert runs.started == ["a", "b", "c", "c", "d"]


def test_runs_without_memory_end_up_alone():
    full = torch.OutOfMemoryError
    runs = Runs(a=1, b=[full("beside two"), 2], c=[full("beside one"), 2])
    assert summary(runs.play(3)) == "a1 b~ c~ a. c1 c2 c. b1 b2 b."


def test_a_run_that_never_fits_keeps_no_others_waiting():
    """Beside others it is tried twice; then they all have their turns, side by side to the end."""
    full = torch.OutOfMemoryError("full")
    others = dict.fromkeys("cdefghijk", 3)
    runs, running, widths = Runs(a=3, b=full, **others), set(), []
    for happened in interleave(runs.lengths, runs.start, 4, CPU):
        (running.add if happened.progress else running.discard)(happened.job)
        widths.append(len(running))
    assert runs.started.count("b") == 3
    assert runs.started[-1] == happened.job == "b" and happened.error is full
    assert max(widths[-12:]) == 3


def test_images_without_room_beside_others_wait_too():
    """And so do those of which the driver says so in words."""
    runs = Runs(a=2, b=[NoRoom("no room"), 1], c=3, d=[RuntimeError("CUDA error: out of memory"), 1])
    assert summary(runs.play(4)) == "a1 b~ c1 d~ a2 c2 a. c3 c. d1 d. b1 b."


def test_a_run_that_failed_holds_nothing_while_the_next_one_runs():
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


def test_a_run_that_finds_no_memory_alone_has_failed():
    runs = Runs(a=torch.OutOfMemoryError("full"), b=1)
    happened = runs.play(1)
    assert summary(happened) == "a! b1 b."
    assert isinstance(happened[0].error, torch.OutOfMemoryError)


# Stopping.


def test_a_stop_closes_every_run_once_and_starts_no_other():
    runs = Runs(a=9, b=9, c=9, d=9)
    happened = runs.play(3, stop=after(8))
    assert runs.log == list("abcabc")
    assert summary(happened) == "a1 b1 c1 a2 b2 c2"
    assert runs.closed == ["a", "b", "c"]
    assert runs.started == ["a", "b", "c"]


def test_a_stop_in_the_middle_of_a_round_is_heard_at_once():
    runs = Runs(a=9, b=9, c=9)
    assert summary(runs.play(3, stop=after(2))) == "a1 b1"
    assert runs.closed == ["a", "b"]


def test_a_stop_before_the_first_turn_starts_nothing():
    runs = Runs(a=1, b=1)
    assert runs.play(2, stop=lambda: True) == []
    assert runs.started == []


def test_who_leaves_early_closes_every_run_once():
    runs = Runs(a=9, b=9)
    turns = interleave("ab", runs.start, 2, CPU)
    assert [next(turns).job for _ in range(3)] == ["a", "b", "a"]
    turns.close()
    assert runs.closed == ["a", "b"]


def test_a_run_that_cannot_be_closed_does_not_keep_the_others_from_it():
    runs = Runs(a=9, c=9)

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


def test_a_job_that_does_not_fit_lets_those_behind_it_go_first_and_is_left():
    runs = Runs(a=2, b=9, c=1)
    happened = runs.play(2, fits=lambda job: job != "b", stop=not_for_ever())
    assert summary(happened) == "a1 c1 a2 c. a."
    assert runs.started == ["a", "c"]


def test_a_job_that_did_not_fit_may_do_so_later():
    runs = Runs(a=3, b=1)
    happened = runs.play(2, fits=lambda job: job == "a" or len(runs.log) >= 2, stop=not_for_ever())
    assert summary(happened) == "a1 a2 a3 b1 a. b."


def test_where_nothing_fits_nothing_is_started():
    runs = Runs(a=1, b=1)
    assert runs.play(2, fits=lambda job: False, stop=not_for_ever()) == []
    assert runs.started == []


@pytest.mark.parametrize(("starts", "ends"), [(3, " c1 c."), (2, "")], ids=["fits", "does not fit any more"])
def test_a_run_that_found_no_memory_comes_last_though_others_that_do_not_fit_are_left(starts, ends):
    full = torch.OutOfMemoryError
    runs = Runs(a=2, b=4, c=[full("beside two"), full("beside one"), 1], d=1)

    def fits(job: str) -> bool:
        return job in "ab" or (job == "c" and runs.started.count("c") < starts)

    assert summary(runs.play(3, fits=fits, stop=not_for_ever())) == f"a1 b1 c~ a2 b2 a. b3 b4 c~ b.{ends}"
    assert "d" not in runs.started


# How many lanes 'auto' finds.


class Gpu:
    """A GPU with a clock of its own: `seconds(width)` is what a round takes, of ten steps a lane."""

    def __init__(self, monkeypatch, seconds: Callable[[int], float], *, share: float = 0.01) -> None:
        self.now, self.seconds, self.share = 0.0, seconds, share
        self.running: set[int] = set()
        self.widths: list[int] = []
        monkeypatch.setattr(lanes_module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(torch.cuda, "mem_get_info", self.memory)

    def memory(self, device: torch.device) -> tuple[int, int]:
        assert device == CUDA
        return int(1e9 * (1 - self.share * len(self.running))), int(1e9)

    def start(self, job: int, *, stages: int = 1, times: float = 1.0) -> Iterator[Progress]:
        """A run of a hundred turns, in some domains, each with as many steps and `times` as long."""
        self.running.add(job)
        for stage, turn in itertools.product(range(stages), range(1, 100 // stages + 1)):
            self.now += times * self.seconds(len(self.running)) / len(self.running)
            yield progress(10 * turn, stage=stage, num_stages=stages, num_steps=1000 // stages)
        self.running.discard(job)

    def play(self, num_jobs: int = 80, lanes: Any = "auto", *, kinds: int = 1, **run: Any) -> list[int]:
        """How many lanes there were, each time that changed. Every job of the second kind takes twice as long, ..."""

        def start(job: int) -> Iterator[Progress]:
            return self.start(job, times=1.0 + job % kinds, **run)

        for _ in interleave(range(num_jobs), start, lanes, CUDA, kind=lambda job: job % kinds):
            if not self.widths or self.widths[-1] != len(self.running):
                self.widths.append(len(self.running))
        return self.widths


def test_auto_doubles_while_that_is_worth_it(monkeypatch):
    """A turn takes as long whatever the width: every doubling doubles what is done, up to the most that is tried."""
    assert max(Gpu(monkeypatch, lambda width: 0.2).play()) == MOST == 16
    gpu, turns = Gpu(monkeypatch, lambda width: 0.2), Counter()
    for _ in interleave(range(MOST), gpu.start, "auto", CUDA):
        turns[len(gpu.running)] += 1
        if len(gpu.running) == MOST:
            break
    assert [width for width, count in turns.items() if count > 1] == [1, 2, 4, 8]  # the others while lanes are added


@pytest.mark.parametrize(("free_until", "tried", "kept"), [(4, 8, 4), (2, 4, 2), (1, 2, 1)])
def test_auto_halves_when_a_doubling_was_not_worth_it(free_until, tried, kept, monkeypatch):
    """Beyond `free_until` lanes the device is full: twice the lanes take twice as long."""
    gpu = Gpu(monkeypatch, lambda width: 0.2 * max(1, width / free_until))
    gpu.play(40)
    assert max(gpu.widths) == tried
    peak = gpu.widths.index(tried)
    settled = gpu.widths.index(kept, peak)
    assert max(gpu.widths[settled:]) <= kept  # and it never tries again
    assert kept in gpu.widths[settled:]


@pytest.mark.parametrize("stages", [4, 20, 100])
def test_auto_grows_however_short_domains_are(stages, monkeypatch):
    assert max(Gpu(monkeypatch, lambda width: 0.2).play(stages=stages)) == MOST


@pytest.mark.parametrize("turns", [4, 8, 20])
def test_auto_grows_however_short_jobs_are(turns, monkeypatch):
    """All lanes are never running for long: one of them has just ended, or is starting, which costs little here."""
    gpu = Gpu(monkeypatch, lambda width: 0.2)

    def start(job: int) -> Iterator[Progress]:
        gpu.now += 0.01
        return itertools.islice(gpu.start(job), turns)

    widest = 0
    for happened in interleave(range(400), start, "auto", CUDA, kind=lambda job: 0):
        if happened.progress is None:
            gpu.running.discard(happened.job)
        widest = max(widest, len(gpu.running))
    assert widest == MOST


@pytest.mark.parametrize("kinds", [2, 5])
def test_auto_is_not_misled_by_jobs_that_take_longer(kinds, monkeypatch):
    """Lanes are compared with those of their own kind: a slow job after a fast one is no sign of a full device."""
    gpu = Gpu(monkeypatch, lambda width: 0.2)
    gpu.play(kinds=kinds)
    assert max(gpu.widths) == MOST
    assert gpu.widths[-MOST - 1 :] == list(range(MOST, -1, -1))  # until no job is left
    full = Gpu(monkeypatch, lambda width: 0.2 * max(1, width / 4))
    full.play(kinds=kinds)
    assert max(full.widths) == 8
    assert 4 in full.widths[full.widths.index(8) :]


def test_auto_stops_where_the_memory_would_be_taken(monkeypatch):
    """A lane takes a tenth: four take 0.4, and twice that would not leave a fifth."""
    gpu = Gpu(monkeypatch, lambda width: 0.2, share=0.1)
    assert max(gpu.play()) == 4


def test_auto_gives_up_growing_when_a_run_finds_no_memory(monkeypatch):
    gpu = Gpu(monkeypatch, lambda width: 0.2)

    def start(job: int) -> Iterator[Progress]:
        if len(gpu.running) == 3:
            raise torch.OutOfMemoryError("full")
        yield from gpu.start(job)

    ended = []
    for happened in interleave(range(12), start, "auto", CUDA):
        assert happened.error is None
        gpu.widths.append(len(gpu.running))
        if happened.progress is None and not happened.waits:
            ended.append(happened.job)
    assert max(gpu.widths) == 3
    assert sorted(ended) == list(range(12))


def test_auto_watches_for_a_while_before_it_grows(monkeypatch):
    gpu = Gpu(monkeypatch, lambda width: 0.2)
    for _ in interleave(range(4), gpu.start, "auto", CUDA):
        if len(gpu.running) > 1:
            break
    assert WINDOW_SECONDS <= gpu.now <= WINDOW_SECONDS + 4 * 0.2


def test_a_number_of_lanes_is_kept(monkeypatch):
    gpu = Gpu(monkeypatch, lambda width: 0.2 * width)
    assert max(gpu.play(20, lanes=5)) == 5
    assert set(gpu.widths[: gpu.widths.index(5) + 1]) == {1, 2, 3, 4, 5}


# Sweeps.


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


def jobs_of(toy, *methods: tuple[Part, ...], seeds: int = 1, steps: int = 3) -> list[Job]:
    recipes = [toy.recipe(*parts, overrides=(("steps", steps),)) for parts in methods]
    return [Job(recipe, seed) for seed in range(seeds) for recipe in recipes]


def final(out: Path, job: Job) -> dict[str, Tensor]:
    directory = RunDirectory(out, job.recipe, job.seed)
    assert directory.finished
    rows = directory.read("rows.json")
    scores = torch.tensor([row["value"] for row in rows], dtype=torch.float64)
    return {"scores": scores, **load_file(directory.checkpoints()[0])}


def test_a_sweep_side_by_side_gives_the_bits_of_one_after_another(registered_toys, toys, tmp_path):
    jobs = [job for toy in toys.TOYS.values() for job in jobs_of(toy, *METHODS, seeds=2)]
    for lanes in (1, 3):
        outcome = sweep(jobs, out=tmp_path / str(lanes), device="cpu", lanes=lanes)
        assert sorted(outcome.done, key=jobs.index) == jobs
        assert outcome.failed == []
    for job in jobs:
        toys.assert_same_bits(final(tmp_path / "3", job), final(tmp_path / "1", job))


def test_a_sweep_goes_on_when_a_run_fails_and_keeps_its_traceback(registered_toys, classification, watched, tmp_path):
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
    registered_toys, classification, toys, tmp_path
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
        toys.assert_same_bits(final(tmp_path / "stopped", job), final(tmp_path / "whole", job))


def test_a_precision_that_the_device_lacks_is_refused_once(registered_toys, classification, tmp_path):
    recipe = classification.recipe(overrides=(("precision", "tf32"),))
    with pytest.raises(UserError, match="Precision 'tf32' needs a GPU, and this run is on cpu"):
        sweep([Job(recipe, 0), Job(recipe, 1)], out=tmp_path, device="cpu")
    assert not list(tmp_path.iterdir())


# What a sweep says of itself.


@pytest.fixture
def clock(monkeypatch) -> Callable[[float], None]:
    """Time that passes when it is told to."""
    now = [100.0]
    monkeypatch.setattr(sweep_module.time, "monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


def tally_of(toy, **runs: int) -> Any:
    """Of runs of three domains of 100 steps, with two methods."""
    jobs = jobs_of(toy, (), (MetaDR(),), steps=100, **runs)
    made: Any = sweep_module._Tally(jobs)
    made.jobs = jobs
    return made


@pytest.fixture
def tally(registered_toys, classification, clock) -> Any:
    return tally_of(classification)


def test_a_sweep_says_how_far_it_is_and_how_long_it_will_take(tally, clock):
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


def test_a_failed_run_is_not_counted_as_fast(tally, clock):
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


def test_a_sweep_tells_its_watcher_of_every_turn(registered_toys, classification, watched, tmp_path):
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


# What a run will take.


@pytest.fixture
def tally_of_four(registered_toys, classification, clock) -> Any:
    return tally_of(classification, seeds=2)


def test_a_run_will_take_what_others_of_its_method_took_a_step(tally_of_four, clock):
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


def test_steps_that_are_taken_again_are_no_fewer(tally_of_four, clock):
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


@pytest.fixture
def steady(monkeypatch, clock) -> None:
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


def test_a_sweep_starts_only_runs_that_end_in_time(registered_toys, classification, steady, tmp_path):
    jobs = jobs_of(classification, (), (Randomize(),), seeds=3, steps=100)
    slow, fast, slow_again, fast_again, _, fast_at_last = jobs
    # 300 seconds and 30: after two of each, there is time for another of the fast ones alone.
    assert whole(jobs, tmp_path, 720) == [slow, fast, slow_again, fast_again, fast_at_last]
    assert whole(jobs, tmp_path, 660 + 29) == [slow, fast, slow_again, fast_again]
    assert whole(jobs, tmp_path, 310) == [slow, fast]  # of which nothing was known
    assert len(whole(jobs, tmp_path, 1200)) == 6


def test_towards_the_end_there_are_as_many_lanes_as_end_in_time(
    registered_toys, classification, steady, clock, tmp_path
):
    """Among eight lanes a run of 300 seconds takes 2400: of 4000, 25 minutes would be left idle."""
    jobs = jobs_of(classification, (), seeds=20, steps=100)
    began = sweep_module.time.monotonic()
    assert len(whole(jobs, tmp_path, 4000, lanes=8)) == 8 + 5  # five at once take 1500
    assert sweep_module.time.monotonic() - began <= 4000


def test_no_run_is_started_that_keeps_a_running_one_from_ending_in_time(
    registered_toys, classification, steady, clock, tmp_path
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
