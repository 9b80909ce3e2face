"""The commands, from a terminal's point of view: what they print, what they write, what they leave alone."""

import csv
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import metadr
from metadr import listing, sweep
from metadr.benchmarks import BENCHMARKS, recipe_names
from metadr.parts import PARTS
from metadr.recipes import TABLES, get_table
from metadr.stopping import Stop
from metadr.store import RunDirectory
from metadr.transforms import SETS, TRANSFORMS

Command = Callable[..., Any]

NAMES = {
    "benchmarks": BENCHMARKS,
    "recipes": recipe_names(),
    "tables": TABLES,
    "methods": [*PARTS, "naive", "oracle-all", "oracle-cumulative"],
    "fields": ["steps", "memory_per_domain", "meta-dr.inner_lr", "dr.transforms"],
    "transforms": [*TRANSFORMS, *SETS],
    "models": ["tiny_resnet", "resnet18"],
}
DOMAINS = ("handwritten", "blended", "rendered", "street")
MOMENTS = ("untrained", *DOMAINS)


def first_column(text: str) -> list[str]:
    return [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("kind", listing.KINDS)
def test_list_names_all_there_is(kind: str, command: Command) -> None:
    ended = command("list", kind)
    assert (ended.code, ended.err) == (0, "")
    assert set(NAMES[kind]) <= set(first_column(ended.out))
    assert all(len(line) <= 120 for line in ended.out.splitlines())


def test_list_without_a_kind_shows_all_short_lists(command: Command) -> None:
    ended = command("list")
    assert ended.code == 0
    for kind in ("benchmarks", "recipes", "tables", "methods", "transforms"):
        assert set(NAMES[kind]) <= set(first_column(ended.out))


def test_every_command_explains_itself(command: Command) -> None:
    for words in ([], ["list"], ["run"], ["sweep"], ["demo"], ["report"], ["show"], ["bench"], ["bench", "transforms"]):
        ended = command(*words, "--help")
        assert ended.code == 0
        assert "Usage: " in ended.out


@pytest.mark.parametrize("method", ["naive", "er+meta-dr"])
@pytest.mark.parametrize("recipe", [name for name in recipe_names() if name.startswith("embedded")])
def test_tiny_shrinks_every_recipe_to_seconds(recipe: str, method: str, command: Command, tmp_path: Path) -> None:
    BENCHMARKS[recipe.partition("/")[0]].load("street")  # the data are made once, whatever the recipe
    started = time.monotonic()
    ended = command("run", recipe, "--method", method, "--tiny", "--out", tmp_path, "--device", "cpu")
    assert time.monotonic() - started < 20
    assert (ended.code, ended.err) == (0, "")
    (path,) = (tmp_path / "embedded").iterdir()
    order = BENCHMARKS["embedded"].protocols[recipe.partition("/")[2]]
    assert f"embedded: {' → '.join(order)}" in ended.out
    assert ended.out.endswith(f"Run: {path}\n")
    rows = json.loads((path / "rows.json").read_text())
    assert [(row["after"], row["on"]) for row in rows] == [
        (after, on) for after in ("untrained", *order) for on in order
    ]
    assert all(0 <= row["value"] <= 100 and row["images"] == 16 for row in rows)


def test_a_finished_run_is_only_read(make_toy: Callable[..., Any], command: Command, tmp_path: Path) -> None:
    make_toy()
    first = command("run", "toy", "--method", "dr", "--seed", 2, "--out", tmp_path)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    again = command("run", "toy", "--method", "dr", "--seed", 2, "--out", tmp_path)
    known = "This run was finished before: it is only shown.\n"
    assert again == first._replace(out=known + first.out)
    assert again.code == 0
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in tmp_path.rglob("*") if path.is_file()}
    assert before == after


