"""A grid of settings as Markdown: every point by its distance from the paper, and what each setting does on average."""

import math
import statistics
from collections.abc import Iterable, Sequence

from metadr.recipes import Row
from metadr.report.comparison import Cell, Comparison

NOT_RUN = "missing"


def markdown_grid(made: Comparison, left_out: Iterable[str]) -> str:
    """For each row of the paper its points, the nearest first, and the means over all points with a value.

    A distance is the root of the mean square of the differences, over the columns that are not left out.
    """
    judged = [column for column in made.columns if not set(column.split()) & set(left_out)]
    parts = []
    for title in dict.fromkeys(row.paper for row in made.table.rows):
        rows = [row for row in made.table.rows if row.paper == title]
        parts += [f"### {title}", _points(made, rows, judged), _settings(made, rows, judged)]
    how = f"Distances are over {' and '.join(judged)}. Means over points leave out those that are missing."
    return "\n\n".join([*parts, how])


def _points(made: Comparison, rows: Sequence[Row], judged: Sequence[str]) -> str:
    settings = [name for name, _ in rows[0].point]
    lines = [[*settings, *made.columns, "distance"], ["---"] * len(settings) + ["---:"] * (len(made.columns) + 1)]
    paper = [str(cell.paper or "") for cell in _cells(made, rows[0], made.columns)]
    lines.append(["the paper", *[""] * (len(settings) - 1), *paper, ""])

    def distance(row: Row) -> float:
        return _distance([[cell] for cell in _cells(made, row, judged)])

    for row in sorted(rows, key=lambda row: (math.isnan(distance(row)), distance(row))):
        ours = [NOT_RUN if cell.mean is None else f"{cell.mean:.1f}" for cell in _cells(made, row, made.columns)]
        lines.append([*(value for _, value in row.point), *ours, _number(distance(row))])
    return _table(lines)


def _settings(made: Comparison, rows: Sequence[Row], judged: Sequence[str]) -> str:
    lines = [["setting", "value", "points", *made.columns, "distance"]]
    lines.append(["---", "---"] + ["---:"] * (len(made.columns) + 2))
    for place, (name, _) in enumerate(rows[0].point):
        for value in dict.fromkeys(row.point[place][1] for row in rows):
            those = [row for row in rows if row.point[place][1] == value and _complete(made, row)]
            by_column = {column: [_cells(made, row, [column])[0] for row in those] for column in made.columns}
            means = [_number(_mean(cells)) for cells in by_column.values()]
            far = _distance([by_column[column] for column in judged])
            lines.append([name, value, str(len(those)), *means, _number(far)])
    return _table(lines)


def _cells(made: Comparison, row: Row, columns: Sequence[str]) -> list[Cell]:
    return [made.cells[row.title, column] for column in columns]


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
