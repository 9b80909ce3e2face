"""Tables of the digits with Meta-DR as it was first read, and run.

Its transformation and batch norm's passes were chosen again later (docs/calibration.md, "Meta-DR, read again"). What
had been run until then is published as what it is; a table leaves NOT_RUN_AGAIN when it has been run again.
"""

from collections.abc import Callable
from typing import Any

from metadr.benchmarks import with_settings
from metadr.core import Recipe
from metadr.recipes.table import Table

Make = Callable[[bool], Table]

NOT_RUN_AGAIN = ("table10", "table11", "syn-sensitivity")  # from a file of weights; from random ones none was
READING: dict[str, Any] = {"meta-dr.per": "batch", "batch_norm": "all"}
NOTE = (
    "Meta-DR is as it was first read, one T a step and batch norm's statistics moved by all passes: its default has "
    "changed since (docs/calibration.md)."
)


def first_read_with(method: str) -> dict[str, Any]:
    """What a method was run with on the digits, where that is not how it is read now."""
    return READING if "meta-dr" in method.split("+") else {}


def first_read(make: Make) -> Make:
    """The same table, its methods as they were first read on the digits."""

    def of(recipe: Recipe) -> dict[str, Any]:
        return first_read_with(recipe.method_name) if recipe.benchmark == "digits" else {}

    def table(tiny: bool = False) -> Table:
        usual = make(tiny)
        if not any(map(of, usual.recipes)):
            return usual
        return usual.changed(lambda recipe: with_settings(recipe, **of(recipe)))._replace(notes=(*usual.notes, NOTE))

    return table
