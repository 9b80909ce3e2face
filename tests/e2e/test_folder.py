"""A folder of one's own images through the commands: mixed formats, a dry run, a run, a stop, a move."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import metadr
from metadr.run import advance

Command = Callable[..., Any]
CLASSES = ("bike", "bus")


def noise(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def grey(path: Path, seed: int) -> None:
    Image.fromarray(noise(seed, 20, 30)).save(path.with_suffix(".png"))


def palette(path: Path, seed: int) -> None:
    Image.fromarray(noise(seed, 20, 30, 3)).convert("P").save(path.with_suffix(".gif"))


def ink(path: Path, seed: int) -> None:
    Image.fromarray(noise(seed, 20, 30, 3)).convert("CMYK").save(path.with_suffix(".jpg"))


def deep(path: Path, seed: int) -> None:
    Image.fromarray(noise(seed, 20, 30).astype(np.uint16) * 257).save(path.with_suffix(".png"))


def alpha(path: Path, seed: int) -> None:
    Image.fromarray(noise(seed, 20, 30, 4)).save(path.with_suffix(".webp"), lossless=True)


def sideways(path: Path, seed: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(noise(seed, 20, 30, 3)).save(path.with_suffix(".jpg"), exif=exif)


WRITERS = (grey, palette, ink, deep, alpha, sideways)


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """day, fog and rain with six images a class, one of every kind; two are equal, one is cut, one is none."""
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "metadr"))
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "own"
    for number, domain in enumerate(("day", "fog", "rain")):
        for label in CLASSES:
            (root / domain / label).mkdir(parents=True)
            for kind, writer in enumerate(WRITERS):
                writer(root / domain / label / writer.__name__, 100 * number + 10 * kind + len(label))
    whole = (root / "day/bus/grey.png").read_bytes()
    (root / "rain/bus/twin.png").write_bytes(whole)
    (root / "fog/bus/cut.png").write_bytes(whole[: len(whole) // 2])
    (root / "fog/bus/readme.txt").write_text("fog")
    return root


SHOWN_AGAIN = "This run was finished before: it is only shown.\n"
RUN = ("run", "folder", "--order", "day,fog,rain", "--method", "er+meta-dr", "--device", "cpu", "--tiny")


def table(text: str, first: str) -> dict[str, list[str]]:
    """The rows of a printed table that has this first column, by their first cell."""
    lines = text.splitlines()
    head = next(number for number, line in enumerate(lines) if re.match(rf"┃ {first}\b", line))
    rows = {}
    for line in lines[head + 2 :]:
        if not line.startswith("│"):
            break
        name, *cells = (cell.strip() for cell in line.strip("│").split("│"))
        rows[name] = cells
    return rows


def test_a_dry_run_tells_what_there_is_and_writes_no_run(mixed: Path, command: Command) -> None:
    ended = command(*RUN, "--data", mixed, "--dry-run")
    assert ended.code == 0
    assert table(ended.out, "class") == {
        "bike": ["5 + 1", "5 + 1", "5 + 1"],
        "bus": ["5 + 1", "5 + 1", "6 + 1"],
        "all": ["10 + 2", "10 + 2", "11 + 2"],
    }
    sizes = ["20x30", "30x20", "30x20"]  # of one area; the one taken sideways stands upright
    assert {name: row[:6] for name, row in table(ended.out, "domain").items()} == {
        "day": ["12", *sizes, "0", "0"],
        "fog": ["12", *sizes, "1", "1"],
        "rain": ["13", *sizes, "0", "0"],
    }
    assert re.search(r"\nBroken:\n  fog/bus/cut\.png: .+", ended.out)
    assert re.search(r"Not used, [^\n]*:\n  fog/bus/readme\.txt", ended.out)
    (twin,) = re.findall(r"Duplicates, pixel for pixel:\n  (.*)\n", ended.out)
    assert twin.startswith("1 of ") and "day/" in twin and "rain/" in twin
    assert "bus/grey.png" in twin and "bus/twin.png" in twin
    assert re.search(r"Memory: \d+\.\d MB of images on cpu; peak \d+\.\d [MG]B", ended.out)
    assert re.search(r"Time: about \d+:\d\d on cpu", ended.out)
    assert re.search(r"Run: runs/folder/er\+meta-dr-seed0-\w{12} \(not begun\)", ended.out)
    assert not Path("runs").exists()


def test_a_run_skips_what_is_broken_and_is_only_read_afterwards(
    mixed: Path, command: Command, caplog: pytest.LogCaptureFixture
) -> None:
    first = command(*RUN, "--data", mixed)
    assert first.code == 0
    assert "folder: day → fog → rain" in first.out
    (said,) = caplog.messages
    assert said.startswith("1 of 13 images of domain 'fog' cannot be read, left out: bus/cut.png (")
    (path,) = Path("runs/folder").iterdir()
    rows = json.loads((path / "rows.json").read_text())
    assert {(row["on"], row["images"]) for row in rows} == {("day", 2), ("fog", 2), ("rain", 2)}
    before = {each: each.stat().st_mtime_ns for each in Path().rglob("*") if each.is_file()}
    again = command(*RUN, "--data", mixed)
    assert (again.code, again.out) == (0, SHOWN_AGAIN + first.out)
    assert {each: each.stat().st_mtime_ns for each in Path().rglob("*") if each.is_file()} == before
    assert "(finished)" in command(*RUN, "--data", mixed, "--dry-run").out
    assert not list(mixed.rglob("*.safetensors"))  # nothing is written where the images are


def test_a_stopped_run_goes_on_from_where_its_folder_was_moved(mixed: Path, tmp_path: Path) -> None:
    def recipe(root: Path) -> metadr.Recipe:
        return metadr.recipe("folder", "meta-dr", root=root, tiny=True, steps=25, order="day,fog")

    whole = metadr.run(recipe(mixed), out="whole", device="cpu")
    stages = advance(recipe(mixed), out="stopped", device="cpu", checkpoint_seconds=0)
    assert [next(stages).step for _ in range(4)] == [10, 20, 25, 10]
    stages.close()
    (half,) = Path("stopped/folder").iterdir()
    assert not (half / "done.json").exists()
    moved = mixed.rename(tmp_path / "moved")
    ended = metadr.run(recipe(moved), out="stopped", device="cpu")
    assert ended.path == half and ended.rows == whole.rows
    ours, theirs = (load_file(max(path.glob("checkpoint-*"))) for path in (half, whole.path))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_order_is_alphabetical_and_shortcuts_are_settings(mixed: Path, command: Command) -> None:
    words = ("run", "folder", "--data", mixed, "--tiny", "--device", "cpu", "--model", "small_resnet")
    assert "folder: day → fog → rain" in command(*words, "--out", "a").out
    short = command(*words, "--order", "rain,day", "--out", "b")
    same = ("--set", "order=rain,day", "--set", "model=small_resnet", "--set", f"root={mixed}")
    assert command("run", "folder", "--tiny", "--device", "cpu", *same, "--out", "b").out == SHOWN_AGAIN + short.out
    (path,) = Path("b/folder").iterdir()
    identity = json.loads((path / "recipe.json").read_text())
    assert (identity["order"], identity["training"]["model"]) == (["rain", "day"], "small_resnet")
    assert str(mixed) not in (path / "recipe.json").read_text()


def test_shortcuts_and_dry_runs_are_for_every_benchmark(
    make_toy: Callable[..., Any], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_toy()
    ended = command("run", "toy", "--order", "c,a", "--model", "small_resnet", "--method", "er", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert set(table(ended.out, "class")) == {"0", "1", "2", "all"}
    assert table(ended.out, "class")["all"] == ["12 + 6", "12 + 6"]
    assert "┃ c " in ended.out and "Duplicates, pixel for pixel: none." in ended.out
    assert not list(tmp_path.iterdir())


def test_settings_of_the_data_reach_the_run(mixed: Path, command: Command) -> None:
    words = ("run", "folder", "--data", mixed, "--tiny", "--device", "cpu", "--dry-run")
    small = command(*words, "--set", "side=16", "--set", "test_share=0.5", "--set", "fit=pad")
    assert table(small.out, "class")["bike"] == ["3 + 3"] * 3
    assert "Memory: 0.0 MB" in small.out
    held = table(command(*words, "--set", "num_val=3").out, "class")
    assert held["all"] == ["7 + 2, 3 held out", "7 + 2, 3 held out", "8 + 2, 3 held out"]
    numbers = [[int(number) for number in re.findall(r"\d+", held[label][0])] for label in CLASSES]
    assert [sum(each) for each in numbers] == [6, 6] and sum(each[2] for each in numbers) == 3
    listed = command("list", "fields").out
    for field in ("folder.side", "folder.fit", "folder.test_share", "folder.broken_limit", "digits.resize"):
        assert f"│ {field} " in listed
    assert "│ folder " in command("list", "benchmarks").out
