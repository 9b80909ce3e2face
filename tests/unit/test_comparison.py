"""Hand-made runs beside the paper's numbers: what a cell says, what may enter it, and how it is written."""

import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.container import BarContainer
from safetensors.torch import save_file

from metadr.core import Recipe
from metadr.errors import UserError
from metadr.recipes import Table, get_table
from metadr.report import Comparison, Record, compare, read_records, rendered, write_comparison
from metadr.report.comparison import MISSING
from metadr.report.figure3 import digits_figure
from metadr.report.records import by_statistics
from metadr.report.write import every_format
from metadr.sequence import BY_BATCH
from metadr.store import description

ENVIRONMENT = {
    "gpu": "abacus",
    "processor": "",
    "threads": 2,
    "torch": "2.0",
    "metadr": "0.1",
    "commit": "c0ffee",
    "dirty": False,
}
PLACES = {"mnist": 0.0, "mnist_m": 1.0, "syn": 2.0, "svhn": 3.0}


def finished(recipe: Recipe, seed: int = 0, value: float = 90.0, data: str = "digits 1") -> Record:
    """A run that ends at `value` on MNIST, one more on MNIST-M and so on, and half that before."""
    moments = ("untrained", *recipe.order)
    rows = [
        {
            "after": after,
            "on": on,
            "metric": "accuracy",
            "value": (value + PLACES[on]) * (1.0 if after == moments[-1] else 0.5),
            "images": 100,
        }
        for after in moments
        for on in recipe.domains
    ]
    identity = json.loads(json.dumps({**description(recipe), "data": data, "seed": seed}))
    return Record(identity, ENVIRONMENT, 36.0, rows)


def every_run(table: Table) -> list[Record]:
    return [
        finished(recipe, seed, 80.0 + seed + number / 10)
        for number, (recipe, seeds) in enumerate(table.seeds_of.items())
        for seed in seeds
    ]


@pytest.fixture(scope="module")
def table3() -> Table:
    return get_table("table3")


@pytest.fixture(scope="module")
def partial(table3: Table) -> Comparison:
    """Table 3 with all of its first row, two of three seeds of its second, nothing of its third and one of the last."""
    naive, recall, _, both = table3.recipes
    runs = [finished(naive, seed, value) for seed, value in enumerate((80.0, 82.0, 87.0))]
    runs += [finished(recall, seed, 90.0) for seed in (0, 2)]
    runs += [finished(both, 1, 90.0), finished(both, 7, 10.0)]
    return compare(table3, runs)


def test_a_cell_is_mean_spread_and_difference(partial: Comparison) -> None:
    cell = partial.cells["neither", "MNIST"]
    assert cell.values == (80.0, 82.0, 87.0)
    assert cell.mean == 83.0
    assert cell.spread == pytest.approx(13**0.5)  # (9 + 1 + 16) / 2
    assert cell.difference == pytest.approx(83.0 - 83.7)
    assert cell.ours == "83.0 ± 3.6 (3)"
    assert partial.cells["neither", "SVHN"].mean == 86.0


def test_cells_say_what_is_missing(partial: Comparison) -> None:
    assert partial.cells["recall", "SYN"].ours == "92.0 ± 0.0 (2 of 3)"
    assert partial.cells["recall and adapt", "SYN"].ours == "92.0 (1 of 3)"  # seed 7 is not of this table
    assert not partial.cells["recall", "SYN"].complete
    cell = partial.cells["adapt", "SYN"]
    assert (cell.ours, cell.mean, cell.spread, cell.difference) == (MISSING, None, None, None)


def test_an_average_over_orders_is_over_all_of_them() -> None:
    """Of the seeds that all orders have been run with."""
    table = get_table("table11").with_seeds(2)
    recipes = table.rows[0].recipes
    runs = [finished(recipe, seed, 70.0) for recipe in recipes for seed in (0, 1) if (recipe, seed) != (recipes[3], 1)]
    cell = compare(table, runs).cells["GEM", "SVHN"]
    assert (cell.ours, cell.found, len(cell.values)) == ("73.0 ± 0.0 (24 of 48)", 47, 24)
    assert compare(table, runs[1:]).cells["GEM", "SVHN"].ours == "missing (46 of 48)"


def test_a_cell_of_one_run_has_no_spread(table3: Table) -> None:
    made = compare(table3.with_seeds(1), [finished(table3.recipes[0], 0, 83.7), finished(table3.recipes[0], 1, 0.0)])
    cell = made.cells["neither", "MNIST"]
    assert (cell.ours, cell.spread) == ("83.7 (1)", None)
    assert cell.difference == pytest.approx(0.0)


