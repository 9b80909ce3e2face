"""Hand-made runs beside the paper's numbers: what a cell says, and what may enter it."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from metadr.core import Recipe
from metadr.errors import UserError
from metadr.recipes import Table, get_table
from metadr.report import Comparison, Record, compare
from metadr.report.comparison import MISSING


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


def test_an_average_over_orders_is_over_all_of_them(finished: Callable[..., Record]) -> None:
    """Of the seeds that all orders have been run with."""
    table = get_table("table11").with_seeds(2)
    recipes = table.rows[0].recipes
    runs = [finished(recipe, seed, 70.0) for recipe in recipes for seed in (0, 1) if (recipe, seed) != (recipes[3], 1)]
    cell = compare(table, runs).cells["GEM", "SVHN"]
    assert (cell.ours, cell.found, len(cell.values)) == ("73.0 ± 0.0 (24 of 48)", 47, 24)
    assert compare(table, runs[1:]).cells["GEM", "SVHN"].ours == "missing (46 of 48)"


def test_a_cell_of_one_run_has_no_spread(table3: Table, finished: Callable[..., Record]) -> None:
    made = compare(table3.with_seeds(1), [finished(table3.recipes[0], 0, 83.7), finished(table3.recipes[0], 1, 0.0)])
    cell = made.cells["neither", "MNIST"]
    assert (cell.ours, cell.spread) == ("83.7 (1)", None)
    assert cell.difference == pytest.approx(0.0)


def test_the_spread_over_orders(finished: Callable[..., Record]) -> None:
    table = get_table("table11")
    row = table.rows[0]
    runs = [finished(recipe, 0, 70.0 + number) for number, recipe in enumerate(row.recipes)]
    cell = compare(table, runs).cells["GEM", "SVHN"]
    assert cell.values == tuple(73.0 + number for number in range(24))
    assert cell.ours == "84.5 ± 7.1 (24)"
    assert compare(table, runs[1:]).cells["GEM", "SVHN"].ours == "missing (23 of 24)"


def test_both_protocols_share_a_row(finished: Callable[..., Record]) -> None:
    table = get_table("table1").with_seeds(1)
    rows = {(row.title, row.under): row.recipes[0] for row in table.rows}
    runs = [finished(rows["Naive", "P1"], value=80.0), finished(rows["Naive", "P2"], value=60.0)]
    runs += [finished(rows["Oracle (all)", "P1"], value=95.0)]
    made = compare(table, runs)
    assert made.cells["Naive", "P1 MNIST"].mean == 80.0
    assert made.cells["Naive", "P2 MNIST"].mean == 60.0
    assert made.cells["Naive", "P2 SVHN"].mean == 63.0
    assert made.cells["Oracle (all)", "P2 SVHN"].values == made.cells["Oracle (all)", "P1 SVHN"].values == (98.0,)


def test_other_recipes_and_copies_do_not_enter(table3: Table, finished: Callable[..., Record]) -> None:
    naive = table3.recipes[0]
    other = finished(naive)
    other.identity["training"]["lr"] = 1.0
    made = compare(table3.with_seeds(1), [other, finished(naive, value=50.0), finished(naive, value=50.0)])
    assert made.cells["neither", "MNIST"].values == (50.0,)
    assert len(made.records) == 1


def fast(record: Record, precision: str = "tf32") -> Record:
    record.identity["training"]["precision"] = precision
    return record


def test_runs_in_another_precision_enter_where_there_are_more_of_them(
    table3: Table, finished: Callable[..., Record]
) -> None:
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


def test_of_published_runs_those_of_the_first_file_say_which_data_are_meant(
    table3: Table, finished: Callable[..., Record]
) -> None:
    naive = table3.recipes[0]
    runs = [finished(naive, 0, 50.0, data="digits 2"), finished(naive, 0, 70.0), finished(naive, 1, 70.0)]
    made = compare(table3.with_seeds(1), runs, published=True)
    assert made.cells["neither", "MNIST"].values == (50.0,)


def test_a_table_of_precisions_keeps_them_apart(finished: Callable[..., Record]) -> None:
    table = get_table("precision").with_seeds(1)
    made = compare(table, [finished(recipe) for recipe in table.recipes[1:]])
    assert [made.cells[row, "MNIST"].ours for row in ("fp32", "tf32", "bf16")] == [MISSING, "90.0 (1)", "90.0 (1)"]
    free = finished(table.recipes[0])
    free.identity["training"]["deterministic"] = False
    made = compare(table, [free])
    assert [made.cells[row, "MNIST"].ours for row in ("fp32", "tf32", "bf16")] == ["90.0 (1)", MISSING, MISSING]
    assert made.notes[-1] == "Computed with deterministic=False."


def test_a_revision_that_is_gone_enters_only_where_it_was_published(
    table3: Table, finished: Callable[..., Record]
) -> None:
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
    table3: Table, monkeypatch: pytest.MonkeyPatch, finished: Callable[..., Record]
) -> None:
    naive, recall, *_ = table3.recipes
    table = table3.with_seeds(1)
    runs = [finished(naive, value=50.0, data="digits 1"), finished(recall, value=60.0, data="digits 2")]

    def here(recipe: Recipe) -> str:
        assert set(recipe.domains) == {"mnist", "mnist_m", "syn", "svhn"}
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
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, finished: Callable[..., Record]
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
