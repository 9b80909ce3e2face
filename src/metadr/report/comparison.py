"""Finished runs beside the paper's numbers: a table cell by cell, each with what it was computed from."""

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from metadr.benchmarks import training_of
from metadr.core import Recipe
from metadr.errors import UserError
from metadr.recipes import Row, Table
from metadr.report.paper import PAPER, Published, columns_of
from metadr.report.records import Record
from metadr.report.tables import spread
from metadr.store import ARITHMETIC, content_of, description, whole_training

DOMAIN_TITLES = {
    "mnist": "MNIST",
    "mnist_m": "MNIST-M",
    "syn": "SYN",
    "svhn": "SVHN",
    "sketch": "Sketches",
    "cartoon": "Cartoons",
    "art_painting": "Paintings",
    "photo": "Photos",
}
# A domain of Virtual KITTI 2 is known by its condition; the paper has two names for one of them.
CONDITION_TITLES = {
    "clone": ("Clean", "Clone"),
    "fog": ("Foggy",),
    "overcast": ("Cloudy",),
    "rain": ("Rainy",),
    "sunset": ("Sunset",),
    "morning": ("Morning",),
}
MISSING = "missing"
Runs = dict[Recipe, dict[int, Record]]  # by recipe and seed


class Cell(NamedTuple):
    """The final scores of the runs of a cell, and what the paper has there."""

    values: tuple[float, ...]
    wanted: int
    paper: Published | None
    ddof: int = 1

    @property
    def complete(self) -> bool:
        return len(self.values) == self.wanted

    @property
    def mean(self) -> float | None:
        """None unless all runs are there: an average over fewer seeds would not be what the table says."""
        return statistics.fmean(self.values) if self.complete else None

    @property
    def spread(self) -> float | None:
        return spread(list(self.values), ddof=self.ddof) if self.complete and self.wanted > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper.mean

    @property
    def ours(self) -> str:
        """Mean ± spread (n), or what is missing."""
        if self.mean is None:
            return f"{MISSING} ({len(self.values)} of {self.wanted})" if self.values else MISSING
        half = "" if self.spread is None else f" ± {self.spread:.1f}"
        return f"{self.mean:.1f}{half} ({self.wanted})"


class Comparison(NamedTuple):
    """A table of the paper with our runs in it."""

    table: Table
    columns: list[str]
    cells: dict[tuple[str, str], Cell]  # by row and column
    runs: Runs
    notes: list[str]

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def records(self) -> list[Record]:
        """The runs of the table, each once, by recipe and seed."""
        return [record for seeds in self.runs.values() for record in seeds.values()]

    def runs_of(self, row: Row) -> list[Record]:
        """All runs of a row, or none where one is missing."""
        wanted = [(recipe, seed) for recipe in row.recipes for seed in self.table.seeds_in(row)]
        if all(seed in self.runs.get(recipe, {}) for recipe, seed in wanted):
            return [self.runs[recipe][seed] for recipe, seed in wanted]
        return []


def compare(table: Table, records: Iterable[Record], *, published: bool = False, ddof: int = 1) -> Comparison:
    """Put finished runs into the cells of a table.

    Args:
        table: the table, whose rows say which runs they want.
        records: any finished runs; those of other recipes are left out.
        published: they were kept in results/: shown whatever became of the code's revisions, with a note.
        ddof: the spread divides by n - ddof.
    """
    runs, notes = _matching(table, list(records), published)
    beside = table.beside or table.name
    cells: dict[tuple[str, str], Cell] = {}
    for row in table.rows:
        wanted = len(row.recipes) * row.seeds
        values: dict[str, list[float]] = {}
        for recipe in row.recipes:
            found = [runs[recipe][seed] for seed in table.seeds_in(row) if seed in runs.get(recipe, {})]
            for column, domain in _columns(beside, row, recipe).items():
                values.setdefault(column, []).extend(record.final(domain) for record in found)
        for column, those in values.items():
            printed = PAPER.get(beside, {}).get((row.paper or row.title, column))
            cells[row.title, column] = Cell(tuple(those), wanted, printed, ddof)
    filled = dict.fromkeys(column for _, column in cells)
    columns = [column for column in columns_of(beside) if column in filled] or list(filled)
    return Comparison(table, columns, cells, runs, [*table.notes, *notes])


