"""What a table of experiments is."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from metadr.core import Recipe


class Row(NamedTuple):
    """A row of a table, or its part under one head: the runs that its cells are the means of."""

    title: str
    recipes: tuple[Recipe, ...]
    """One, or several to be averaged over, such as one for each order of domains."""
    seeds: int = 1
    under: str = ""
    """The head that its columns stand under, such as 'P1', where a table has several."""


class Table(NamedTuple):
    """Rows of recipes, each to be run over its seeds from 0 on."""

    name: str
    about: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    beside: str = ""
    """The paper's table that its numbers stand beside, where that has another name."""

    @property
    def seeds_of(self) -> dict[Recipe, int]:
        """Every recipe once, with the most seeds that a row wants of it."""
        seeds: dict[Recipe, int] = {}
        for row in self.rows:
            for recipe in row.recipes:
                seeds[recipe] = max(seeds.get(recipe, 0), row.seeds)
        return seeds

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        return tuple(self.seeds_of)

    @property
    def seeds(self) -> int:
        return max(row.seeds for row in self.rows)

    def with_seeds(self, seeds: int | None) -> "Table":
        """The table with so many seeds in every row; as it is, if none is given."""
        return self if seeds is None else self._replace(rows=tuple(row._replace(seeds=seeds) for row in self.rows))

    def changed(self, change: Callable[[Recipe], Recipe]) -> "Table":
        """The table with every recipe changed."""
        rows = (row._replace(recipes=tuple(map(change, row.recipes))) for row in self.rows)
        return self._replace(rows=tuple(rows))


def plain(recipes: Iterable[Recipe], seeds: int = 1) -> tuple[Row, ...]:
    """A row for each recipe, by the name of its method."""
    return tuple(Row(recipe.method_name, (recipe,), seeds) for recipe in recipes)
