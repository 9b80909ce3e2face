"""What a table of experiments is."""

import dataclasses
import fnmatch
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from metadr.benchmarks import training_of, with_settings
from metadr.core import Recipe
from metadr.errors import unknown
from metadr.policies import others_kept, policy_of

Judged = Literal["paper", "mean", "first"]


class Row(NamedTuple):
    """A row of a table, or its part under one head: the runs that its cells are the means of."""

    title: str
    recipes: tuple[Recipe, ...]
    """One, or several to be averaged over, such as one for each order of domains."""
    seeds: int = 1
    under: str = ""
    """The head that its columns stand under, such as 'P1', where a table has several."""
    paper: str = ""
    """The row of the paper's table to hold it against, where that is not the one of its title."""
    point: tuple[tuple[str, str], ...] = ()
    """Its place in a grid: settings and their values in words."""
    part: str = ""
    """The part of a grid that it stands in, where that is not the row of the paper."""
    by: str = ""
    """The policy of batch norm (`Training.batch_norm`) by which the last test of its runs is read, where that is not
    their own: what is learnt is the same, so that rows share runs."""

    @property
    def read(self) -> "Row":
        """The row as if its runs had that policy."""
        if not self.by:
            return self
        return self._replace(recipes=tuple(with_settings(each, batch_norm=self.by) for each in self.recipes), by="")


class Table(NamedTuple):
    """Rows of recipes, each to be run over its seeds."""

    name: str
    about: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    beside: str = ""
    """The paper's table whose numbers stand beside, where that is not the one of its name."""
    first_seed: int = 0
    report: str = ""
    """What the files of its report are called, where that is not its name: settings are not its own."""
    judged: Judged = "paper"
    """Of a grid, what its points are judged by: how near they are to the paper, how high their mean is, or how far they
    move from the first point of their part."""

    @property
    def seeds_of(self) -> dict[Recipe, range]:
        """Every recipe once, with the most seeds that a row wants of it."""
        seeds: dict[Recipe, range] = {}
        for row in self.rows:
            for recipe in row.recipes:
                seeds[recipe] = max(seeds.get(recipe, range(0)), self.seeds_in(row), key=len)
        return seeds

    def seeds_in(self, row: Row) -> range:
        return range(self.first_seed, self.first_seed + row.seeds)

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        return tuple(self.seeds_of)

    @property
    def seeds(self) -> int:
        return max(row.seeds for row in self.rows)

    @property
    def read(self) -> "Table":
        """The table as if every row had runs of its own."""
        return self._replace(rows=tuple(row.read for row in self.rows))

    def with_own_runs(self, own: Callable[[Row, range], bool]) -> "Table":
        """The table with runs of their own for rows that could read others' by another policy, where `own` says so."""
        rows = (row.read if row.by and own(row, self.seeds_in(row)) else row for row in self.rows)
        return self._replace(rows=tuple(rows))

    def with_seeds(self, seeds: int | None) -> "Table":
        """The table with so many seeds in every row; as it is, if none is given."""
        return self if seeds is None else self._replace(rows=tuple(row._replace(seeds=seeds) for row in self.rows))

    def changed(self, change: Callable[[Recipe], Recipe]) -> "Table":
        """The table with every recipe changed; rows have runs of their own where others no longer keep their policy."""
        rows = (row._replace(recipes=tuple(map(change, row.recipes))) for row in self.rows)
        return self._replace(rows=tuple(row if _kept(row) else row.read for row in rows))


def _kept(row: Row) -> bool:
    return all(row.by in ("", *others_kept(training_of(each), each.method)) for each in row.recipes)


def read_by(recipe: Recipe) -> tuple[str, Recipe]:
    """`Row.by`, and the recipe whose runs a row reads: one by the usual policy, if it keeps the wanted one beside."""
    overrides = tuple((name, value) for name, value in recipe.overrides if name != "batch_norm")
    usual, kinds = dataclasses.replace(recipe, overrides=overrides), [type(part) for part in recipe.method]
    wanted, own = (policy_of(training_of(each).batch_norm, kinds) for each in (recipe, usual))
    if wanted == own:
        return "", usual
    return (wanted, usual) if wanted in others_kept(training_of(usual), usual.method) else ("", recipe)


def only(tables: Sequence[Table], wanted: Sequence[str]) -> list[Table]:
    """The tables with the rows of these titles, alone or after their head ("P1 Naive"), * for any text, and without
    the tables that have none of them; all, if none is given."""
    if not wanted:
        return list(tables)
    for name in wanted:
        if not any(_is_called(row, name) for table in tables for row in table.rows):
            where = " and ".join(f"'{table.name}'" for table in tables)
            titles = dict.fromkeys(row.title for table in tables for row in table.rows)
            hint = "'metadr report TABLE' shows all; * stands for any text."
            raise unknown("row", name, titles, within=f" in table {where}", hint=hint)
    kept = [[row for row in table.rows if any(_is_called(row, name) for name in wanted)] for table in tables]
    return [table._replace(rows=tuple(rows)) for table, rows in zip(tables, kept, strict=True) if rows]


def _is_called(row: Row, name: str) -> bool:
    titles = (row.title, f"{row.under} {row.title}")
    return any(fnmatch.fnmatchcase(title.lower(), name.lower()) for title in titles)


def plain(recipes: Iterable[Recipe], seeds: int = 1) -> tuple[Row, ...]:
    """A row for each recipe, by the name of its method."""
    return tuple(Row(recipe.method_name, (recipe,), seeds) for recipe in recipes)
