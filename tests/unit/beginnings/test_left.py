"""What a run leaves for others to begin with: who waits for it, who takes it, and when it is of no use."""

from collections import deque
from contextlib import closing
from pathlib import Path

import pytest
import torch

from metadr.beginnings import FOLDER
from metadr.lanes import interleave
from metadr.run import advance, run
from metadr.store import RunDirectory
from metadr.sweep import Job, sweep

pytestmark = pytest.mark.usefixtures("whole_ends")


def stopped_run(job: Job, out: Path) -> RunDirectory:
    """A run that was stopped in its first domain."""
    pauses = advance(*job, out=out, device="cpu")
    assert next(pause for pause in pauses if pause is not None).stage == 0
    pauses.close()
    return RunDirectory(out, *job)


def test_what_another_environment_trained_is_left_to_nobody(registered_toys, toys, begin, tmp_path, monkeypatch):
    jobs = toys.every_order("dr", steps=30)[:2]
    directory = stopped_run(jobs[0], tmp_path)
    directory.write("environment.json", {**directory.read("environment.json"), "torch": "1.0"})
    beginnings = begin(jobs, tmp_path)
    deque(advance(*jobs[0], out=tmp_path, device="cpu", beginnings=beginnings), maxlen=0)
    assert not (tmp_path / FOLDER).exists()
    beginnings._keep(beginnings._keys[jobs[0]][0], directory.checkpoints()[0])
    assert beginnings.find(*jobs[1], lambda begun: True) is not None
    monkeypatch.setattr("metadr.beginnings.environment", lambda device: {"torch": "1.0"})
    assert begin(jobs, tmp_path).find(*jobs[1], lambda begun: True) is None


def test_nobody_waits_for_what_goes_on_in_another_environment(registered_toys, toys, begin, tmp_path):
    jobs = toys.every_order("dr", steps=30)[:2]
    directory = stopped_run(jobs[0], tmp_path)
    directory.write("environment.json", {**directory.read("environment.json"), "torch": "1.0"})
    here, there = (begin(jobs, tmp_path) for _ in range(2))
    here.start(*jobs[0])
    with closing(advance(*jobs[0], out=tmp_path, device="cpu", beginnings=here)) as pauses:
        assert next(pause for pause in pauses if pause is not None).stage == 0
        assert not here.waits(jobs[1], [jobs[0]])
        assert not there.waits(jobs[1], [])


def test_a_run_that_was_stopped_waits_for_nobody_and_leaves_what_it_has_not_passed(
    registered_toys, toys, begin, tmp_path
):
    jobs = toys.every_order("dr", steps=30)[:2]
    stopped_run(jobs[0], tmp_path)
    beginnings = begin(jobs, tmp_path)
    beginnings.start(*jobs[1])
    assert not beginnings.waits(jobs[0], [jobs[1]])
    again = begin(jobs, tmp_path)
    again.start(*jobs[0])
    assert again.waits(jobs[1], [jobs[0]])