def test_the_spread_over_orders() -> None:
    table = get_table("table11")
    row = table.rows[0]
    runs = [finished(recipe, 0, 70.0 + number) for number, recipe in enumerate(row.recipes)]
    cell = compare(table, runs).cells["GEM", "SVHN"]
    assert cell.values == tuple(73.0 + number for number in range(24))
    assert cell.ours == "84.5 ± 7.1 (24)"
    assert compare(table, runs[1:]).cells["GEM", "SVHN"].ours == "missing (23 of 24)"


def test_both_protocols_share_a_row() -> None:
    table = get_table("table1").with_seeds(1)
    rows = {(row.title, row.under): row.recipes[0] for row in table.rows}
    runs = [finished(rows["Naive", "P1"], value=80.0), finished(rows["Naive", "P2"], value=60.0)]
    runs += [finished(rows["Oracle (all)", "P1"], value=95.0)]
    made = compare(table, runs)
    assert made.cells["Naive", "P1 MNIST"].mean == 80.0
    assert made.cells["Naive", "P2 MNIST"].mean == 60.0
    assert made.cells["Naive", "P2 SVHN"].mean == 63.0
    assert made.cells["Oracle (all)", "P2 SVHN"].values == made.cells["Oracle (all)", "P1 SVHN"].values == (98.0,)


def test_other_recipes_and_copies_do_not_enter(table3: Table) -> None:
    naive = table3.recipes[0]
    other = finished(naive)
    other.identity["training"]["lr"] = 1.0
    made = compare(table3.with_seeds(1), [other, finished(naive, value=50.0), finished(naive, value=50.0)])
    assert made.cells["neither", "MNIST"].values == (50.0,)
    assert len(made.records) == 1


def fast(record: Record, precision: str = "tf32") -> Record:
    record.identity["training"]["precision"] = precision
    return record


def test_runs_in_another_precision_enter_where_there_are_more_of_them(table3: Table) -> None:
    naive, *_, both = table3.recipes
    table = table3.with_seeds(2)
    own = [finished(naive, seed, 70.0) for seed in (0, 1)]
    made = compare(
        table, [fast(finished(naive, 0, 50.0)), *own, *(fast(finished(both, seed, 60.0)) for seed in (0, 1))]
    )
    assert made.cells["neither", "MNIST"].values == (70.0, 70.0)
    assert made.cells["recall and adapt", "MNIST"].values == (60.0, 60.0)
    assert made.notes == [*table.notes, "Computed with precision=tf32: recall and adapt."]
    mixed = compare(table, [finished(naive, 0, 70.0), *(fast(finished(naive, seed, 50.0)) for seed in (0, 1))])
    assert mixed.cells["neither", "MNIST"].values == (50.0, 50.0)  # none of another precision beside them
    assert mixed.notes == [*table.notes, "Computed with precision=tf32."]
    assert compare(table, own).notes == list(table.notes)
    others = [fast(finished(recipe, 0, 60.0)) for recipe in table.recipes[1:]]
    assert compare(table, own + others).notes[-1] == "Computed with precision=tf32, but for neither."
    first, second = (row.recipes[0] for row in get_table("table1").rows if row.title == "Naive")  # of one row
    apart = compare(get_table("table1"), [fast(finished(first)), finished(second)])
    assert apart.notes[-1] == "Computed with precision=tf32: Naive."


def test_of_published_runs_those_of_the_first_file_say_which_data_are_meant(table3: Table) -> None:
    naive = table3.recipes[0]
    runs = [finished(naive, 0, 50.0, data="digits 2"), finished(naive, 0, 70.0), finished(naive, 1, 70.0)]
    made = compare(table3.with_seeds(1), runs, published=True)
    assert made.cells["neither", "MNIST"].values == (50.0,)


def test_a_table_of_precisions_keeps_them_apart() -> None:
    table = get_table("precision").with_seeds(1)
    made = compare(table, [finished(recipe) for recipe in table.recipes[1:]])
    assert [made.cells[row, "MNIST"].ours for row in ("fp32", "tf32", "bf16")] == [MISSING, "90.0 (1)", "90.0 (1)"]
    free = finished(table.recipes[0])
    free.identity["training"]["deterministic"] = False
    made = compare(table, [free])
    assert [made.cells[row, "MNIST"].ours for row in ("fp32", "tf32", "bf16")] == ["90.0 (1)", MISSING, MISSING]
    assert made.notes[-1] == "Computed with deterministic=False."


