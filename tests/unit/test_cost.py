"""What a sweep says it will take: from measured steps on a GPU, else from finished runs, else that it is unknown."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from metadr import cost, provenance
from metadr.benchmarks import make_recipe
from metadr.clock import Clock
from metadr.cost import Cost, estimate
from metadr.run import run
from metadr.store import RunDirectory, description
from metadr.survey import seconds_a_step, survey
from metadr.sweep import Job, sweep

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def test_finished_runs_tell_the_time_of_their_method(registered_toys, tmp_path: Path) -> None:
    for seed, seconds in enumerate((6.0, 9.0, 90.0)):
        recipe = make_recipe("toy-shapes", "dr", steps=3)
        run(recipe, seed, out=tmp_path, device="cpu")
        RunDirectory(tmp_path, recipe, seed).write("done.json", {"seconds": seconds})
    # The median, 9 seconds of 9 steps; longer runs take longer.
    jobs = [Job(make_recipe("toy-shapes", "dr", steps=5, lr=0.5), 0), Job(make_recipe("toy-shapes", "dr"), 7)]
    assert estimate(jobs, tmp_path, CPU) == Cost(3 * (5 + 3), pytest.approx(24.0), Counter())
    methods = ("naive", "meta-dr", "meta-dr", "oracle-all+dr")
    others = [Job(make_recipe("toy-shapes", method), seed) for seed, method in enumerate(methods)]
    others += [Job(make_recipe("toy-shapes", "dr", batch_size=3), 0)]
    unknown = Counter({"meta-dr": 2, "naive": 1, "oracle-all+dr": 1, "dr": 1})
    assert estimate([*jobs, *others], tmp_path, CPU) == Cost(24 + 5 * 9, pytest.approx(24.0), unknown)
    assert estimate(jobs, tmp_path / "nowhere", CPU).unknown == Counter({"dr": 2})


def test_runs_side_by_side_tell_the_time_of_their_own_turns(registered_toys, tmp_path: Path) -> None:
    recipe = make_recipe("toy-shapes", "dr", steps=3)
    outcome = sweep([Job(recipe, seed) for seed in range(3)], out=tmp_path, device="cpu", lanes=3)
    told = [json.loads((RunDirectory(tmp_path, *job).path / "done.json").read_text()) for job in outcome.done]
    assert all(each["own_seconds"] > 0 for each in told)
    for job in outcome.done:
        RunDirectory(tmp_path, *job).write("done.json", {"seconds": 90.0, "own_seconds": 30.0, "steps": 9})
    assert estimate([Job(recipe, 7)], tmp_path, CPU) == Cost(9, pytest.approx(30.0), Counter())


def test_only_turns_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([10.0, 11.0, 12.0, 20.0, 21.0, 23.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    clock = Clock()
    with clock.running():  # from 10
        assert clock.seconds == 1  # at 11; the turn ends at 12
    with clock.running():  # from 20
        assert clock.seconds == 2 + 1
    monkeypatch.undo()
    assert clock._past == 2 + 3


def test_kinds_of_which_nothing_is_known_are_timed_where_much_is_to_be_run(registered_toys, tmp_path: Path) -> None:
    many, few = make_recipe("toy-shapes", "dr", steps=500), make_recipe("toy-shapes", steps=5)
    asked = []

    def timed(recipe: Any, device: torch.device) -> float:
        asked.append(recipe)
        return 0.5

    jobs = [Job(many, 0), Job(many, 1), Job(few, 0)]
    told = estimate(jobs, tmp_path, CPU, timed=timed)
    assert asked == [many]  # once for both
    assert told == Cost(2 * 1500 + 15, pytest.approx(1500.0), Counter({"naive": 1}))
    run(make_recipe("toy-shapes", "dr", steps=2), out=tmp_path, device="cpu")
    assert estimate(jobs[:2], tmp_path, CPU, timed=timed).seconds != 1500.0
    assert asked == [many]  # a finished run tells more


def test_a_few_steps_tell_what_a_run_takes(registered_toys) -> None:
    recipe = make_recipe("toy-shapes", "dr", steps=100)
    rate = seconds_a_step(recipe, CPU)
    assert 0 < rate < 1
    whole = survey(recipe, {}, device="cpu").cost
    assert rate == pytest.approx(whole.seconds / 300, rel=5)  # of the same order: two measurements of some milliseconds


def test_what_was_learnt_of_a_run_is_not_paid_for_again(registered_toys, tmp_path: Path) -> None:
    recipe = make_recipe("toy-shapes", "dr", steps=3)
    rows = [{"after": name, "on": "red"} for name in ("untrained", *recipe.order[:2])]
    directory = RunDirectory(tmp_path, recipe, 0)
    directory.path.mkdir(parents=True)
    directory.write("rows.json", rows)
    assert estimate([Job(recipe, 0), Job(recipe, 1)], tmp_path, CPU).steps == 3 + 9


def test_a_damaged_run_tells_nothing(registered_toys, tmp_path: Path) -> None:
    recipe = make_recipe("toy-shapes", steps=3)
    path = run(recipe, out=tmp_path, device="cpu").path
    (path / "environment.json").write_text("{")
    assert estimate([Job(recipe, 1)], tmp_path, CPU).unknown == Counter({"naive": 1})


@pytest.fixture
def measured(tmp_path: Path) -> Any:
    """Writes what `metadr bench step` measured."""

    def write(name: str, ms: dict[str, float], **changes: Any) -> None:
        rows = [
            {"method": method, "precision": "fp32", "contender": contender, "ms": value}
            for (method, contender), value in ms.items()
        ]
        content = {
            "model": "resnet18",
            "size": 32,
            "batch": 64,
            "rows": rows,
            "environment": {"gpu": "abacus"},
            **changes,
        }
        (tmp_path / f"step-{name}.json").write_text(json.dumps(content))

    return write


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, measured: Any) -> Path:
    """A GPU of a name, and steps that were measured on it and on another."""
    monkeypatch.setattr(cost.torch.cuda, "get_device_name", lambda device: "abacus")
    measured("own", {("naive", "metadr"): 4.0, ("naive", "metadr, 16 lanes"): 2.0, ("naive", "higher"): 1.0})
    measured("large", {("naive", "metadr"): 0.1}, size=224)
    measured("free", {("naive", "metadr, not deterministic"): 0.1, ("naive", "metadr, recomputed"): 0.1})
    measured("other", {("naive", "metadr"): 0.1}, environment={"gpu": "other"})
    measured("older", {("naive", "metadr"): 0.1}, rows=[{"contender": "metadr"}])
    (tmp_path / "step-damaged.json").write_text("{")
    monkeypatch.setattr(cost, "published_files", lambda pattern: sorted(tmp_path.glob(Path(pattern).name)))
    return tmp_path


def test_on_a_gpu_measured_steps_tell_it(gpu: Path) -> None:
    naive, other = make_recipe("digits/p1"), make_recipe("digits/p1", "ewc")
    assert estimate([Job(naive, 0)], gpu / "nowhere", GPU) == Cost(12_000, pytest.approx(48.0), Counter())
    two = estimate([Job(naive, 0), Job(other, 0)], gpu / "nowhere", GPU)
    # The second goes on from the end of their first domain.
    assert two == Cost(21_000, pytest.approx(24.0), Counter({"ewc": 1}))
    assert estimate([Job(naive, 0), Job(other, 0)], gpu / "nowhere", GPU, lanes=1).seconds == pytest.approx(48.0)
    assert estimate([Job(naive, 0)], gpu / "nowhere", CPU).unknown == Counter({"naive": 1})


def test_runs_of_one_s_own_tell_it_better(gpu: Path) -> None:
    """They have tests and a beginning in their time."""
    naive = make_recipe("digits/p1")
    made = {"recipe.json": {**description(naive), "seed": 3}, "environment.json": {"device": "cuda", "gpu": "abacus"}}
    made |= {"rows.json": [], "done.json": {"own_seconds": 60.0, "seconds": 90.0, "steps": 12_000}}
    folder = gpu / "runs" / "digits" / "naive-seed3"
    folder.mkdir(parents=True)
    for name, content in made.items():
        (folder / name).write_text(json.dumps(content))
    assert estimate([Job(naive, 0)], gpu / "runs", GPU) == Cost(12_000, pytest.approx(60.0), Counter())


def test_frames_are_known_by_their_size(gpu: Path, measured: Any, streets: Path) -> None:
    """Those of the fixture are 64x32, and a recipe may resize them: a step at another size says nothing of theirs."""
    measured("streets", {("naive", "metadr"): 500.0}, model="tiny_unet", size="64x32", batch=2)
    measured("larger", {("naive", "metadr"): 9000.0}, model="tiny_unet", size="416x128", batch=2)
    usual, resized = (make_recipe("vkitti2-rendered/p1/1", tiny=True, **size) for size in ({}, {"size": "48x24"}))
    assert estimate([Job(usual, 0)], gpu / "nowhere", GPU) == Cost(6, pytest.approx(3.0), Counter())
    assert estimate([Job(resized, 0)], gpu / "nowhere", GPU) == Cost(6, 0.0, Counter({"naive": 1}))
    measured("smaller", {("naive", "metadr"): 100.0}, model="tiny_unet", size="48x24", batch=2)
    assert estimate([Job(resized, 0)], gpu / "nowhere", GPU) == Cost(6, pytest.approx(0.6), Counter())


def test_finished_runs_on_frames_of_another_size_tell_nothing(streets: Path, tmp_path: Path) -> None:
    usual, resized = (make_recipe("vkitti2-rendered/p1/1", tiny=True, **size) for size in ({}, {"size": "48x24"}))
    run(usual, out=tmp_path, device="cpu")
    RunDirectory(tmp_path, usual, 0).write("done.json", {"seconds": 12.0, "steps": 6})
    jobs = [Job(usual, 1), Job(resized, 1)]
    assert estimate(jobs, tmp_path, CPU) == Cost(12, pytest.approx(12.0), Counter({"naive": 1}))


def test_what_is_published_tells_it_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever `metadr bench step` writes today, a sweep on the same GPU can read."""
    published = json.loads(provenance.published_files("bench/step-meta-dr.json")[0].read_text())
    monkeypatch.setattr(cost.torch.cuda, "get_device_name", lambda device: published["environment"]["gpu"])
    jobs = [Job(make_recipe("digits/p1", "meta-dr", precision="tf32"), seed) for seed in range(2)]
    ms = {row["contender"]: row["ms"] for row in published["rows"] if row["precision"] == "tf32"}
    seconds = 24_000 * ms["metadr, 16 lanes"] / 1000
    assert estimate(jobs, tmp_path / "nowhere", GPU) == Cost(24_000, pytest.approx(seconds), Counter())


def test_in_words() -> None:
    assert str(Cost(12_000, 125.0, Counter())) == "12,000 steps to take; about 2:05."
    assert str(Cost(12_000, 125.0, Counter({"ewc": 3, "er": 1}))) == (
        "12,000 steps to take; about 2:05, without runs of which the time is unknown: 3 of ewc, 1 of er."
    )
    assert str(Cost(12_000, 0.0, Counter({"ewc": 3}))) == (
        "12,000 steps to take; how long they take is unknown: no run of these methods was finished or measured."
    )
