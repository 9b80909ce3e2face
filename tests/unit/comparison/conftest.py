"""Hand-made runs, which the tests of comparisons put beside the paper's numbers."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from metadr.core import Recipe
from metadr.recipes import Table, get_table
from metadr.report import Comparison, Record, compare
from metadr.store import description

PLACES = {"mnist": 0.0, "mnist_m": 1.0, "syn": 2.0, "svhn": 3.0}


@pytest.fixture(scope="session")
def environment() -> dict[str, Any]:
    """Where the runs were made."""
    return {
        "gpu": "abacus",
        "processor": "",
        "threads": 2,
        "torch": "2.0",
        "metadr": "0.1",
        "commit": "c0ffee",
        "dirty": False,
    }


@pytest.fixture(scope="session")
def finished(environment: dict[str, Any]) -> Callable[..., Record]:
    """A run that ends at `value` on MNIST, one more on MNIST-M and so on, and half that before."""

    def run(recipe: Recipe, seed: int = 0, value: float = 90.0, data: str = "digits 1") -> Record:
        moments = ("untrained", *recipe.order)
        rows = [
            {
                "after": after,
                "on": on,
                "metric": "accuracy",
                "value": (value + PLACES[on]) * (1.0 if after == moments[-1] else 0.5),
                "images": 100,
            }
            for after in moments
            for on in recipe.domains
        ]
        identity = json.loads(json.dumps({**description(recipe), "data": data, "seed": seed}))
        return Record(identity, environment, 36.0, rows)

    return run


@pytest.fixture(scope="session")
def every_run(finished: Callable[..., Record]) -> Callable[[Table], list[Record]]:
    """Every run of a table, each with an end of its own."""

    def runs(table: Table) -> list[Record]:
        return [
            finished(recipe, seed, 80.0 + seed + number / 10)
            for number, (recipe, seeds) in enumerate(table.seeds_of.items())
            for seed in seeds
        ]

    return runs


@pytest.fixture(scope="module")
def table3() -> Table:
    return get_table("table3")


@pytest.fixture(scope="module")
def partial(table3: Table, finished: Callable[..., Record]) -> Comparison:
    """Table 3 with all of its first row, two of three seeds of its second, nothing of its third and one of the last."""
    naive, recall, _, both = table3.recipes
    runs = [finished(naive, seed, value) for seed, value in enumerate((80.0, 82.0, 87.0))]
    runs += [finished(recall, seed, 90.0) for seed in (0, 2)]
    runs += [finished(both, 1, 90.0), finished(both, 7, 10.0)]
    return compare(table3, runs)
