"""How a comparison is written: as Markdown, CSV, LaTeX and published records."""

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from metadr.recipes import Table, get_table
from metadr.report import Comparison, Record, compare, read_records, rendered, write_comparison
from metadr.report.comparison import MISSING
from metadr.report.records import by_statistics
from metadr.sequence import BY_BATCH


def test_markdown(partial: Comparison) -> None:
    text = rendered(partial, "md").decode()
    table = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    assert table[0] == ["method", "", "MNIST", "MNIST-M", "SYN", "SVHN"]
    assert table[2] == ["neither", "ours", *(f"{value}.0 ± 3.6 (3)" for value in (83, 84, 85, 86))]
    assert table[3] == ["", "paper", "83.7 ± 6.4", "68.8 ± 3.4", "92.3 ± 0.4", "86.9 ± 0.1"]
    assert table[4] == ["", "difference", "-0.7", "+15.2", "-7.3", "-0.9"]
    assert table[5] == ["recall", "ours", *(f"{value}.0 ± 0.0 (2 of 3)" for value in (90, 91, 92, 93))]
    assert table[8] == ["adapt", "ours", *[MISSING] * 4]
    assert table[10] == ["", "difference", *["-"] * 4]
    assert len({len(row) for row in table}) == 1
    assert "SYN is rendered here" in text
    assert "6 of 12 runs, 0.1 hours of runs" in text
    assert "abacus, torch 2.0, metadr 0.1 at c0ffee" in text


def test_what_the_paper_does_not_print() -> None:
    lines = rendered(compare(get_table("table1"), []), "md").decode().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("| L2 |"))
    assert lines[place + 1] == "|  | paper |" + " - |" * 8
    assert "'metadr sweep table1' runs it" in lines[-1]


def test_csv(partial: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(rendered(partial, "csv").decode())))
    assert [(row["row"], row["column"]) for row in rows] == list(partial.cells)
    first = rows[0]
    assert (first["table"], first["ours"], first["spread"], first["n"], first["wanted"]) == (
        *("table3", "83.0000", "3.6056"),
        *("3", "3"),
    )
    assert (first["paper"], first["paper_spread"], first["difference"]) == ("83.7", "6.4", "-0.7000")
    assert {row["note"] for row in rows if row["column"] == "SYN"} == {"SYN is rendered here, not Ganin's"}
    assert {row["note"] for row in rows if row["column"] != "SYN"} == {""}
    fewer, missing = (next(row for row in rows if row["row"] == name) for name in ("recall", "adapt"))
    assert (fewer["ours"], fewer["spread"], fewer["n"], fewer["wanted"]) == ("90.0000", "0.0000", "2", "3")
    assert (missing["ours"], missing["spread"], missing["n"], missing["difference"]) == ("", "", "0", "")


@pytest.mark.parametrize("name", ["table1", "table3", "table10", "figure3"])
def test_tex_is_whole(name: str, every_run: Callable[[Table], list[Record]]) -> None:
    table = get_table(name).with_seeds(2)
    made = compare(table, every_run(table))
    text = rendered(made, "tex").decode()
    environments: list[str] = []
    for kind, environment in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            environments.append(environment)
        else:
            assert environments.pop() == environment
    assert not environments
    plain = re.sub(r"\\.", "", text)
    assert plain.count("{") == plain.count("}")
    assert plain.count("$") % 2 == 0
    assert plain.isascii()
    (columns, body) = re.search(r"\\begin\{tabular\}\{(l+r+)\}(.*)\\end\{tabular\}", text, flags=re.DOTALL).groups()
    rows = [row for row in body.replace(r"\hline", "").split(r"\\") if row.strip()]
    lines = 1 if name == "figure3" else 3  # of which the paper prints no number
    assert len(rows) == 1 + lines * len(made.rows)
    assert {len(re.split(r"(?<!\\)&", row)) for row in rows} == {len(columns)} == {2 + len(made.columns)}
    assert "SYN is rendered here" in text


def test_tex_signs(partial: Comparison) -> None:
    odd = partial._replace(table=partial.table._replace(about="50% of a_b & {c} # $d ~ ^ \\ →"))
    caption = re.search(r"\\caption\{(.*)\}\n", rendered(odd, "tex").decode())[1]
    wanted = r"50\% of a\_b \& \{c\} \# \$d \textasciitilde{} \textasciicircum{} \textbackslash{} $\rightarrow$."
    assert caption.startswith(f"table3: {wanted}")
    assert r"$-0.7$ & $+15.2$" in rendered(odd, "tex").decode()
    assert r"83.0 $\pm$ 3.6 (3)" in rendered(odd, "tex").decode()


@pytest.mark.tex
@pytest.mark.parametrize("name", ["table1", "table3", "figure3"])
def test_tex_compiles(name: str, tmp_path: Path, every_run: Callable[[Table], list[Record]]) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no pdflatex on this machine")
    table = get_table(name).with_seeds(2)
    text = rendered(compare(table, every_run(table)[:-3]), "tex").decode()
    document = rf"\documentclass{{article}}\begin{{document}}{text}\end{{document}}"
    (tmp_path / "made.tex").write_text(document)
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "made.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "made.pdf").exists()


def test_published_records_are_small_and_read_back(tmp_path: Path, every_run: Callable[[Table], list[Record]]) -> None:
    table = get_table("table1")
    made = compare(table, every_run(table))
    assert all(cell.complete for cell in made.cells.values())
    write_comparison(made, {tmp_path / "table1.json": "json"})
    assert read_records(tmp_path / "table1.json") == made.records
    assert (tmp_path / "table1.json").stat().st_size < 600 * len(made.records)
    again = compare(table, read_records(tmp_path / "table1.json"), published=True)
    assert rendered(again, "md") == rendered(made, "md")


def test_runs_are_shown_by_the_statistics_of_tested_batches_where_they_know(
    tmp_path: Path, finished: Callable[..., Record]
) -> None:
    table = get_table("table3")
    recipes = list(table.recipes)
    runs = [finished(recipes[0], seed, 90.0) for seed in range(3)] + [finished(recipes[1], 0, 91.0)]
    for record in runs[:2]:
        for row in record.rows[-len(recipes[0].order) :]:
            row[BY_BATCH] = row["value"] - 7
    write_comparison(compare(table, runs), {tmp_path / "t.json": "json"})
    kept = read_records(tmp_path / "t.json")
    assert [each.tested_by("batch") is None for each in kept] == [False, False, True, True]
    assert by_statistics(kept, "running") == kept
    made = compare(table, by_statistics(kept, "batch"))
    before, after = kept[0], by_statistics(kept, "batch")[0]
    assert after.scores[:-1] == before.scores[:-1]
    assert after.scores[-1] == [value - 7 for value in before.scores[-1]]
    kept[3].identity["training"]["tested_by"] = "batch"
    assert kept[3].tested_by("batch") == kept[3]
    first, second = table.rows[:2]
    assert made.cells[first.title, "MNIST"].ours == "83.0 ± 0.0 (2 of 3)"
    assert made.cells[second.title, "MNIST"].ours == MISSING


def test_domains_that_are_only_tested_on_are_kept(tmp_path: Path, every_run: Callable[[Table], list[Record]]) -> None:
    table = get_table("table4")
    made = compare(table, every_run(table))
    assert list(made.columns) == ["MNIST-M", "SYN", "SVHN"]
    assert made.cells["with DR", "SVHN"].ours == "84.1 ± 1.0 (3)"
    write_comparison(made, {tmp_path / "table4.json": "json"})
    assert read_records(tmp_path / "table4.json") == made.records
