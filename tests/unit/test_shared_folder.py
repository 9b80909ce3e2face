"""Processes that sweep into one folder: each run is made once, and what several begin with too."""

import errno
import itertools
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import Event, Thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metadr import lanes as lanes_module
from metadr import sweep as sweep_module
from metadr.beginnings import FOLDER, Beginnings
from metadr.benchmarks import make_recipe
from metadr.engine.ground import Ground
from metadr.lanes import BEGUN_ELSEWHERE, ELSEWHERE, interleave
from metadr.promises import Promises
from metadr.run import run
from metadr.store import Busy, RunDirectory
from metadr.sweep import Job, sweep

pytestmark = pytest.mark.usefixtures("whole_ends")
CPU = torch.device("cpu")
SECONDS = 20  # after which a process that should have ended has failed
ORDERS = list(itertools.permutations(("red", "green", "blue")))
trained_in_a_fork = pytest.mark.skipif(
    torch.cuda.is_available(), reason="beside a GPU autograd has threads, without which a forked process cannot train"
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Other processes are looked at again after a moment."""
    monkeypatch.setattr(lanes_module, "IDLE_SECONDS", 0.01)
    monkeypatch.setattr(sweep_module, "AGAIN_SECONDS", 0.01)


@contextmanager
def process(work: Callable[[], None]) -> Iterator[int]:
    """Another process that does this; within, its number. At the end it has succeeded, or was killed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch has threads; the child does without them
        child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    ended = None
    try:
        yield child
        deadline = time.monotonic() + SECONDS
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            assert time.monotonic() < deadline, "the process goes on and on"
            time.sleep(0.01)
        assert os.waitstatus_to_exitcode(ended[1]) in (0, -signal.SIGKILL)
    finally:
        if ended in (None, (0, 0)):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def wait_for(what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def jobs_in_every_order(method: str, *, steps: int) -> list[Job]:
    return [Job(make_recipe("toy-shapes", method, order=order, steps=steps), 0) for order in ORDERS]


# Promises.


def test_what_another_promises_is_seen_until_it_is_kept_or_taken_back(tmp_path):
    with closing(Promises(tmp_path / "shared")) as one, closing(Promises(tmp_path / "shared")) as other:
        assert one.of_others() == set()
        one.hold({"a", "b"})
        assert (one.of_others(), other.of_others(), other.of_others()) == (set(), {"a", "b"}, {"a", "b"})
        other.hold({"c"})
        one.hold({"b"})
        assert (one.of_others(), other.of_others()) == ({"c"}, {"b"})
        one.hold(set())
        assert other.of_others() == set()
        one.hold({"d"})
        one.close()
        assert other.of_others() == set()
    assert list((tmp_path / "shared").iterdir()) == []


def test_what_is_still_promised_is_seen_while_the_rest_changes(tmp_path):
    """Whoever looks at a moment when nothing is there would train what is on its way."""
    ended = Event()

    def change() -> None:
        while not ended.is_set():
            one.hold({"a", "b"})
            one.hold({"a"})

    with closing(Promises(tmp_path)) as one, closing(Promises(tmp_path)) as other:
        one.hold({"a"})
        changing = Thread(target=change)
        changing.start()
        seen = [other.of_others() for _ in range(3000)]
        ended.set()
        changing.join()
    assert all("a" in each for each in seen)


def test_those_of_a_process_that_was_killed_count_no_longer(tmp_path):
    def promise_and_sleep() -> None:
        promises = Promises(tmp_path)
        promises.hold({"a"})
        time.sleep(SECONDS)

    with closing(Promises(tmp_path)) as promises:
        with process(promise_and_sleep) as child:
            wait_for(promises.of_others)
            assert promises.of_others() == {"a"}
            os.kill(child, signal.SIGKILL)
        assert promises.of_others() == set()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("refused", ["flock", "LOCK_NB"])
def test_where_nothing_can_be_locked_nothing_is_promised(refused, tmp_path, monkeypatch):
    if refused == "flock":

        def no_locks(*arguments: Any) -> None:
            raise OSError("No locks available")

        monkeypatch.setattr("metadr.promises.fcntl.flock", no_locks)
        folder = tmp_path
    else:
        folder = tmp_path / "file" / "in a file"
        folder.parent.write_bytes(b"")
    with closing(Promises(folder)) as one, closing(Promises(folder)) as other:
        one.hold({"a"})
        assert other.of_others() == set()
    assert [path.name for path in tmp_path.iterdir()] == ([] if refused == "flock" else ["file"])


# Beginnings.


def test_a_run_waits_for_what_another_process_is_about_to_leave(registered_toys, tmp_path, monkeypatch):
    monkeypatch.setattr("metadr.beginnings.LOOK_SECONDS", 0.0)
    red_green, red_blue, green_red = jobs_in_every_order("dr", steps=3)[:3]
    jobs = [red_green, red_blue, green_red]
    with ExitStack() as stack:
        here, there = (stack.enter_context(closing(Beginnings(jobs, tmp_path, CPU))) for _ in range(2))
        there.start(*red_green)
        assert here.waits(red_blue, [])
        assert not here.waits(green_red, [])
        leave = there.leaves(*red_green, 1)
        run(*red_green, out=tmp_path / "elsewhere", device="cpu")
        leave(RunDirectory(tmp_path / "elsewhere", *red_green).checkpoints()[0])
        assert not here.waits(red_blue, [])
        assert here.find(*red_blue, lambda begun: True).num_domains == 1


@pytest.mark.parametrize("ends", ["put back", "closed", "not kept"])
def test_nobody_waits_for_a_run_elsewhere_that_leaves_nothing(ends, registered_toys, tmp_path, monkeypatch):
    monkeypatch.setattr("metadr.beginnings.LOOK_SECONDS", 0.0)
    jobs = jobs_in_every_order("dr", steps=3)[:2]
    with ExitStack() as stack:
        here, there = (stack.enter_context(closing(Beginnings(jobs, tmp_path, CPU))) for _ in range(2))
        there.start(*jobs[0])
        assert here.waits(jobs[1], [])
        if ends == "put back":
            there.put_back(*jobs[0])
            assert here.num_ended(*jobs[0]) == there.num_ended(*jobs[0]) == 0
            assert not there.waits(jobs[0], [])
        elif ends == "closed":
            there.close()
        else:
            there.leaves(*jobs[0], 1)(tmp_path / "is not there")
        assert not here.waits(jobs[1], [])


def test_a_beginning_that_two_processes_left_is_removed_with_all_that_is_of_it(registered_toys, tmp_path, monkeypatch):
    monkeypatch.setattr("metadr.beginnings.LOOK_SECONDS", 0.0)
    jobs = jobs_in_every_order("dr", steps=3)[:2]
    with closing(Beginnings(jobs, tmp_path, CPU)) as here, closing(Beginnings(jobs, tmp_path, CPU)) as there:
        leaving = [each.leaves(*job, 1) for each, job in zip((here, there), jobs, strict=True)]
        for leave, job in zip(leaving, jobs, strict=True):
            run(*job, out=tmp_path / "elsewhere", device="cpu")
            leave(RunDirectory(tmp_path / "elsewhere", *job).checkpoints()[0])
        assert len(list((tmp_path / FOLDER).glob("*.safetensors"))) == 2
        for job in jobs:
            here.end(*job)
        assert not list((tmp_path / FOLDER).glob("*.safetensors"))
    assert not (tmp_path / FOLDER).exists()


def test_what_one_gpu_has_begun_another_of_its_kind_goes_on_with_as_its_own(tmp_path, registered_toys):
    (job,) = jobs_in_every_order("dr", steps=3)[:1]
    directory = RunDirectory(tmp_path, *job)
    directory.path.mkdir(parents=True)
    here = {"torch": "2", "device": "cuda:0", "gpu": "H200"}
    directory.write("environment.json", here)
    assert directory.goes_on_with({**here, "device": "cuda:1"})
    assert directory.goes_on_with({**here, "device": "cuda"})
    assert directory.read("environment.json") == here
    assert not directory.goes_on_with({**here, "device": "cuda:1", "gpu": "A100"})
    assert not directory.goes_on_with(here)


# Turns.


def test_a_job_that_another_process_has_is_put_back_and_waited_for():
    held, asked = {"a"}, []

    def start(job: str) -> Iterator[None]:
        if job in held:
            raise Busy(f"{job} is being run")
        yield None

    def waits(job: str, running: Any) -> bool:
        asked.append(job)
        if job == "a" and asked.count("a") == 9:
            held.clear()
        return job == "a" and bool(held) and asked.count("a") > 1

    happened = list(interleave("ab", start, 1, CPU, waits=waits))
    assert [(each.job, each.waits, each.error) for each in happened if each.waits or not each.progress] == [
        ("a", ELSEWHERE, None),
        ("b", "", None),
        ("a", "", None),
    ]
    assert asked.count("a") >= 9


def test_of_those_that_wait_for_another_process_one_that_fits_is_told():
    looked = itertools.count()

    def start(job: str) -> Iterator[None]:
        raise AssertionError(f"{job} was to wait")

    waiting = {"waits": lambda job, running: True, "fits": lambda job: job == "b"}
    happened = list(interleave("ab", start, 1, CPU, stop=lambda: next(looked) > 3, **waiting))
    assert [(each.job, each.waits) for each in happened] == [("b", BEGUN_ELSEWHERE)]


# Sweeps.


class Heard:
    """A watcher that keeps what became of each run."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def show(self, title: str, now: Any) -> None: ...

    def end(self, title: str, text: str) -> None:
        self.ends.append(text)

    def overall(self, now: Any) -> None: ...


@trained_in_a_fork
@pytest.mark.parametrize("lanes", [1, 3])
def test_two_processes_make_every_run_once_and_to_the_same_bits(lanes, registered_toys, toys, tmp_path):
    jobs, out = jobs_in_every_order("er+meta-dr", steps=8), tmp_path / "shared"

    def work() -> None:
        outcome = sweep(jobs, out=out, device="cpu", lanes=lanes)
        assert (len(outcome.done), outcome.failed) == (6, [])

    with process(work):
        work()
    assert not (out / FOLDER).exists()
    taken = [json.loads(path.read_text())["steps"] for path in out.rglob("done.json")]
    assert (len(taken), sum(taken)) == (6, 15 * 8)  # first domains, first two, and all three
    for job in jobs:
        run(*job, out=tmp_path / "alone", device="cpu")
        one, other = (RunDirectory(tmp_path / folder, *job) for folder in ("shared", "alone"))
        assert one.read("rows.json") == other.read("rows.json")
        toys.assert_same_bits(*(load_file(each.checkpoints()[0]) for each in (one, other)))


@trained_in_a_fork
@pytest.mark.parametrize(
    ("num_jobs", "told"), [(2, "another process is training what it begins with"), (1, "another process has it")]
)
def test_what_a_process_that_is_killed_had_is_taken_over(num_jobs, told, registered_toys, toys, tmp_path):
    """Alone, a run leaves nothing that another process could wait for but itself."""
    jobs, out, heard = jobs_in_every_order("dr", steps=60)[:2], tmp_path / "shared", Heard()

    def work() -> None:
        sweep(jobs[:num_jobs], out=out, device="cpu")

    def kill_once_waited_for(child: int) -> None:
        wait_for(lambda: heard.ends)
        os.kill(child, signal.SIGKILL)

    with process(work) as child:
        wait_for(lambda: RunDirectory(out, *jobs[0]).held)
        os.kill(child, signal.SIGSTOP)  # it keeps what it has
        killer = Thread(target=kill_once_waited_for, args=(child,))
        killer.start()
        outcome = sweep(jobs, out=out, device="cpu", watcher=heard)
        killer.join()
    assert (sorted(outcome.done, key=jobs.index), outcome.failed) == (jobs, [])
    assert not any("another process" in text for text in heard.ends[1:])  # it ended none
    assert heard.ends[0].endswith(f": waits: {told}")
    for job in jobs:
        run(*job, out=tmp_path / "alone", device="cpu")
        one, other = (RunDirectory(tmp_path / folder, *job) for folder in ("shared", "alone"))
        toys.assert_same_bits(*(load_file(each.checkpoints()[0]) for each in (one, other)))


def test_who_waits_for_another_process_can_be_stopped(registered_toys, tmp_path):
    (job,) = jobs_in_every_order("dr", steps=3)[:1]
    heard, looked = Heard(), itertools.count()
    with RunDirectory(tmp_path, *job).claimed():
        outcome = sweep(
            [job], out=tmp_path, device="cpu", watcher=heard, stop=lambda: bool(heard.ends) and next(looked) > 20
        )
    assert (outcome.done, outcome.failed) == ([], [])
    assert heard.ends == [f"{job.title}: waits: another process has it"]  # said once, though looked at again
    assert not RunDirectory(tmp_path, *job).held


def test_a_run_is_held_while_it_is_claimed(registered_toys, tmp_path):
    (job,) = jobs_in_every_order("dr", steps=3)[:1]
    directory, claimed, leave = RunDirectory(tmp_path, *job), Event(), Event()
    assert not directory.held

    def claim() -> None:
        with RunDirectory(tmp_path, *job).claimed():
            claimed.set()
            leave.wait(SECONDS)

    holder = Thread(target=claim)
    holder.start()
    assert claimed.wait(SECONDS) and directory.held and directory.held
    leave.set()
    holder.join()
    assert not directory.held


def test_a_run_that_another_process_ends_before_it_can_be_claimed_stays_as_it_is(
    registered_toys, tmp_path, monkeypatch
):
    (job,) = jobs_in_every_order("dr", steps=3)[:1]
    path = RunDirectory(tmp_path, *job).path
    made: dict[str, int] = {}

    def times() -> dict[str, int]:
        return {each.name: each.stat().st_mtime_ns for each in path.iterdir() if each.name != "lock"}

    def ground_after_the_other(*arguments: Any) -> Ground:  # made between the look and the claim
        patch.undo()
        run(*job, out=tmp_path, device="cpu")
        made.update(times())
        return Ground(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[run.__module__], "Ground", ground_after_the_other)
        result = run(*job, out=tmp_path, device="cpu")
    assert "done.json" in made and times() == made
    assert result.rows == RunDirectory(tmp_path, *job).read("rows.json")


def test_who_finds_a_run_finished_by_another_process_says_so(registered_toys, tmp_path):
    (job,) = jobs_in_every_order("dr", steps=3)[:1]
    heard = Heard()
    run(*job, out=tmp_path, device="cpu")
    assert sweep([job], out=tmp_path, device="cpu", watcher=heard).done == [job]
    assert heard.ends == [f"{job.title}: done by another process"]


def test_on_a_disk_that_locks_no_files_every_run_fails_in_a_sentence(registered_toys, tmp_path, monkeypatch):
    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("metadr.store.fcntl.flock", no_locks)
    jobs = jobs_in_every_order("dr", steps=3)[:2]
    outcome = sweep(jobs, out=tmp_path, device="cpu")
    lock = RunDirectory(tmp_path, *jobs[0]).path / "lock"
    said = f"Cannot lock {lock}: No locks available. Choose a folder --out on a disk that locks files."
    assert (outcome.done, [job for job, _ in outcome.failed], outcome.failed[0][1]) == ([], jobs, said)
