"""Tables: named lists of recipes. One module per table or figure."""

from collections.abc import Callable

from metadr.core import Recipe
from metadr.errors import unknown
from metadr.recipes import demo, embedded, precision
from metadr.recipes.table import Table

TABLES: dict[str, Callable[[bool], Table]] = {
    "demo": demo.table,
    "embedded": embedded.table,
    "precision": precision.table,
}


def get_table(name: str, *, tiny: bool = False) -> Table:
    if name not in TABLES:
        raise unknown("table", name, TABLES, hint="List all with 'metadr list tables'.")
    return TABLES[name](tiny)


def all_recipes() -> list[Recipe]:
    return [recipe for name in TABLES for recipe in get_table(name).recipes]


__all__ = ["TABLES", "Table", "all_recipes", "get_table"]
