"""What the tables of the paper's digits have in common."""

from collections.abc import Mapping
from typing import Any

from metadr.benchmarks import make_recipe
from metadr.core import Recipe
from metadr.recipes.table import Row

PROTOCOLS = {"P1": "digits/p1", "P2": "digits/p2"}
SYN = (
    "SYN is rendered here by the procedure that Ganin and Lempitsky describe; it is not their set, so its columns, and "
    "what training on it does to the others, can differ for that reason alone."
)
MEMORY_METHODS = {"GEM": "gem", "GEM + DR": "dr+gem", "ER": "er", "ER + DR": "dr+er", "ER + Meta-DR": "er+meta-dr"}
# Both tables of memories train by SGD, at one rate on every domain: reading 38 of docs/protocol.md.
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.01, "later_lr": 0.01}


def p1_rows(methods: Mapping[str, tuple[str, dict[str, Any]]], *, tiny: bool, seeds: int = 3) -> tuple[Row, ...]:
    """Rows of the first protocol by their titles: a method and its fields for each."""
    return tuple(Row(title, (p1(method, tiny=tiny, **fields),), seeds) for title, (method, fields) in methods.items())


def p1(method: str, *, tiny: bool, **fields: Any) -> Recipe:
    return make_recipe(PROTOCOLS["P1"], method, tiny=tiny, **fields)