def test_a_revision_that_is_gone_enters_only_where_it_was_published(table3: Table) -> None:
    both = table3.recipes[3]
    old = finished(both)
    old.identity["method"][0]["revision"] -= 1
    table = table3.with_seeds(1)
    assert compare(table, [old]).cells["recall and adapt", "MNIST"].ours == MISSING
    made = compare(table, [old], published=True)
    assert made.cells["recall and adapt", "MNIST"].ours == "90.0 (1)"
    assert made.notes[-1] == "Made with an earlier revision of the code: meta-dr."
    assert compare(table, [finished(both)], published=True).notes == list(table.notes)


def test_runs_on_other_data_are_told_apart_by_the_data_that_are_here(
    table3: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    naive, recall, *_ = table3.recipes
    table = table3.with_seeds(1)
    runs = [finished(naive, value=50.0, data="digits 1"), finished(recall, value=60.0, data="digits 2")]

    def here(recipe: Recipe) -> str:
        assert set(recipe.domains) == set(PLACES)
        return "digits 2"

    monkeypatch.setattr("metadr.report.comparison.data_of", here)
    made = compare(table, runs)
    assert made.cells["neither", "MNIST"].ours == MISSING
    assert made.cells["recall", "MNIST"].ours == "60.0 (1)"
    # Of one kind, they need not be here.
    assert compare(table, runs[:1]).cells["neither", "MNIST"].ours == "50.0 (1)"

    def nowhere(recipe: Recipe) -> Any:
        raise UserError("mnist is missing")

    monkeypatch.setattr("metadr.report.comparison.data_of", nowhere)
    with pytest.raises(UserError, match=r"runs on 2 versions of the data \(digits 1; digits 2\).*mnist is missing"):
        compare(table, runs)
    assert compare(table, runs[:1]).cells["neither", "MNIST"].ours == "50.0 (1)"


def test_runs_from_other_weights_are_told_apart_by_the_file_that_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The data need not be here: they are the same."""
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    place = tmp_path / "weights" / "resnet18.safetensors"
    place.parent.mkdir()
    contents = []
    for value in (1.0, 2.0, 3.0):
        save_file({"weight": torch.full((1,), value)}, place)
        contents.append(hashlib.sha256(place.read_bytes()).hexdigest()[:16])
    place.unlink()
    table = get_table("table3-weights").with_seeds(2)
    naive, recall, *_ = table.recipes
    started = [f"digits 1, weights {content}" for content in contents[:2]]
    runs = [finished(naive, seed, 50.0, started[0]) for seed in (0, 1)] + [finished(recall, 0, 60.0, started[1])]
    several = rf"from 2 files of weights, by their SHA-256 {contents[0]} \(2 runs\) and {contents[1]} \(1 run\)"
    advice = rf"Put the file that is meant in {re.escape(str(place))}, or give a folder with the runs of one\.$"
    with pytest.raises(UserError, match=several) as told:
        compare(table, runs)
    assert re.search(advice, str(told.value)) and "--weights" not in str(told.value)

    save_file({"weight": torch.full((1,), 3.0)}, place)
    with pytest.raises(UserError, match=rf"{several}, and {re.escape(str(place))} is another\. {advice}"):
        compare(table, runs)
    save_file({"weight": torch.full((1,), 2.0)}, place)
    made = compare(table, runs)
    assert [made.cells[row, "MNIST"].ours for row in ("neither", "recall")] == [MISSING, "60.0 (1 of 2)"]

    # Data that differ are told by themselves, and weights that do not need not be here.
    place.unlink()
    other = finished(recall, 0, 60.0, started[0].replace("digits 1", "digits 2"))
    monkeypatch.setattr("metadr.report.comparison.data_of", lambda recipe: "digits 2")
    assert compare(table, [*runs[:2], other]).cells["recall", "MNIST"].ours == "60.0 (1 of 2)"


# How it is written.


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
def test_tex_is_whole(name: str) -> None:
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
def test_tex_compiles(name: str, tmp_path: Path) -> None:
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


def test_published_records_are_small_and_read_back(tmp_path: Path) -> None:
    table = get_table("table1")
    made = compare(table, every_run(table))
    assert all(cell.complete for cell in made.cells.values())
    write_comparison(made, {tmp_path / "table1.json": "json"})
    assert read_records(tmp_path / "table1.json") == made.records
    assert (tmp_path / "table1.json").stat().st_size < 600 * len(made.records)
    again = compare(table, read_records(tmp_path / "table1.json"), published=True)
    assert rendered(again, "md") == rendered(made, "md")


def test_runs_are_shown_by_the_statistics_of_tested_batches_where_they_know(tmp_path: Path) -> None:
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


def test_domains_that_are_only_tested_on_are_kept(tmp_path: Path) -> None:
    table = get_table("table4")
    made = compare(table, every_run(table))
    assert list(made.columns) == ["MNIST-M", "SYN", "SVHN"]
    assert made.cells["with DR", "SVHN"].ours == "84.1 ± 1.0 (3)"
    write_comparison(made, {tmp_path / "table4.json": "json"})
    assert read_records(tmp_path / "table4.json") == made.records


# Figure 3.


def bar_groups(panel: Any) -> list[BarContainer]:
    return [bars for bars in panel.containers if isinstance(bars, BarContainer)]


def bars_of(panel: Any) -> dict[str, list[float]]:
    return {bars.get_label(): [bar.get_height() for bar in bars] for bars in bar_groups(panel)}


def test_figure3_shows_every_moment_and_every_set() -> None:
    table = get_table("figure3").with_seeds(2)
    made = compare(table, every_run(table))
    figure = digits_figure(made)
    left, right = figure.subfigs
    assert left.get_suptitle() == "P1: MNIST → MNIST-M → SYN → SVHN"
    assert right.get_suptitle() == "P2: SVHN → SYN → MNIST-M → MNIST"
    for half, under in ((left, "P1"), (right, "P2")):
        top, bottom = half.axes[:4], half.axes[4:]
        order = ["MNIST", "MNIST-M", "SYN", "SVHN"][:: 1 if under == "P1" else -1]
        assert [panel.get_title() for panel in top] == [f"on {name}" for name in order]
        for name, above, below in zip(order, top, bottom, strict=True):
            final = {row: made.cells[row, f"{under} {name}"].mean for row in made.rows}
            assert bars_of(above).keys() == {"Naive", "Naive + DR", "Meta-DR"}
            along = [final["Meta-DR, psi3"] * part for part in (0.5, 0.5, 0.5, 1)]
            assert bars_of(above)["Meta-DR"] == pytest.approx(along)
            assert bars_of(below)["Naive"] == pytest.approx([final["Naive"]] * 3)
            for title in ("Naive + DR", "Meta-DR"):
                wanted = [final[f"{title}, {each}"] for each in ("psi1", "psi2", "psi3")]
                assert bars_of(below)[title] == pytest.approx(wanted)
            assert not above.texts and not below.texts
    colours = {bars.get_label(): bars[0].get_facecolor() for bars in bar_groups(left.axes[0])}
    assert colours["Naive"][0] > colours["Naive"][1] < colours["Naive"][2]  # pink
    assert max(colours["Naive + DR"][:3]) == colours["Naive + DR"][2]  # blue
    assert max(colours["Meta-DR"][:3]) == colours["Meta-DR"][0]  # red
    assert "SYN is rendered here" in figure.get_supxlabel()


def test_figure3_shows_the_seeds_that_are_there_and_says_how_many() -> None:
    table = get_table("figure3").with_seeds(3)
    recipe = next(row.recipes[0] for row in table.rows if (row.title, row.under) == ("Meta-DR, psi1", "P1"))
    made = compare(table, [each for each in every_run(table) if each.identity != finished(recipe, 2).identity])
    left, _ = digits_figure(made).subfigs
    (told,) = left.axes[4].texts
    assert told.get_text() == "2 of 3 seeds"
    assert bars_of(left.axes[4])["Meta-DR"][0] == pytest.approx(made.cells["Meta-DR, psi1", "P1 MNIST"].mean)


def test_figure3_says_what_is_missing(tmp_path: Path) -> None:
    table = get_table("figure3").with_seeds(1)
    naive = next(row.recipes[0] for row in table.rows if (row.title, row.under) == ("Naive", "P1"))
    made = compare(table, [finished(naive)])
    left, right = digits_figure(made).subfigs
    assert [text.get_text() for text in left.axes[0].texts] == [MISSING] * 8
    assert [text.get_text() for text in right.axes[4].texts] == [MISSING] * 9
    written = write_comparison(made, every_format(made, tmp_path / "figure3"))
    assert [path.suffix for path in written] == [".md", ".csv", ".tex", ".json", ".png", ".pdf"]
    assert (tmp_path / "figure3.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure3.pdf").read_bytes() == rendered(made, "pdf")
