"""How many lanes 'auto' finds on a GPU with a clock of its own: it doubles while that is worth it."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from metadr import lanes as lanes_module
from metadr.lanes import MOST, WINDOW_SECONDS, interleave
from metadr.sequence import Progress

CUDA = torch.device("cuda")


class Gpu:
    """A GPU with a clock of its own: `seconds(width)` is what a round takes, of ten steps a lane."""

    def __init__(
        self, monkeypatch, progress: Callable[..., Progress], seconds: Callable[[int], float], *, share: float = 0.01
    ) -> None:
        self.now, self.progress, self.seconds, self.share = 0.0, progress, seconds, share
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
            yield self.progress(10 * turn, stage=stage, num_stages=stages, num_steps=1000 // stages)
        self.running.discard(job)

    def play(self, num_jobs: int = 80, lanes: Any = "auto", *, kinds: int = 1, **run: Any) -> list[int]:
        """How many lanes there were, each time that changed. Every job of the second kind takes twice as long, ..."""

        def start(job: int) -> Iterator[Progress]:
            return self.start(job, times=1.0 + job % kinds, **run)

        for _ in interleave(range(num_jobs), start, lanes, CUDA, kind=lambda job: job % kinds):
            if not self.widths or self.widths[-1] != len(self.running):
                self.widths.append(len(self.running))
        return self.widths


@pytest.fixture
def gpu_of(monkeypatch, progress) -> Callable[..., Gpu]:
    """Makes a GPU with rounds of so many seconds."""
    return partial(Gpu, monkeypatch, progress)


def test_auto_doubles_while_that_is_worth_it(gpu_of):
    """A turn takes as long whatever the width: every doubling doubles what is done, up to the most that is tried."""
    assert max(gpu_of(lambda width: 0.2).play()) == MOST == 16
    gpu, turns = gpu_of(lambda width: 0.2), Counter()
    for _ in interleave(range(MOST), gpu.start, "auto", CUDA):
        turns[len(gpu.running)] += 1
        if len(gpu.running) == MOST:
            break
    assert [width for width, count in turns.items() if count > 1] == [1, 2, 4, 8]  # the others while lanes are added


@pytest.mark.parametrize(("free_until", "tried", "kept"), [(4, 8, 4), (2, 4, 2), (1, 2, 1)])
def test_auto_halves_when_a_doubling_was_not_worth_it(free_until, tried, kept, gpu_of):
    """Beyond `free_until` lanes the device is full: twice the lanes take twice as long."""
    gpu = gpu_of(lambda width: 0.2 * max(1, width / free_until))
    gpu.play(40)
    assert max(gpu.widths) == tried
    peak = gpu.widths.index(tried)
    settled = gpu.widths.index(kept, peak)
    assert max(gpu.widths[settled:]) <= kept  # and it never tries again
    assert kept in gpu.widths[settled:]


@pytest.mark.parametrize("stages", [4, 20, 100])
def test_auto_grows_however_short_domains_are(stages, gpu_of):
    assert max(gpu_of(lambda width: 0.2).play(stages=stages)) == MOST


@pytest.mark.parametrize("turns", [4, 8, 20])
def test_auto_grows_however_short_jobs_are(turns, gpu_of):
    """All lanes are never running for long: one of them has just ended, or is starting, which costs little here."""
    gpu = gpu_of(lambda width: 0.2)

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
def test_auto_is_not_misled_by_jobs_that_take_longer(kinds, gpu_of):
    """Lanes are compared with those of their own kind: a slow job after a fast one is no sign of a full device."""
    gpu = gpu_of(lambda width: 0.2)
    gpu.play(kinds=kinds)
    assert max(gpu.widths) == MOST
    assert gpu.widths[-MOST - 1 :] == list(range(MOST, -1, -1))  # until no job is left
    full = gpu_of(lambda width: 0.2 * max(1, width / 4))
    full.play(kinds=kinds)
    assert max(full.widths) == 8
    assert 4 in full.widths[full.widths.index(8) :]


def test_auto_stops_where_the_memory_would_be_taken(gpu_of):
    """A lane takes a tenth: four take 0.4, and twice that would not leave a fifth."""
    gpu = gpu_of(lambda width: 0.2, share=0.1)
    assert max(gpu.play()) == 4


def test_auto_gives_up_growing_when_a_run_finds_no_memory(gpu_of):
    gpu = gpu_of(lambda width: 0.2)

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


def test_auto_watches_for_a_while_before_it_grows(gpu_of):
    gpu = gpu_of(lambda width: 0.2)
    for _ in interleave(range(4), gpu.start, "auto", CUDA):
        if len(gpu.running) > 1:
            break
    assert WINDOW_SECONDS <= gpu.now <= WINDOW_SECONDS + 4 * 0.2


def test_a_number_of_lanes_is_kept(gpu_of):
    gpu = gpu_of(lambda width: 0.2 * width)
    assert max(gpu.play(20, lanes=5)) == 5
    assert set(gpu.widths[: gpu.widths.index(5) + 1]) == {1, 2, 3, 4, 5}
