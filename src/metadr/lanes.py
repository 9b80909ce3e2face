"""Lanes: many runs side by side in one process, each paused while the others have their turn."""

import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable
from contextlib import ExitStack
from typing import Generic, Literal, NamedTuple, TypeVar

import torch

from metadr.engine.capture import found_no_memory
from metadr.errors import UserError
from metadr.run import Result
from metadr.sequence import Progress
from metadr.store import Busy

Job = TypeVar("Job")
Lanes = int | Literal["auto"]
Stages = Generator[Progress | None, None, Result]

MOST = 16  # lanes that 'auto' tries
WINDOW_SECONDS = 1.5  # for which 'auto' watches the lanes before it adds others
PATIENCE = 3  # windows that a starting lane, which keeps the others waiting, may spoil; then it belongs to what is seen
WORTH = 1.1  # what twice the lanes must gain
IDLE_SECONDS = 1.0  # before jobs that wait for other processes are looked at again
NO_MEMORY = "there is no memory beside the others"
ELSEWHERE = "another process has it"
BEGUN_ELSEWHERE = "another process is training what it begins with"


class Happened(NamedTuple, Generic[Job]):
    """What became of a job in its turn: it went on (progress), failed (error), was put back (waits: why) or ended."""

    job: Job
    progress: Progress | None = None
    error: BaseException | None = None
    trace: str = ""
    waits: str = ""


class Lane(Generic[Job]):
    """A job and the run that it is."""

    def __init__(self, job: Job, stages: Stages) -> None:
        self.job, self.stages = job, stages
        self.steps: int | None = None  # taken so far, on all domains; none before it said so
        self.told = 0.0  # when it last did

    def turn(self) -> Happened[Job] | None:
        """Let it go on; none if there is nothing to tell of that."""
        try:
            progress = next(self.stages)
        except StopIteration:
            return Happened(self.job)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            _let_go(error)
            return Happened(self.job, error=error, trace=trace)
        if progress is None:
            return None
        self.steps, self.told = progress.taken, time.monotonic()
        return Happened(self.job, progress)


def _let_go(error: BaseException | None) -> None:
    """Forget where an error happened: the frames hold all that the run had on the device, which others may need."""
    while error is not None:
        error.__traceback__, error = None, error.__cause__ or error.__context__


def interleave(
    jobs: Iterable[Job],
    start: Callable[[Job], Stages],
    lanes: Lanes,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
    *,
    kind: Callable[[Job], Hashable] = lambda job: job,
    waits: Callable[[Job, Collection[Job]], bool] = lambda job, running: False,
    fits: Callable[[Job], bool] = lambda job: True,
) -> Generator[Happened[Job], None, None]:
    """Give every job its turns until all have ended or `stop` says so; what is then running stops at a checkpoint.

    A run that finds no memory beside others waits until there are fewer of them, and one that then finds none again,
    until all others have ended. Jobs of one `kind` take the same time. A job that `waits` for one of those that are
    running, or for another process, lets those behind it go first; one that turns out to be another's is put back. One
    that no longer `fits` is not started; with none running, those are left.
    """
    waiting, running, late = deque(jobs), list[Lane[Job]](), deque[Job]()
    width, put_back = _Width(lanes, device, kind), Counter[Job]()
    told = set[Job]()  # who waits for other processes

    def next_job() -> Job | None:
        at_once = [lane.job for lane in running]
        return next((job for job in waiting if fits(job) and not waits(job, at_once)), None)

    try:
        while (waiting or running or late) and not stop():
            if late and not running and next_job() is None:
                waiting.append(late.popleft())  # alone
            while len(running) < width.now and (job := next_job()) is not None:
                waiting.remove(job)
                running.append(Lane(job, start(job)))
            if not running and not late:
                first = next(filter(fits, waiting), None)
                if first is None:
                    break
                if first not in told:
                    told.add(first)
                    yield Happened(first, waits=BEGUN_ELSEWHERE)
                time.sleep(IDLE_SECONDS)
            for lane in list(running):
                happened = lane.turn()
                if happened is not None:
                    if happened.progress is None:
                        running.remove(lane)
                    if isinstance(happened.error, Busy):
                        waiting.append(lane.job)
                        told.add(lane.job)
                        yield Happened(lane.job, waits=ELSEWHERE)
                    elif running and found_no_memory(happened.error):
                        put_back[lane.job] += 1
                        if put_back[lane.job] == 1:
                            waiting.appendleft(lane.job)
                            width.shrink(len(running))
                        else:  # it needs more than its share: to wait for it would slow all others down
                            late.append(lane.job)
                        yield Happened(lane.job, waits=NO_MEMORY)
                    else:
                        yield happened
                if stop():
                    break
            width.look(running, more=next_job() is not None)
    finally:
        with ExitStack() as closing:  # all of them, whatever one of them raises
            for lane in reversed(running):
                closing.callback(lane.stages.close)


