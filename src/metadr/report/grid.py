"""A grid of settings as Markdown: every point by what the grid is judged by, part by part.

By the paper: the nearest first, and what each setting does on average. By the mean: the best first, and its name. By
the first point of a part: how far the others move from it.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from metadr.recipes import Row
from metadr.recipes.table import Judged
from metadr.report.comparison import Cell, Comparison

NOT_RUN = "missing"


def markdown_grid(made: Comparison, left_out: Iterable[str]) -> str:
    """For each part its points and what they come to.

    A distance is the root of the mean square of the differences, over the columns that are not left out.
    """
    judged = [column for column in made.columns if not set(column.split()) & set(left_out)]
    show, how = _SHOWN[made.table.judged]
    parts = []
    for title in dict.fromkeys(_part(row) for row in made.table.rows):
        parts += [f"### {title}", *show(made, [row for row in made.table.rows if _part(row) == title], judged)]
    if made.table.judged != "mean" or len(made.columns) > 1:  # the mean of one domain needs no word
        parts.append(how.format(" and ".join(filter(None, (", ".join(judged[:-1]), judged[-1])))))
    return "\n\n".join(parts)


def _by_paper(made: Comparison, rows: Sequence[Row], judged: Sequence[str]) -> list[str]:
    def distance(row: Row) -> float:
        return _distance([[cell] for cell in _cells(made, row, judged)])

    paper = [str(cell.paper or "") for cell in _cells(made, rows[0], made.columns)]
    first = ["the paper", *[""] * (len(rows[0].point) - 1), *paper, ""]
    ranked = sorted(rows, key=lambda row: (math.isnan(distance(row)), distance(row)))
    points = _points(made, ranked, "distance", distance, first=first)
    return [points, _settings(made, rows, judged)] if len(rows[0].point) > 1 else [points]


def _by_mean(made: Comparison, rows: Sequence[Row], judged: Sequence[str]) -> list[str]:
    """Over all columns: what tells nothing of nearness to the paper is to be learnt and kept like the rest."""

    def mean(row: Row) -> float:
        return _mean(_cells(made, row, made.columns)) if _complete(made, row) else math.nan

    ranked = sorted(rows, key=lambda row: (math.isnan(mean(row)), -mean(row)))
    tried = sum(_complete(made, row) for row in rows)
    told = f"{tried} of {len(rows)} configurations were tried"
    best = f"; the best of them is `{ranked[0].title}`, {mean(ranked[0]):.1f}." if tried else "."
    return [_points(made, ranked, "mean", mean), told + best]


def _by_first(made: Comparison, rows: Sequence[Row], judged: Sequence[str]) -> list[str]:
    reference = {column: made.cells[rows[0].title, column].mean for column in made.columns}

    def moves(row: Row, columns: Sequence[str]) -> list[float]:
        pairs = [(made.cells[row.title, column].mean, reference[column]) for column in columns]
        return [math.nan if a is None or b is None else a - b for a, b in pairs]

    def moved(row: Row) -> float:
        return math.sqrt(statistics.fmean(each**2 for each in moves(row, judged)))

    def shown(row: Row) -> list[str]:
        signed = ["" if row is rows[0] or math.isnan(each) else f" ({each:+.1f})" for each in moves(row, made.columns)]
        return [f"{score}{move}" for score, move in zip(_ours(made, row), signed, strict=True)]

    return [_points(made, rows, "moved", moved, shown=shown)]


# What a grid is judged by -> its paragraphs, and how to read them.
_SHOWN: dict[Judged, tuple[Callable[[Comparison, Sequence[Row], Sequence[str]], list[str]], str]] = {
    "paper": (_by_paper, "Distances are over {}. Means over points leave out those that are missing."),
    "mean": (_by_mean, "The mean is over all domains, those that are gone and the last one."),
    "first": (
        _by_first,
        "In brackets the difference from the first line of a part; moved: the root of its mean square over {}.",
    ),
}


def _points(
    made: Comparison,
    rows: Sequence[Row],
    title: str,
    value: Callable[[Row], float],
    *,
    shown: Callable[[Row], list[str]] | None = None,
    first: Sequence[str] = (),
) -> str:
    """A line for each point: its settings, its scores, and the value that it is judged by."""
    settings = [name for name, _ in rows[0].point]
    lines: list[Sequence[str]] = [[*settings, *made.columns, title]]
    lines.append(["---"] * len(settings) + ["---:"] * (len(made.columns) + 1))
    lines += [first] if first else []
    for row in rows:
        scores = shown(row) if shown else _ours(made, row)
        lines.append([*(value for _, value in row.point), *scores, _number(value(row))])
    return _table(lines)


def _settings(made: Comparison, rows: Sequence[Row], judged: Sequence[str]) -> str:
    lines = [["setting", "value", "complete points", *made.columns, "distance"]]
    lines.append(["---", "---"] + ["---:"] * (len(made.columns) + 2))
    for place, (name, _) in enumerate(rows[0].point):
        for value in dict.fromkeys(row.point[place][1] for row in rows):
            those = [row for row in rows if row.point[place][1] == value and _complete(made, row)]
            by_column = {column: [_cells(made, row, [column])[0] for row in those] for column in made.columns}
            means = [_number(_mean(cells)) for cells in by_column.values()]
            far = _distance([by_column[column] for column in judged])
            lines.append([name, value, str(len(those)), *means, _number(far)])
    return _table(lines)


def _part(row: Row) -> str:
    return row.part or row.paper


def _cells(made: Comparison, row: Row, columns: Sequence[str]) -> list[Cell]:
    return [made.cells[row.title, column] for column in columns]


def _ours(made: Comparison, row: Row) -> list[str]:
    """Mean ± spread (n); of rows with one run each, which a grid has many of, the score alone."""
    alone = all(each.seeds == 1 for each in made.table.rows)
    cells = _cells(made, row, made.columns)
    return [NOT_RUN if each.mean is None else f"{each.mean:.1f}" if alone else each.ours for each in cells]


def _complete(made: Comparison, row: Row) -> bool:
    return all(cell.complete for cell in _cells(made, row, made.columns))


def _mean(cells: Sequence[Cell]) -> float:
    return statistics.fmean(cell.mean for cell in cells if cell.mean is not None) if cells else math.nan


def _distance(columns: Sequence[Sequence[Cell]]) -> float:
    """Of the mean of each column's cells from the paper."""
    squares = []
    for cells in columns:
        differences = [cell.difference for cell in cells if cell.difference is not None]
        if not differences:
            return math.nan
        squares.append(statistics.fmean(differences) ** 2)
    return math.sqrt(statistics.fmean(squares))


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def _table(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
