"""What a table of experiments is."""

from typing import NamedTuple

from metadr.core import Recipe


class Table(NamedTuple):
    """Recipes to be run over seeds 0 to `seeds` - 1 and shown side by side."""

    name: str
    about: str
    recipes: tuple[Recipe, ...]
    seeds: int = 1