def title_of(domain: str, known: Sequence[str] = (), under: str = "") -> str:
    """A domain as the head of a column; of several titles the one that the paper's table has."""
    titles = CONDITION_TITLES.get(domain.rpartition("-")[2], (DOMAIN_TITLES.get(domain, domain),))
    heads = [f"{under} {title}".strip() for title in titles]
    return next((head for head in heads if head in known), heads[0])


def _columns(name: str, row: Row, recipe: Recipe) -> dict[str, str]:
    """The columns that a recipe of a row fills, each with its domain: the paper's, or all where it has no numbers."""
    known = columns_of(name)
    titles = {title_of(domain, known, row.under): domain for domain in recipe.domains}
    return {title: domain for title, domain in titles.items() if not known or title in known}


def _matching(table: Table, records: Sequence[Record], published: bool) -> tuple[Runs, list[str]]:
    """The runs of a table among all records, by recipe and seed; where there are none in its precision, in another."""
    named = {_key(description(recipe), published) for recipe in table.recipes}
    by_key: dict[str, list[Record]] = {}
    for record in records:
        key = _key(record.identity, published)
        by_key.setdefault(key if key in named else _key(record.identity, published, arithmetic=False), []).append(
            record
        )
    runs: Runs = {}
    found = {
        recipe: [
            *by_key.get(_key(description(recipe), published), []),
            *by_key.get(_key(description(recipe), published, arithmetic=False), []),
        ]
        for recipe in table.recipes
    }
    data = _data(found)
    for recipe, those in found.items():
        wanted, meant = table.seeds_of[recipe], data[_read(recipe)]
        kept = sorted((each for each in those if each.identity["data"] in meant), key=lambda each: each.seed)
        for record in kept:
            if record.seed in wanted:
                runs.setdefault(recipe, {}).setdefault(record.seed, record)  # a copy is no second measurement
    return runs, [*_otherwise(runs), *(_older(runs) if published else [])]


def _data(found: dict[Recipe, list[Record]]) -> dict[tuple[Any, ...], set[str]]:
    """The data that runs are of, by what they read. Where there are several, those that are here decide."""
    kept = {}
    for read in {_read(recipe) for recipe in found}:
        of_these = {recipe: those for recipe, those in found.items() if _read(recipe) == read}
        kinds = {record.identity["data"] for those in of_these.values() for record in those}
        if len(kinds) > 1:
            try:
                kinds = {content_of(next(iter(of_these)))}
            except UserError as error:
                raise UserError(
                    f"There are runs on {len(kinds)} versions of the data ({'; '.join(sorted(kinds))}), and which one "
                    f"is meant cannot be told, because the data are not here. Give a folder with runs of one. ({error})"
                ) from None
        kept[read] = kinds
    return kept


def _read(recipe: Recipe) -> tuple[Any, ...]:
    """Which data a recipe reads, and how; and weights, which are of a network."""
    training = training_of(recipe)
    weights = (training.model, training.weights) if training.weights else ()
    return *sorted(recipe.domains), recipe.data, *weights


def _key(identity: dict[str, Any], published: bool, *, arithmetic: bool = True) -> str:
    """What decides a result, but for data and seed; without revisions where the runs were published."""
    content = {name: value for name, value in identity.items() if name not in ("data", "seed")}
    if not arithmetic:
        training = whole_training(identity)
        content["training"] = {name: value for name, value in training.items() if name not in ARITHMETIC}
    text = json.dumps(content, sort_keys=True)
    return re.sub(r'"revision": \d+|(?<=@)\d+', "", text) if published else text


def _otherwise(runs: Runs) -> list[str]:
    """Notes on runs that were not computed as the table has it."""
    settings = {
        f"{name}={value}"
        for recipe, seeds in runs.items()
        for record in seeds.values()
        for name, value in whole_training(record.identity).items()
        if name in ARITHMETIC and value != getattr(training_of(recipe), name)
    }
    return [f"Computed with {', '.join(sorted(settings))}."] if settings else []


def _older(runs: Runs) -> list[str]:
    """Notes on published runs that the code of today would not repeat."""
    older = {
        recipe.method_name
        for recipe, seeds in runs.items()
        for record in seeds.values()
        if _key(record.identity, False, arithmetic=False) != _key(description(recipe), False, arithmetic=False)
    }
    return [f"Made with an earlier revision of the code: {', '.join(sorted(older))}."] if older else []
