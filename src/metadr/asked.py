"""Tables as a command line asks for them: with other settings, and what their reports cover."""

import re
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from metadr.benchmarks import known_fields, training_of, with_settings
from metadr.core import Recipe
from metadr.errors import UserError, unknown
from metadr.models import FROM_A_FILE
from metadr.recipes import Row, Table, only
from metadr.store import description, finished_runs
from metadr.sweep import Job, plan_known
from metadr.training import Precision

LONGEST_NAME = 100  # of a report, in letters


def as_asked(
    tables: list[Table], rows: list[str], fields: dict[str, str], weights: str | None, *, tiny: bool
) -> list[Table]:
    """The tables with settings from the command line in the rows that are asked for, and a note where these are not
    their own. A file of weights is for those that start from weights; where none of them does, for all of them. Other
    rows that start from a file, with such a network, have it too: what is finished of them is found by it."""
    asked_for = {recipe for table in only(tables, rows) for recipe in table.recipes}
    known = {recipe: known_fields(recipe) for recipe in asked_for}
    every = {name for names in known.values() for name in names}
    for name in fields:
        if name not in every:
            raise unknown("field", name, every, hint="No row has such a setting: list all with 'metadr list fields'.")
    some = any(training_of(recipe).weights for recipe in asked_for)
    networks = {training_of(recipe).model for recipe in asked_for}

    def change(recipe: Recipe) -> Recipe:
        if recipe not in asked_for:
            usual = training_of(recipe)
            named = weights and usual.weights == FROM_A_FILE and usual.model in networks
            return with_settings(recipe, weights=weights) if named else recipe
        own = {name: value for name, value in fields.items() if name in known[recipe]}  # not all have all parts
        if weights and (training_of(recipe).weights or not some):
            own["weights"] = weights
        return with_settings(recipe, **own)

    given = {**fields, **({"weights": weights} if weights else {})}
    named = [*(["tiny"] if tiny else []), *sorted(f"{name}={value}" for name, value in given.items())]
    changes = ", ".join([*(["--tiny"] if tiny else []), *(f"{name}={value}" for name, value in given.items())])
    inside = f", in {' and '.join(map(repr, rows))}" if rows and given else ""
    asked = []
    for usual in tables:
        chosen = usual.changed(change)
        if len(chosen.recipes) < len(usual.recipes):
            raise UserError(
                f"With {changes} rows of table '{usual.name}' that differ in this would be the same. Choose one of "
                "them with --row, or leave the setting out."
            )
        # A file of weights where the table wants one is no other setting.
        if tiny or [*map(description, chosen.recipes)] != [*map(description, usual.recipes)]:
            note = f"Not the settings of the table{inside}: {changes}."
            apart = _named(usual.name, [*named, *(rows if given else [])])
            chosen = chosen._replace(notes=(*chosen.notes, note), report=apart)
        asked.append(chosen)
    return asked


def _named(name: str, changes: list[str]) -> str:
    """What the report of a table with changes is called, so that it lies beside the table's own."""
    text = re.sub(r"[^\w.=,+-]+", "_", "-".join([name, *changes]))
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}-{zlib.crc32(text.encode()):08x}"


def with_seeds_there(table: Table, usual: Table, out: Path) -> Table:
    """The table with more seeds where runs are there: as many as it usually has, or as all its rows were run with.

    So the report of a few seeds takes nothing from one of more that was written before.
    """
    found = (re.search(r"-seed(\d+)-\w+$", path.name) for path in (finished_runs(out) if out.exists() else ()))
    counts = sorted({int(each[1]) + 1 - table.first_seed for each in found if each}, reverse=True)

    def had(row: Row, count: int) -> bool:
        """Whether a row was run with the last of so many seeds."""
        jobs = [Job(recipe, table.first_seed + count - 1) for recipe in row.recipes]
        return len(plan_known(jobs, out).finished) == len(jobs)

    every = next((n for n in counts if all(n <= row.seeds or had(row, n) for row in table.rows)), 0)
    own = (
        next((n for n in counts if row.seeds < n <= each.seeds and had(row, n)), 0)
        for row, each in zip(table.rows, usual.rows, strict=True)
    )
    rows = (row._replace(seeds=max(row.seeds, every, n)) for row, n in zip(table.rows, own, strict=True))
    return table._replace(rows=tuple(rows))


def in_other_precisions(missing: Sequence[Job], wanted: Sequence[Job], out: Path) -> Counter[str]:
    """How many of the missing runs are finished in another precision, by its name: those are other runs."""
    asked = {training_of(job.recipe).precision for job in wanted}
    if len(asked) > 1:  # tables that compare them
        return Counter()
    found = {
        each: plan_known([Job(with_settings(job.recipe, precision=each), job.seed) for job in missing], out).finished
        for each in get_args(Precision)
        if each not in asked
    }
    return Counter({each: len(those) for each, those in found.items() if those})
