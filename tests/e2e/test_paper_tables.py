"""The paper's tables by the command line, on random images under the names of the digits."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from metadr import cli_report
from metadr.benchmarks import BENCHMARKS
from metadr.benchmarks.digits import DOMAINS
from metadr.core import Domain, Split
from metadr.recipes import COMPARED
from metadr.report import read_records

Command = Callable[..., Any]


def random_digits(name: str) -> Domain:
    rng = torch.Generator().manual_seed(DOMAINS.index(name))

    def split(num_images: int) -> Split:
        x = torch.randint(256, (num_images, 3, 32, 32), generator=rng, dtype=torch.uint8)
        return Split(x, torch.randint(10, (num_images,), generator=rng))

    return Domain(name, split(12), split(10))


@pytest.fixture
def digits(make_toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark of the digits, with its orders and settings, on other images."""
    real = BENCHMARKS["digits"]
    changes = {"name": "digits", "task": real.task, "domains": real.domains, "protocols": real.protocols}
    changes |= {"load": random_digits, "fingerprint": "random digits", "part_defaults": real.part_defaults}
    monkeypatch.setitem(BENCHMARKS, "digits", make_toy(**changes))


@pytest.fixture
def nothing_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_report, "published_files", lambda pattern: [])


def lines_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_a_sweep_plans_says_the_cost_runs_and_ends_with_the_table(
    digits: None, command: Command, tmp_path: Path
) -> None:
    words = ("sweep", "table4", "--tiny", "--out", tmp_path, "--device", "cpu")
    ended = command(*words)
    assert (ended.code, ended.err) == (0, "")
    assert "2 recipes x 3 seeds, 0 finished, 6 to run." in ended.out
    assert "12 steps to take; how long they take is unknown" in ended.out
    assert ended.out.count("done in") == 6
    assert "table4: 6 of 6 runs done, 0 failed, in 0:0" in ended.out
    table = lines_of(ended.out)
    assert table[0] == ["method", "", "MNIST-M", "SYN", "SVHN"]
    assert all(cell.endswith("(3)") for cell in table[2][2:] + table[5][2:])
    assert "SYN is rendered here" in ended.out
    assert "Not the settings of the table: --tiny." in ended.out
    for kind in ("md", "csv", "tex", "json"):
        assert f"Wrote {tmp_path / 'table4-tiny'}.{kind}" in ended.out
    assert (tmp_path / "table4-tiny.md").read_text() in ended.out
    assert len(read_records(tmp_path / "table4-tiny.json")) == 6

    again = command(*words, "--seeds", 4)
    assert "6 finished, 2 to run." in again.out
    assert "4 steps to take; about 0:0" in again.out
    assert again.out.count("done in") == 2


