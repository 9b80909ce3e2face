"""Finished runs beside the paper's numbers: a table cell by cell, each with what it was computed from."""

import json
import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, KeysView, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from metadr import models
from metadr.benchmarks import training_of
from metadr.core import Recipe
from metadr.errors import UserError
from metadr.recipes import Row, Table
from metadr.report.frames import frames_note, split_note
from metadr.report.paper import PAPER, Published, columns_of
from metadr.report.records import Record
from metadr.report.tables import spread
from metadr.store import ARITHMETIC, apart, data_of, description, whole_training

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

    values: tuple[float, ...]  # of the seeds that all its recipes were run with
    found: int  # runs, of these seeds and others
    wanted: int
    paper: Published | None
    ddof: int = 1

    @property
    def complete(self) -> bool:
        return len(self.values) == self.wanted

    @property
    def mean(self) -> float | None:
        """Over the seeds that are there; none where an average would be over some of the recipes."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        return spread(list(self.values), ddof=self.ddof) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None or self.paper is None else self.mean - self.paper.mean

    @property
    def ours(self) -> str:
        """Mean ± spread (n), or what is missing."""
        if self.mean is None:
            return f"{MISSING} ({self.found} of {self.wanted})" if self.found else MISSING
        half = "" if self.spread is None else f" ± {self.spread:.1f}"
        n = str(self.wanted) if self.complete else f"{len(self.values)} of {self.wanted}"
        return f"{self.mean:.1f}{half} ({n})"


class Comparison(NamedTuple):
    """A table of the paper with our runs in it."""

    table: Table
    columns: list[str]
    cells: dict[tuple[str, str], Cell]  # by row and column
    runs: Runs
    notes: list[str]
    shared: bool = False  # some rows are read from the runs of others

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def records(self) -> list[Record]:
        """The runs of the table, each once, by recipe and seed."""
        there = [record.read_from or record for seeds in self.runs.values() for record in seeds.values()]
        return list({id(record): record for record in there}.values())

    def runs_of(self, row: Row, *, some: bool = False) -> list[Record]:
        """All runs of a row, or none where one is missing; with `some`, those that there are."""
        wanted = [(recipe, seed) for recipe in row.recipes for seed in self.table.seeds_in(row)]
        found = [self.runs[recipe][seed] for recipe, seed in wanted if seed in self.runs.get(recipe, {})]
        return found if some or len(found) == len(wanted) else []


def compare(table: Table, records: Iterable[Record], *, published: bool = False, ddof: int = 1) -> Comparison:
    """Put finished runs into the cells of a table.

    Args:
        table: the table, whose rows say which runs they want.
        records: any finished runs; those of other recipes are left out.
        published: they were kept in results/: shown whatever became of the code's revisions, with a note.
        ddof: the spread divides by n - ddof.
    """
    shared = any(row.by for row in table.rows)
    table, records = table.read, list(records)
    runs, notes = _matching(
        table, [*records, *(other for each in records for other in each.of_other_policies)], published
    )
    beside = table.beside or table.name
    cells: dict[tuple[str, str], Cell] = {}
    for row in table.rows:
        there = {recipe: set(table.seeds_in(row)) & set(runs.get(recipe, {})) for recipe in row.recipes}
        seeds, found = sorted(set.intersection(*there.values())), sum(map(len, there.values()))
        values: dict[str, list[float]] = {}
        for recipe in row.recipes:
            for column, domain in _columns(beside, row, recipe).items():
                values.setdefault(column, []).extend(runs[recipe][seed].final(domain) for seed in seeds)
        for column, those in values.items():
            printed = PAPER.get(beside, {}).get((row.paper or row.title, column))
            cells[row.title, column] = Cell(tuple(those), found, len(row.recipes) * row.seeds, printed, ddof)
    filled = dict.fromkeys(column for _, column in cells)
    columns = [column for column in columns_of(beside) if column in filled] or list(filled)
    made = Comparison(table, columns, cells, runs, [*table.notes, *notes], shared)
    return made._replace(notes=[*made.notes, *split_note(made.records), *frames_note(made.records)])


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
    """The runs of a table among all records, by recipe and seed.

    Those of a recipe are all of one arithmetic: the table's own, or another of which there are more.
    """
    # What the table itself compares is no side issue in it.
    compared = {name for name in ARITHMETIC if len({getattr(training_of(each), name) for each in table.recipes}) > 1}
    free = tuple(name for name in ARITHMETIC if name not in compared)
    by_key: dict[str, list[Record]] = {}
    for record in records:
        by_key.setdefault(_key(record.identity, published, free), []).append(record)
    found = {recipe: by_key.get(_key(description(recipe), published, free), []) for recipe in table.recipes}
    data = _data(found, published)
    runs: Runs = {}
    for recipe, those in found.items():
        by_arithmetic: dict[str, dict[int, Record]] = {_arithmetic(description(recipe)): {}}  # the table's own first
        for record in those:
            if record.seed in table.seeds_of[recipe] and record.identity["data"] in data[_read(recipe)]:
                seeds = by_arithmetic.setdefault(_arithmetic(record.identity), {})
                seeds.setdefault(record.seed, record)  # a copy is no second measurement
        most = max(by_arithmetic.values(), key=len)
        if most:
            runs[recipe] = dict(sorted(most.items()))
    return runs, [*_otherwise(table, runs), *(_older(runs) if published else [])]


def _data(found: dict[Recipe, list[Record]], published: bool) -> dict[tuple[Any, ...], set[str]]:
    """The data that runs are of, by what they read.

    Where there are several, those of the first run that was published decide, which is of the table's own file; of
    other runs those that are here.
    """
    kept = {}
    for read in {_read(recipe) for recipe in found}:
        of_these = {recipe: those for recipe, those in found.items() if _read(recipe) == read}
        kinds = Counter(record.identity["data"] for those in of_these.values() for record in those)
        if len(kinds) > 1:
            kept[read] = {next(iter(kinds))} if published else _here(next(iter(of_these)), kinds)
        else:
            kept[read] = set(kinds)
    return kept


def _here(recipe: Recipe, kinds: Mapping[str, int]) -> set[str]:
    """Of several contents, each with its number of runs, that which is here: its data, and its weights."""
    by_data = {apart(kind)[0] for kind in kinds}
    if len(by_data) > 1:
        try:
            by_data = {data_of(recipe)}
        except UserError as error:
            raise UserError(
                f"There are runs on {len(by_data)} versions of the data ({'; '.join(sorted(by_data))}), and which one "
                f"is meant cannot be told, because the data are not here. Give a folder with runs of one. ({error})"
            ) from None
    left = {kind: count for kind, count in kinds.items() if apart(kind)[0] in by_data}
    by_weights = {apart(kind)[1]: count for kind, count in left.items()}
    if len(by_weights) < 2:
        return set(left)
    training = training_of(recipe)
    place, meant = models.place_of(training.model, training.weights or models.FROM_A_FILE), ""
    with suppress(UserError):  # it is not there, or no file of weights
        meant = models.content_of(training.model, training.weights)
    if meant not in by_weights:
        each = [f"{content} ({count} run{'s' * (count > 1)})" for content, count in sorted(by_weights.items())]
        raise UserError(
            f"There are runs from {len(each)} files of weights, by their SHA-256 {', '.join(each[:-1])} and {each[-1]}"
            f"{f', and {place} is another' if meant else ', and a table is of one'}. Put the file that is meant in "
            f"{place}, or give a folder with the runs of one."
        )
    return {kind for kind in left if apart(kind)[1] == meant}


def _read(recipe: Recipe) -> tuple[Any, ...]:
    """Which data a recipe reads, and how; and weights, which are of a network."""
    training = training_of(recipe)
    weights = (training.model, training.weights) if training.weights else ()
    return *sorted(recipe.domains), recipe.data, *weights


def _key(identity: dict[str, Any], published: bool, free: Sequence[str]) -> str:
    """What decides a result, but for data and seed, and what is free; without revisions where runs were published."""
    content = {name: value for name, value in identity.items() if name not in ("data", "seed")}
    content["training"] = {name: value for name, value in whole_training(identity).items() if name not in free}
    text = json.dumps(content, sort_keys=True)
    return re.sub(r'"revision": \d+|(?<=@)\d+', "", text) if published else text


def _arithmetic(identity: dict[str, Any]) -> str:
    """How a run was computed, in the words of --set."""
    training = whole_training(identity)
    return ", ".join(f"{name}={training[name]}" for name in ARITHMETIC)


def _otherwise(table: Table, runs: Runs) -> list[str]:
    """Notes on runs that were not computed as the table has it: on the rows that they are in, or that they are not."""
    made: dict[str, set[Recipe]] = {}  # recipes by how their runs were computed, where that is not the table's way
    for recipe, seeds in runs.items():
        usual = _arithmetic(description(recipe)).split(", ")
        (computed,) = {_arithmetic(record.identity) for record in seeds.values()}
        if others := [each for each in computed.split(", ") if each not in usual]:
            made.setdefault(", ".join(others), set()).add(recipe)
    notes = []
    for setting, recipes in made.items():
        inside = _titles(table, recipes)
        rest = _titles(table, runs.keys() - recipes)
        told = f": {', '.join(inside)}" if rest else ""
        if 0 < len(rest) < len(inside) and rest.isdisjoint(inside):
            told = f", but for {', '.join(rest)}"
        notes.append(f"Computed with {setting}{told}.")
    return notes


def _titles(table: Table, recipes: Collection[Recipe]) -> KeysView[str]:
    return dict.fromkeys(row.title for row in table.rows if any(each in recipes for each in row.recipes)).keys()


def _older(runs: Runs) -> list[str]:
    """Notes on published runs that the code of today would not repeat."""
    older = {
        recipe.method_name
        for recipe, seeds in runs.items()
        for record in seeds.values()
        if _key(record.identity, False, ARITHMETIC) != _key(description(recipe), False, ARITHMETIC)
    }
    return [f"Made with an earlier revision of the code: {', '.join(sorted(older))}."] if older else []