def test_settings_reach_the_run(make_toy: Callable[..., Any], command: Command, tmp_path: Path) -> None:
    make_toy()
    fields = ["steps=3", "inner_lr = 0.05", "memory_per_domain=2", "order=c,a", "er.replay_batch=none", "limit=5"]
    words = [word for field in fields for word in ("--set", field)]
    assert command("run", "toy", "--method", "meta-dr+er", *words, "--out", tmp_path).code == 0
    (path,) = (tmp_path / "toy").iterdir()
    identity = json.loads((path / "recipe.json").read_text())
    assert identity["order"] == ["c", "a"]
    assert (identity["training"]["steps"], identity["training"]["limit"]) == (3, 5)
    assert identity["memory_per_domain"] == 2
    assert [(part["part"], part.get("inner_lr")) for part in identity["method"]] == [("er", None), ("meta-dr", 0.05)]
    assert {row["images"] for row in json.loads((path / "rows.json").read_text())} == {5}


@pytest.fixture(scope="module")
def demo_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration, tiny, two seeds: made by the Python interface, read by the commands."""
    out = tmp_path_factory.mktemp("demo")
    jobs = sweep.plan(get_table("demo", tiny=True).recipes, range(2), out)
    assert len(sweep.sweep(jobs.missing, out=out, device="cpu").done) == 6
    return out


def done_times(out: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in out.rglob("done.json")}


def test_a_sweep_sets_what_a_recipe_has(command: Command, tmp_path: Path) -> None:
    """Of its training for all, and of parts where they are."""
    words = ["--set", "steps=1", "--set", "dr.per=image", "--set", "recall=0.5"]
    ended = command("sweep", "demo", "--tiny", *words, "--out", tmp_path, "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    made = [json.loads(path.read_text()) for path in sorted(tmp_path.glob("embedded/*/recipe.json"))]
    assert {each["training"]["steps"] for each in made} == {1}
    parts = {part["part"]: part for each in made for part in each["method"]}
    assert (parts["dr"]["per"], parts["meta-dr"]["per"], parts["meta-dr"]["recall"]) == ("image", "batch", 0.5)


def test_a_sweep_runs_what_is_missing_only(command: Command, tmp_path: Path) -> None:
    first = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert (first.code, first.err) == (0, "")
    assert "3 recipes x 1 seeds, 0 finished, 3 to run." in first.out
    assert first.out.count("done in") == 3
    before = done_times(tmp_path)
    assert len(before) == 3

    again = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert again.code == 0
    assert "3 finished, 0 to run." in again.out
    assert "done in" not in again.out
    assert done_times(tmp_path) == before
    assert table_of(again.out) == table_of(first.out)

    (tmp_path / "demo.md").unlink()
    next(path for path in before if "meta-dr" in str(path)).unlink()
    third = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert "2 finished, 1 to run." in third.out
    assert third.out.count("done in") == 1
    assert table_of(third.out) == table_of(first.out)
    assert (tmp_path / "demo.md").exists()

    some = command("sweep", "demo", "--row", "Naive", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert "1 recipes x 1 seeds, 1 finished, 0 to run." in some.out
    assert table_of(some.out) == table_of(first.out)  # of all that was run

    several = command("sweep", "embedded", "demo", "--row", "naive", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert several.out.index("embedded: ") < several.out.index("demo: ") < several.out.index("embedded.md")
    _, after = several.out.split("embedded.png")
    assert table_of(after) == table_of(first.out)


def test_a_sweep_stops_when_its_time_is_up_and_goes_on_later(command: Command, tmp_path: Path) -> None:
    words = ("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    stopped = command(*words, "--minutes", 0)
    assert (stopped.code, stopped.err) == (0, "")
    assert stopped.out.endswith("Time is up with 3 runs left. The same command goes on from the last checkpoints.\n")
    assert not list(tmp_path.rglob("done.json"))
    ended = command(*words, "--minutes", 60, "--lanes", 2)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.count("done in") == 3
    assert "Time is up" not in ended.out
    assert len(done_times(tmp_path)) == 3


def test_a_sweep_of_whole_runs_leaves_those_that_would_not_end_in_time(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("sweep", "demo", "--tiny", "--seeds", 3, "--out", tmp_path, "--device", "cpu", "--minutes", 60)
    monkeypatch.setattr(Stop, "seconds_left", lambda self: 1e-6)  # always: it is never up, and nothing would end in it
    some = command(*words, "--whole")
    assert (some.code, some.err) == (0, "")
    assert some.out.count("done in") == 3  # the first of each method, of which nothing is known
    assert "demo: 3 of 9 runs done, 0 failed" in some.out
    assert some.out.endswith(
        "Not started: 6 runs, to end in time. The same command goes on from the last checkpoints.\n"
    )
    others = command(*words)
    assert (others.code, others.err) == (0, "")
    assert others.out.count("done in") == 6
    assert "Left out" not in others.out
    assert len(done_times(tmp_path)) == 9


def test_whole_runs_without_a_time_are_one_sentence(command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--whole")
    assert (ended.code, ended.out) == (2, "")
    told = "--whole starts only runs that will end in time, and no time is given. Add --minutes 9 or so."
    assert ended.err == f"Error: {told}\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lanes", ["0", "-1", "many", "1.5", "²", ""])
def test_a_number_of_lanes_that_is_none(lanes: str, command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--lanes", lanes)
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == f"Error: --lanes must be 'auto' or a whole number >= 1. Got '{lanes}' instead.\n"
    assert not list(tmp_path.iterdir())


def test_a_sweep_in_a_precision_that_the_device_lacks_is_one_sentence(command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu", "--set", "precision=tf32")
    assert ended.code == 2
    assert ended.err == "Error: Precision 'tf32' needs a GPU, and this run is on cpu. Use fp32, bf16 or a GPU.\n"
    assert not list(tmp_path.iterdir())


def test_a_sweep_in_half_precision_is_another_one(command: Command, tmp_path: Path) -> None:
    words = ("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    half = command(*words, "--set", "precision=bf16")
    assert (half.code, half.err) == (0, "")
    full = command(*words)
    assert (full.code, full.err) == (0, "")
    assert "0 finished, 3 to run." in full.out
    assert len(done_times(tmp_path)) == 6


def test_a_sweep_of_every_method_gives_one_row_each(command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "embedded", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    rows = [
        line.split("|")[1].strip() for line in (tmp_path / "embedded.md").read_text().splitlines() if line[:1] == "|"
    ]
    plain, memory = ["Naive", "Naive + DR", "Meta-DR", "L2", "L2 + DR", "EWC", "EWC + DR"], ["GEM", "GEM + DR"]
    memory += ["ER", "ER + DR", "ER + Meta-DR"]
    assert rows == ["method", "---", *plain, *memory, "Oracle (all)", "Oracle (cumul.)"]
    assert len(table_of(ended.out)) == 1 + 14


def table_of(text: str) -> list[list[str]]:
    """The rows of a printed table of results, split into words."""
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:1] == ["method"])
    body = lines[head + 2 :]
    return [lines[head].split(), *(line.split() for line in body[: body.index(next(b for b in body if not b.strip()))])]


def test_a_failed_run_is_a_stored_result_and_the_others_go_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: object, raw: object, batch: object, ctx: object) -> float:
        raise ArithmeticError("the meta-learner is out")

    with monkeypatch.context() as patch:
        patch.setattr(metadr.MetaDR, "penalty", broken)
        ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert ended.code == 2
    assert "1 of 3 runs failed" in ended.err
    assert "meta-dr seed 0: ArithmeticError: the meta-learner is out" in ended.err
    assert "Traceback" not in ended.err
    assert [row[0] for row in table_of(ended.out)] == ["method", "Naive", "Naive"]
    (failed,) = tmp_path.rglob("failed.json")
    assert "meta-dr" in failed.parent.name
    stored = json.loads(failed.read_text())
    assert stored["reason"] == "ArithmeticError: the meta-learner is out"
    assert 'raise ArithmeticError("the meta-learner is out")' in stored["traceback"]
    assert not (failed.parent / "done.json").exists()
    assert len(list(tmp_path.rglob("done.json"))) == 2

    repaired = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert (repaired.code, repaired.err) == (0, "")
    assert "2 finished, 1 to run." in repaired.out
    assert not list(tmp_path.rglob("failed.json"))


def test_a_device_without_memory_is_one_sentence(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, raw: object, batch: object, ctx: object) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. GPU 0 has 8 GiB.\nSee the manual.")

    monkeypatch.setattr(metadr.MetaDR, "penalty", full)
    sentence = "The device is out of memory (CUDA out of memory). Use a smaller batch_size, --set recompute=true, "
    alone = command("run", "embedded", "--method", "meta-dr", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert (alone.code, alone.out) == (2, "")
    assert alone.err.startswith(f"Error: {sentence}")
    among = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
    assert among.code == 2
    assert f"meta-dr seed 0: {sentence}" in among.err


def test_a_failed_run_of_a_sweep_that_is_run_by_itself_has_not_failed(
    make_toy: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_toy()
    recipe = metadr.recipe("toy", "l2", tiny=True)
    with monkeypatch.context() as patch:
        patch.setattr(metadr.L2, "end_domain", None)
        outcome = sweep.sweep([sweep.Job(recipe, 0)], out=tmp_path, device="cpu")
    assert [job.recipe for job, _ in outcome.failed] == [recipe]
    assert list(tmp_path.rglob("failed.json"))
    assert metadr.run(recipe, out=tmp_path, device="cpu").rows
    assert not list(tmp_path.rglob("failed.json"))


def test_a_sweep_leaves_a_run_alone_that_another_process_has(command: Command, tmp_path: Path) -> None:
    held = RunDirectory(tmp_path, get_table("demo", tiny=True).recipes[0], 0)
    with held.claimed():
        before = {path.name for path in held.path.iterdir()}
        ended = command("sweep", "demo", "--tiny", "--out", tmp_path, "--device", "cpu")
        assert {path.name for path in held.path.iterdir()} == before
    assert ended.code == 2
    assert "1 of 3 runs failed" in ended.err
    assert "is being run by process" in ended.err
    assert len(list(tmp_path.rglob("done.json"))) == 2


def test_the_demonstration_by_pixels_ends_with_a_sheet_of_predictions(command: Command, tmp_path: Path) -> None:
    ended = command("demo", "--segmentation", "--tiny", "--out", tmp_path)
    assert ended.code == 0, ended
    assert "clear → fog → rain" in ended.out
    with Image.open(tmp_path / "predictions.png") as sheet:
        assert sheet.width > 5 * 104  # input, truth and three methods
        assert sheet.height > 6 * 32  # two images of each of three drives
    by_class = (tmp_path / "demo-segmentation.md").read_text().partition("IoU by class at the end")[2]
    assert "| method | Terrain | Sky |" in by_class and by_class.count("| Naive") == 2


def test_a_report_writes_files_that_others_can_read(command: Command, demo_runs: Path, tmp_path: Path) -> None:
    stem = tmp_path / "made" / "table.v1"
    ended = command("report", demo_runs, "-o", stem)
    assert (ended.code, ended.err) == (0, "")
    written = {kind: stem.with_name(f"table.v1.{kind}") for kind in ("md", "csv", "json", "png")}
    assert re.findall("Wrote (.*)", ended.out) == [str(path) for path in written.values()]
    assert sorted(stem.parent.iterdir()) == sorted(written.values())

    lines = [line for line in written["md"].read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["method", *DOMAINS, "ACC", "kept", "BWT", "FWT", "forgetting", "n"]
    assert [row[0] for row in cells[2:]] == ["Naive", "Naive + DR", "Meta-DR"]
    assert all(row[-1] == "2" and len(row) == len(cells[0]) for row in cells[2:])
    assert all(re.fullmatch(r"-?\d+\.\d ± \d+\.\d", cell) for row in cells[2:] for cell in row[1:-1])
    assert "](table.v1.png)" in written["md"].read_text()

    with written["csv"].open(newline="") as file:
        scores = list(csv.DictReader(file))
    assert len(scores) == 3 * 2 * len(MOMENTS) * len(DOMAINS)
    for path in demo_runs.rglob("rows.json"):
        identity = json.loads((path.parent / "recipe.json").read_text())
        title = {(): "Naive", ("dr",): "Naive + DR", ("meta-dr",): "Meta-DR"}[
            tuple(part["part"] for part in identity["method"])
        ]
        found = {
            (row["after"], row["on"]): float(row["value"])
            for row in scores
            if (row["method"], row["seed"]) == (title, str(identity["seed"]))
        }
        assert found.keys() == {(after, on) for after in MOMENTS for on in DOMAINS}
        for row in json.loads(path.read_text()):
            assert found[row["after"], row["on"]] == pytest.approx(row["value"], abs=1e-4)

    assert len(json.loads(written["json"].read_text())) == 6
    picture = pixels(written["png"])
    assert picture.shape[0] > 300
    assert picture.shape[1] > 1000
    colours = {tuple(colour) for colour in picture.reshape(-1, 3)[::7].tolist()}
    for colour in ("#e377c2", "#1f77b4", "#d62728"):  # pink, blue, red: the three methods
        assert tuple(bytes.fromhex(colour[1:])) in colours


def test_a_report_of_a_report_is_the_same(command: Command, demo_runs: Path, tmp_path: Path) -> None:
    first = command("report", demo_runs, "-o", tmp_path / "one")
    again = command("report", tmp_path / "one.json", "-o", tmp_path / "two")
    assert (again.code, again.err) == (0, "")
    assert table_of(again.out) == table_of(first.out)
    for kind in ("csv", "json"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    assert (tmp_path / "one.md").read_text().replace("one.png", "two.png") == (tmp_path / "two.md").read_text()


def test_a_report_goes_next_to_its_source_unless_told(command: Command, demo_runs: Path, tmp_path: Path) -> None:
    assert command("report", demo_runs).code == 0
    made = {path.name for path in demo_runs.glob("report*")}
    assert made == {"report.md", "report.csv", "report.json", "report.png"}
    for path in demo_runs.glob("report*"):
        path.rename(tmp_path / path.name)
    (tmp_path / "report.md").unlink()
    before = (tmp_path / "report.json").read_bytes()
    printed = command("report", tmp_path / "report.json")
    assert printed.code == 0 and "Naive" in printed.out  # and nothing is written over the file or beside it
    assert {path.name for path in tmp_path.iterdir()} == made - {"report.md"}
    assert command("report", tmp_path / "report.json", "-o", tmp_path / "report").code == 0
    assert {path.name for path in tmp_path.iterdir()} == made
    assert (tmp_path / "report.json").read_bytes() == before


def test_the_demonstration_ends_with_a_table_a_figure_and_the_time(command: Command, tmp_path: Path) -> None:
    ended = command("demo", "--tiny", "--out", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert [row[0] for row in table_of(ended.out)] == ["method", "Naive", "Naive", "Meta-DR"]
    assert f"Wrote {tmp_path / 'demo.png'}" in ended.out
    assert re.search(r"Took \d+:\d\d ", ended.out)
    assert "\x1b" not in ended.out
    assert pixels(tmp_path / "demo.png").shape[1] > 1000
    environment = json.loads(next(tmp_path.rglob("environment.json")).read_text())
    assert environment["device"] == "cpu"


def test_show_writes_a_contact_sheet(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(2):
        Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    sheet = tmp_path / "out" / "sheet.png"
    sheet.parent.mkdir()
    ended = command("show", "psi3", tmp_path, "-o", sheet)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == f"Wrote {sheet}\n"
    assert pixels(sheet).std() > 10
    first = sheet.read_bytes()
    assert command("show", "psi3", tmp_path, "-o", sheet).code == 0
    assert sheet.read_bytes() == first
    assert command("show", "psi3", tmp_path, "-o", sheet, "--seed", 1).code == 0
    assert sheet.read_bytes() != first


def test_bench_measures_and_keeps_its_numbers(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "speeds.json"
    ended = command("bench", "transforms", "--set", "brightness+invert", "--batch", 2, "--repeats", 3, "-o", path)
    assert (ended.code, ended.err) == (0, "")
    assert {cell.strip() for cell in first_column(ended.out)} == {"32x32", "224x224"}
    measured = json.loads(path.read_text())
    assert (measured["set"], measured["batch"], measured["n"]) == ("brightness+invert", 2, 3)
    assert all(row["metadr_ms"] > 0 and row["same_pixels"] for row in measured["rows"])


def test_an_interrupt_where_nothing_is_trained_promises_no_checkpoint(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(kind: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(listing, "tables", interrupted)
    ended = command("list")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err == "Stopped. The same command starts again, from a checkpoint where there is one.\n"
