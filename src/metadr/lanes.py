"""Lanes: many runs side by side in one process, each paused while the others have their turn."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack
from typing import Generic, Literal, NamedTuple, TypeVar

import torch

from metadr.errors import UserError
from metadr.run import Progress, Result

Job = TypeVar("Job")
Lanes = int | Literal["auto"]
Stages = Generator[Progress | None, None, Result]

MOST = 16  # lanes that 'auto' tries: beyond, an H200 gained nothing
WINDOW_SECONDS = 1.5  # for which 'auto' watches the first lane before it adds others
WORTH = 1.1  # what twice the lanes must gain


class Happened(NamedTuple, Generic[Job]):
    """What became of a job in its turn: it went on (progress), ended (none of both) or failed (error)."""

    job: Job
    progress: Progress | None = None
    error: BaseException | None = None


class Lane(Generic[Job]):
    """A job and the run that it is."""

    def __init__(self, job: Job, stages: Stages) -> None:
        self.job, self.stages = job, stages
        self.stage = -1
        self.steps = 0  # taken so far, in all domains
        self.told = 0.0  # when it last said so

    def turn(self) -> Happened[Job] | None:
        """Let it go on; none if there is nothing to tell of that."""
        try:
            progress = next(self.stages)
        except StopIteration:
            return Happened(self.job)
        except Exception as error:
            return Happened(self.job, error=error)
        if progress is None:
            return None
        self.stage, self.steps = progress.stage, progress.stage * progress.num_steps + progress.step
        self.told = time.monotonic()
        return Happened(self.job, progress)


def interleave(
    jobs: Iterable[Job],
    start: Callable[[Job], Stages],
    lanes: Lanes,
    device: torch.device,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Happened[Job], None, None]:
    """Give every job its turns until all have ended or `stop` says so; what is then running stops at a checkpoint.

    A run that finds no memory beside others waits until there are fewer of them.
    """
    waiting, running = deque(jobs), list[Lane[Job]]()
    width = _Width(lanes, device)
    try:
        while (waiting or running) and not stop():
            while waiting and len(running) < width.now:
                job = waiting.popleft()
                running.append(Lane(job, start(job)))
            for lane in list(running):
                happened = lane.turn()
                if happened is not None:
                    if happened.progress is None:
                        running.remove(lane)
                    if isinstance(happened.error, torch.OutOfMemoryError) and running:
                        waiting.appendleft(lane.job)
                        width.shrink(len(running))
                    else:
                        yield happened
                if stop():
                    break
            width.look(running)
    finally:
        with ExitStack() as closing:  # all of them, whatever one of them raises
            for lane in reversed(running):
                closing.callback(lane.stages.close)


class _Width:
    """How many lanes there may be. 'auto' doubles them while that makes the first of them slow down by less than half.

    On a CPU, where one run already uses every core, 'auto' is one.
    """

    def __init__(self, lanes: Lanes, device: torch.device) -> None:
        if lanes != "auto" and lanes < 1:
            raise UserError(f"--lanes must be 'auto' or a whole number >= 1. Got {lanes} instead.")
        self._growing = lanes == "auto" and device.type == "cuda"
        self.now = 1 if lanes == "auto" else lanes
        self._device = device
        self._best = 0.0
        self._together: float | None = None  # since when all lanes have been running
        self._window: tuple[object, int, int, float] | None = None  # first lane, its stage, its steps, the time

    def shrink(self, most: int) -> None:
        self.now, self._growing = most, False

    def look(self, running: "list[Lane[Job]]") -> None:
        """Once a round: see whether the last doubling was worth it, and whether another would fit.

        Lanes say now and then how far they are: a window lasts from one such moment of the first lane to another.
        """
        if not self._growing or len(running) < self.now or any(lane.stage < 0 for lane in running):
            self._together = self._window = None
            return
        if self._together is None:
            self._together = time.monotonic()
        first = running[0]
        if first.told <= self._together:
            return
        if self._window is None or self._window[:2] != (first, first.stage):
            self._window = (first, first.stage, first.steps, first.told)
            return
        elapsed = first.told - self._window[3]
        if elapsed < WINDOW_SECONDS:
            return
        together = self.now * (first.steps - self._window[2]) / elapsed
        self._together = self._window = None
        if together < WORTH * self._best:
            self.shrink(max(1, self.now // 2))
        elif self.now >= MOST or not self._room():
            self._growing = False
        else:
            self._best, self.now = together, min(MOST, 2 * self.now)

    def _room(self) -> bool:
        """Whether twice as much as is taken now leaves a fifth of the memory free."""
        free, total = torch.cuda.mem_get_info(self._device)
        return 2 * (total - free) < 0.8 * total