class _Width(Generic[Job]):
    """How many lanes there may be. 'auto' doubles them while that makes each of them slow down by less than half.

    On a CPU, where one run already uses every core, 'auto' is one.
    """

    def __init__(self, lanes: Lanes, device: torch.device, kind: Callable[[Job], Hashable]) -> None:
        if lanes != "auto" and lanes < 1:
            raise UserError(f"--lanes must be 'auto' or a whole number >= 1. Got {lanes} instead.")
        self._growing = lanes == "auto" and device.type == "cuda"
        self.now = 1 if lanes == "auto" else lanes
        self._device, self._kind = device, kind
        self._before: dict[Hashable, float] = {}  # steps a second of a lane, by kind, with half as many lanes
        self._window: dict[Lane[Job], _Watched] | None = None
        self._opened, self._spoiled = 0.0, 0

    def shrink(self, most: int) -> None:
        self.now, self._growing = most, False

    def look(self, running: list[Lane[Job]], *, more: bool) -> None:
        """Once a round: see whether the last doubling was worth it, and whether another would fit."""
        full = len(running) >= self.now
        if not self._growing or not (full or more):
            self._window = None
            return
        if any(lane.steps is None for lane in running) and self._spoiled < PATIENCE:
            self._spoiled += self._window is not None
            self._window = None
            return
        if self._window is None:
            if not full:  # a lane has just ended, and the next is yet to start
                return
            self._window, self._opened = {}, time.monotonic()
        for lane in running:
            if lane.steps is not None and lane.told > self._opened:
                self._window.setdefault(lane, _Watched(lane.steps, lane.told)).see(lane.steps, lane.told)
        watched = sum(each.seconds for each in self._window.values())
        if min(watched, time.monotonic() - self._opened) < WINDOW_SECONDS:
            return
        rates = self._rates(self._window)
        self._window, self._spoiled = None, 0
        # Lanes of a kind that was not there before say nothing: the next doubling will tell.
        known = [rates[kind] / before for kind, before in self._before.items() if kind in rates]
        self._before = rates
        if known and 2 * sum(known) / len(known) < WORTH:
            self.shrink(max(1, self.now // 2))
        elif self.now >= MOST or not self._room():
            self._growing = False
        else:
            self.now = min(MOST, 2 * self.now)

    def _rates(self, window: "dict[Lane[Job], _Watched]") -> dict[Hashable, float]:
        """Steps a second of a lane, by the kind of its job."""
        kinds: dict[Hashable, list[_Watched]] = {}
        for lane, watched in window.items():
            kinds.setdefault(self._kind(lane.job), []).append(watched)
        sums = {
            kind: (sum(each.steps for each in those), sum(each.seconds for each in those))
            for kind, those in kinds.items()
        }
        return {kind: steps / seconds for kind, (steps, seconds) in sums.items() if steps and seconds}

    def _room(self) -> bool:
        """Whether twice as much as is taken now leaves a fifth of the memory free."""
        free, total = torch.cuda.mem_get_info(self._device)
        return 2 * (total - free) < 0.8 * total


class _Watched:
    """How far a lane came between the first and the last time that it said so: with tests, without its start."""

    def __init__(self, steps: int, told: float) -> None:
        self._first = self._last = (steps, told)

    def see(self, steps: int, told: float) -> None:
        self._last = (steps, told)

    @property
    def steps(self) -> int:
        return self._last[0] - self._first[0]

    @property
    def seconds(self) -> float:
        return self._last[1] - self._first[1]
