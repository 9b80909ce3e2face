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
from PIL import Image

from metadr import listing, sweep
from metadr.benchmarks import BENCHMARKS, recipe_names
from metadr.parts import PARTS
from metadr.recipes import TABLES, get_table
from metadr.transforms import SETS, TRANSFORMS

Command = Callable[..., Any]
TableOf = Callable[[str], list[list[str]]]

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


def test_the_list_of_tables_says_what_is_published_and_with_how_many_seeds(command: Command) -> None:
    rows = [line.split("│") for line in command("list", "tables").out.splitlines() if line.startswith("│")]
    shown = {cells[1].strip(): cells[-2].strip() for cells in rows}
    assert shown["table1"] == "111, n = 3 to 10"
    assert shown["table3"] == "12, n = 3" and shown["demo"] == "9, n = 3"
    assert shown["table10-weights"] == "9, n = 1"
    assert shown["table2"] == shown["figure5"] == ""


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


def test_the_demonstration_by_pixels_ends_with_a_sheet_of_predictions(command: Command, tmp_path: Path) -> None:
    ended = command("demo", "--segmentation", "--tiny", "--out", tmp_path)
    assert ended.code == 0, ended
    assert "clear → rain → fog" in ended.out
    with Image.open(tmp_path / "predictions-tiny.png") as sheet:
        assert sheet.width > 5 * 3 * 104  # input, truth and three methods, each three times as large
        assert sheet.height > 6 * 3 * 32  # two images of each of three drives
    by_class = (tmp_path / "demo-segmentation-tiny.md").read_text().partition("IoU by class at the end")[2]
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


def test_a_report_of_a_report_is_the_same(table_of: TableOf, command: Command, demo_runs: Path, tmp_path: Path) -> None:
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


def test_the_demonstration_ends_with_a_table_a_figure_and_the_time(
    table_of: TableOf, command: Command, tmp_path: Path
) -> None:
    ended = command("demo", "--tiny", "--out", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert [row[0] for row in table_of(ended.out)] == ["method", "Naive", "Naive", "Meta-DR"]
    assert f"Wrote {tmp_path / 'demo-tiny.png'}" in ended.out
    assert re.search(r"Took \d+:\d\d ", ended.out)
    assert "\x1b" not in ended.out
    assert pixels(tmp_path / "demo-tiny.png").shape[1] > 1000
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
