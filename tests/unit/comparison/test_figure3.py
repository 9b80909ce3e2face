"""Figure 3: every moment and every set of hand-made runs, and what is missing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.container import BarContainer

from metadr.recipes import Table, get_table
from metadr.report import Record, compare, rendered, write_comparison
from metadr.report.comparison import MISSING
from metadr.report.figure3 import digits_figure
from metadr.report.write import every_format


def bar_groups(panel: Any) -> list[BarContainer]:
    return [bars for bars in panel.containers if isinstance(bars, BarContainer)]


def bars_of(panel: Any) -> dict[str, list[float]]:
    return {bars.get_label(): [bar.get_height() for bar in bars] for bars in bar_groups(panel)}


def test_figure3_shows_every_moment_and_every_set(every_run: Callable[[Table], list[Record]]) -> None:
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


def test_figure3_shows_the_seeds_that_are_there_and_says_how_many(
    finished: Callable[..., Record], every_run: Callable[[Table], list[Record]]
) -> None:
    table = get_table("figure3").with_seeds(3)
    recipe = next(row.recipes[0] for row in table.rows if (row.title, row.under) == ("Meta-DR, psi1", "P1"))
    made = compare(table, [each for each in every_run(table) if each.identity != finished(recipe, 2).identity])
    left, _ = digits_figure(made).subfigs
    (told,) = left.axes[4].texts
    assert told.get_text() == "2 of 3 seeds"
    assert bars_of(left.axes[4])["Meta-DR"][0] == pytest.approx(made.cells["Meta-DR, psi1", "P1 MNIST"].mean)


def test_figure3_says_what_is_missing(tmp_path: Path, finished: Callable[..., Record]) -> None:
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