def reports(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_sweep_of_less_takes_nothing_from_the_report_of_more(digits: None, command: Command, tmp_path: Path) -> None:
    words = ("sweep", "table4", "--out", tmp_path, "--device", "cpu")
    assert command(*words, "--seeds", 1).out.count(" (1) |") == 6
    assert command(*words).out.count(" (3) |") == 6
    for more, seeds in ((), 3), (("--seeds", 4), 4):
        assert command(*words, *more).code == 0
        before = reports(tmp_path)
        for fewer in (), ("--seeds", 1), ("--seeds", 1, "--row", "with DR"), ("--seed", 0):
            again = command(*words, *fewer)
            assert (again.code, again.out.count(f" ({seeds}) |")) == (0, 6)
            assert reports(tmp_path) == before


def test_a_table_wants_no_more_seeds_for_what_another_ran(digits: None, command: Command, tmp_path: Path) -> None:
    words = ("--tiny", "--out", tmp_path, "--device", "cpu")
    assert command("sweep", "table6", "--seeds", 4, "--row", "beta = 0.0", *words).code == 0
    ended = command("sweep", "table3", "--seeds", 1, "--row", "neither", *words)
    assert (ended.code, ended.out.count(" (3) |"), ended.out.count("(4)")) == (0, 4, 0)


def test_a_sweep_says_what_is_finished_in_another_precision(digits: None, command: Command, tmp_path: Path) -> None:
    words = ("sweep", "table4", "--tiny", "--seeds", 1, "--device", "cpu", "--minutes", 0, "--out")
    assert "precision" not in command(*words, tmp_path).out
    made = command(*words[:-3], "--out", tmp_path, "--set", "precision=bf16", "--seeds", 2)
    assert (made.code, made.err) == (0, "") and "precision" not in made.out.partition("steps to take")[0]
    records = tmp_path / "table4-tiny-precision=bf16.json"
    assert command("results", "unpack", records, "--out", tmp_path / "unpacked").code == 0
    for runs in tmp_path, tmp_path / "unpacked":
        told = command(*words, runs).out
        assert "2 of these are finished in another precision: with --set precision=bf16 they count." in told
    taken = command(*words, tmp_path / "unpacked", "--set", "precision=bf16").out
    assert "2 finished, 0 to run." in taken and "another precision" not in taken
    assert (
        "another precision" not in command("sweep", "precision", "--tiny", *words[3:], tmp_path).out
    )  # which compares them


def test_a_sweep_with_other_settings_has_a_report_of_its_own(digits: None, command: Command, tmp_path: Path) -> None:
    words = ("sweep", "table4", "--seeds", 1, "--out", tmp_path, "--device", "cpu")
    assert command(*words).code == 0
    names = ["table4"]
    for narrowed, name in (
        (("--tiny",), "table4-tiny"),
        (("--set", "steps=3"), "table4-steps=3"),
        (("--set", "steps=3", "--set", "dr.per=batch"), "table4-dr.per=batch-steps=3"),
        (("--set", "dr.per=batch", "--row", "with DR"), "table4-dr.per=batch-with_DR"),
    ):
        before = reports(tmp_path)
        assert command(*words, *narrowed).code == 0
        names.append(name)
        after = reports(tmp_path)
        assert before.items() <= after.items()
        assert {each.removesuffix(".md") for each in after if each.endswith(".md")} == {*names}
    assert command(*words, "--set", "steps=4").code == 0  # as the table has it
    assert reports(tmp_path) == after


def test_a_sweep_of_rows_with_seeds_of_their_own(digits: None, command: Command, tmp_path: Path) -> None:
    ended = command("sweep", "table1", "--tiny", "--out", tmp_path, "--device", "cpu", "--minutes", 0)
    assert (ended.code, ended.err) == (0, "")
    assert "23 recipes x 3 to 10 seeds, 0 finished, 111 to run." in ended.out
    assert "Time is up with 111 runs left." in ended.out


def test_a_sweep_of_some_seeds_leaves_the_others_to_other_machines(
    digits: None, command: Command, tmp_path: Path
) -> None:
    words = ("sweep", "table4", "--tiny", "--out", tmp_path, "--device", "cpu")
    ended = command(*words, "--seed", 2, "--seed", 0)
    assert (ended.code, ended.err) == (0, "")
    assert "0 finished, 6 to run." in ended.out and "Of seed 0, 2: 4 to run." in ended.out
    assert sorted(record.seed for record in read_records(tmp_path)) == [0, 0, 2, 2]
    assert command(*words).out.count("done in") == 2
    refused = command(*words, "--seed", 3)
    assert refused.code == 2
    assert "No run of these rows has the seed 3; theirs are 0 to 2." in refused.err


def test_runs_of_one_table_fill_another(digits: None, command: Command, tmp_path: Path) -> None:
    assert command("sweep", "table6", "--tiny", "--seeds", 1, "--out", tmp_path, "--device", "cpu").code == 0
    ended = command("sweep", "table3", "--tiny", "--seeds", 1, "--out", tmp_path, "--device", "cpu")
    assert "2 finished, 2 to run." in ended.out


@pytest.mark.parametrize("name", COMPARED)
@pytest.mark.parametrize("kind", ["md", "csv", "tex"])
def test_a_report_of_what_was_not_run_shows_the_paper(
    name: str, kind: str, command: Command, nothing_published: None
) -> None:
    ended = command("report", name, "--format", kind)
    assert (ended.code, ended.err) == (0, "")
    of_pacs = ("table2", "table5", "pacs-resnet50", "pacs-schedule")
    digits_or_rendered = name not in (*of_pacs, "figure4", "table9", "statistics")
    assert bool(re.search("rendered here", ended.out, flags=re.IGNORECASE)) == digits_or_rendered
    if kind == "csv":
        rows = list(csv.DictReader(io.StringIO(ended.out)))
        assert {row["n"] for row in rows} == {"0"} and {row["ours"] for row in rows} == {""}
    else:
        assert "missing" in ended.out and f"metadr sweep {name}" in ended.out


def test_a_report_of_runs_and_of_what_was_published(
    digits: None, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The report makes its table whole, not tiny: here that is four steps.
    runs, results = tmp_path / "runs", tmp_path / "results"
    assert command("sweep", "table4", "--out", runs, "--device", "cpu").code == 0
    printed = command("report", "table4", "--runs", runs)
    assert (printed.code, printed.err) == (0, "")
    assert "Not the settings" not in printed.out
    assert all(cell.endswith("(3)") for cell in lines_of(printed.out)[2][2:])
    for suffix in ("md", "csv", "tex", "json"):
        assert command("report", "table4", "--runs", runs, "-o", results / f"table4.{suffix}").code == 0
    assert (results / "table4.md").read_text() == printed.out
    assert (results / "table4.tex").read_text() == command("report", "table4", "--runs", runs, "--format", "tex").out

    monkeypatch.setattr(cli_report, "published_files", lambda pattern: sorted(results.glob(pattern)))
    assert command("report", "table4").out == printed.out
    assert command("report", "table4", "--seeds", 2).out.count("(2)") == 6
    assert command("report", "table4", "--seeds", 4).out.count("(3 of 4)") == 6
    by_batch = command("report", "table4", "--tested-by", "batch")
    assert by_batch.out.count("(3)") == printed.out.count("(3)") == 6
    refused = command("report", "table4", "--tested-by", "batch", "-o", tmp_path / "table4.json")
    assert refused.code == 2 and "only their last test is by other statistics" in refused.err
    assert not (tmp_path / "table4.json").exists()
    kept = json.loads((results / "table4.json").read_text())
    for run in kept["runs"]:  # as earlier versions left them
        run.pop("by_batch")
    (tmp_path / "older.json").write_text(json.dumps(kept))
    refused = command("report", "table4", "--runs", tmp_path / "older.json", "--tested-by", "batch")
    assert refused.code == 2 and "None of 6 runs was tested by the statistics of batches" in refused.err
    assert cli_report.BY_BATCHES in by_batch.out and lines_of(by_batch.out)[2] != lines_of(printed.out)[2]
    # The file that was kept is one of records like any other.
    ended = command("report", results / "table4.json", "-o", tmp_path / "again")
    assert "tested on mnist_m, syn, svhn too" in ended.out


def test_a_figure_is_written(command: Command, nothing_published: None, tmp_path: Path) -> None:
    for suffix, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        for name in ("figure3", "figure4"):
            ended = command("report", name, "-o", tmp_path / f"made.{suffix}")
            assert (ended.code, ended.err) == (0, "")
            assert (tmp_path / f"made.{suffix}").read_bytes().startswith(magic)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["figure3", "--format", "png"], "A png is not for a terminal. Name a file: -o figure3.png"),
        (
            ["table1", "-o", "table1.pdf"],
            "'table1' is no figure. Figures: figure3, figure3-weights, figure4, vkitti2-rendered",
        ),
        (["figure5"], "A png is not for a terminal. Name a file: -o figure5.png"),
        (["table1", "-o", "table1.docx"], "-o must end in .md, .csv, .tex, .json, .png, .pdf, or --format say what"),
        (["figure5", "-o", "figure5.md"], "'figure5' is a picture of data, without a table."),
        (["nowhere", "--format", "md"], "'nowhere' is none. Leave them out"),
        (["table1", "--runs", "nowhere"], "No folder nowhere."),
        (["table12"], "No table or folder of runs 'table12'. Closest: 'table2'."),
    ],
    ids=str,
)
def test_mistakes(words: list[str], told: str, command: Command, nothing_published: None) -> None:
    ended = command("report", *words)
    assert ended.code == 2
    assert told in " ".join(ended.err.split())
