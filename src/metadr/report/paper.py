"""The paper's numbers: every cell of its tables of results, in paper.csv beside this file.

Rows and columns carry the paper's heads in one spelling: protocols before domains ("P1 MNIST"), the size of a memory
after a method ("ER + DR, M = 200"). Where the paper gives two values for one thing, each stands where it is printed.
`tests/data/test_paper.py` compares every cell with the paper's source.
"""

import csv
from importlib.resources import files
from typing import NamedTuple


class Published(NamedTuple):
    """A cell of the paper: a mean over runs, in percent, and the ± beside it."""

    mean: float
    spread: float
    places: int = 1
    """Digits after the point, as printed."""

    def __str__(self) -> str:
        return f"{self.mean:.{self.places}f} ± {self.spread:.1f}"


Cells = dict[tuple[str, str], Published]  # by row and column, in the paper's order


def _read() -> dict[str, Cells]:
    tables: dict[str, Cells] = {}
    for line in csv.DictReader((files("metadr.report") / "paper.csv").read_text().splitlines()):
        places = len(line["mean"].partition(".")[2])
        cell = Published(float(line["mean"]), float(line["spread"]), places)
        tables.setdefault(line["table"], {})[line["row"], line["column"]] = cell
    return tables


PAPER = _read()


def rows_of(table: str) -> list[str]:
    """The rows of a table of the paper, in its order; none of a table that prints no numbers."""
    return list(dict.fromkeys(row for row, _ in PAPER.get(table, {})))


def columns_of(table: str) -> list[str]:
    return list(dict.fromkeys(column for _, column in PAPER.get(table, {})))