@pytest.mark.parametrize("content", [b"", b"short", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}"], ids=range(4))
def test_a_damaged_checkpoint_is_the_run_s_own_affair(content, registered_toys, toys, tmp_path):
    jobs = toys.every_order("dr", steps=30)[:2]
    for path in stopped_run(jobs[0], tmp_path).checkpoints():
        path.write_bytes(content)
    assert sweep(jobs, out=tmp_path, device="cpu").failed == []
    for job in jobs:
        run(*job, out=tmp_path / "alone", device="cpu")
        toys.assert_same_bits(toys.final(tmp_path, job), toys.final(tmp_path / "alone", job))


def test_a_sweep_removes_its_own_beginnings_alone(registered_toys, toys, tmp_path):
    other = tmp_path / FOLDER / "0123456789abcdef-0123456789abcdef.safetensors"
    other.parent.mkdir()
    other.write_bytes(b"of another sweep")
    sweep([], out=tmp_path, device="cpu")
    sweep(toys.every_order(), out=tmp_path, device="cpu")
    assert list(other.parent.iterdir()) == [other]


def test_a_damaged_beginning_is_not_used(registered_toys, toys, begin, tmp_path):
    first, second = toys.every_order("dr")[:2]
    beginnings = begin([first, second], tmp_path)
    leave = beginnings.leaves(*first, 1)
    assert leave is not None
    assert beginnings.leaves(*first, 2) is None  # nobody else begins with red and green
    run(*first, out=tmp_path, device="cpu")
    leave(RunDirectory(tmp_path, *first).checkpoints()[0])
    found = beginnings.find(*second, lambda begun: True)
    assert found is not None and found.num_domains == 1
    (kept,) = (tmp_path / FOLDER).iterdir()
    content = kept.read_bytes()
    beginnings._keep(beginnings._keys[second][1], RunDirectory(tmp_path, *first).checkpoints()[0])
    longer = next(path for path in (tmp_path / FOLDER).iterdir() if path != kept)
    assert beginnings.find(*second, lambda begun: True).num_domains == 2
    longer.unlink()  # it is the run's own file too
    longer.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert beginnings.find(*second, lambda begun: True).num_domains == 1
    assert not longer.exists()
    kept.unlink()
    assert beginnings.find(*second, lambda begun: True) is None
    assert beginnings.leaves(*first, 1) is not None  # so that it may come again


def test_a_run_waits_for_what_another_is_about_to_leave(registered_toys, toys, begin, tmp_path):
    jobs = toys.every_order("dr")
    beginnings = begin(jobs, tmp_path)
    red_green, red_blue, green_red = jobs[:3]
    assert not beginnings.waits(red_blue, [])
    beginnings.start(*red_green)
    assert beginnings.waits(red_blue, [red_green])
    assert not beginnings.waits(green_red, [red_green])
    assert not beginnings.waits(red_blue, [])  # it failed, or found no memory
    leave = beginnings.leaves(*red_green, 1)
    run(*red_green, out=tmp_path, device="cpu")
    leave(RunDirectory(tmp_path, *red_green).checkpoints()[0])
    assert not beginnings.waits(red_blue, [red_green])


def test_the_domains_that_a_run_need_not_train_on_are_known_before_it_starts(registered_toys, toys, begin, tmp_path):
    jobs = toys.every_order("dr")
    red_green, red_blue, green_red = jobs[:3]
    beginnings = begin(jobs, tmp_path)
    leave = beginnings.leaves(*red_green, 1)
    run(*red_green, out=tmp_path / "other", device="cpu")
    assert [beginnings.num_ended(*job) for job in (red_blue, green_red)] == [0, 0]
    leave(RunDirectory(tmp_path / "other", *red_green).checkpoints()[0])
    assert [beginnings.num_ended(*job) for job in (red_blue, green_red)] == [1, 0]
    stopped_run(red_blue, tmp_path)  # goes on from its own checkpoint, within the first domain
    run(*green_red, out=tmp_path, device="cpu")
    again = begin(jobs, tmp_path)
    assert [again.num_ended(*job) for job in (red_green, red_blue, green_red)] == [1, 0, 3]


def test_nobody_waits_for_a_run_that_goes_on(registered_toys, toys, begin, tmp_path):
    red_green, red_blue = toys.every_order("dr")[:2]
    run(*red_green, out=tmp_path, device="cpu")  # has checkpoints, and left nothing
    beginnings = begin([red_green, red_blue], tmp_path)
    beginnings.start(*red_green)
    assert not beginnings.waits(red_blue, [red_green])


def test_a_job_that_waits_lets_others_go_first():
    started: list[str] = []

    def start(job):
        started.append(job)
        yield from (None, None)

    def waits(job, running):
        return job == "later" and "first" in running

    cpu = torch.device("cpu")
    ended = [happened.job for happened in interleave(["first", "later", "other"], start, 2, cpu, waits=waits)]
    assert started == ["first", "other", "later"]
    assert sorted(ended) == ["first", "later", "other"]
