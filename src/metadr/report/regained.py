"""Tables of runs that were tested again by other statistics of batch norm: what of forgetting is only these."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table as TextTable

from metadr.files import told, write_file
from metadr.recipes.digits import SYN
from metadr.report.comparison import title_of
from metadr.report.records import Record
from metadr.report.tables import cell, group
from metadr.rescore import OF_THE_BATCH, OF_THE_RUN, Rescored
from metadr.store import key_of_identity

HEAD = ("method", "kept", "kept, own statistics", "forgotten", "regained", "on the last", "n")
# A domain is tested by the running statistics, by its own, and by those of every tested batch.
BY: dict[str, Callable[[str], str]] = {
    "running": lambda domain: OF_THE_RUN,
    "own": lambda domain: domain,
    "batch": lambda domain: OF_THE_BATCH,
}


def regained_rows(found: Sequence[Rescored]) -> dict[str, list[list[str]]]:
    """By sequence of domains, a row for each method: means over seeds, in points."""
    return {
        sequence: [
            [title, *(cell(list(each)) for each in zip(*map(_in_points, runs), strict=True)), str(len(runs))]
            for title, runs in methods.items()
        ]
        for sequence, methods in _grouped(found).items()
    }


def _in_points(run: Rescored) -> tuple[float, ...]:
    return run.kept, run.kept + run.regained, run.forgotten, run.regained, run.control


def final_rows(found: Sequence[Rescored]) -> dict[str, list[list[str]]]:
    """By sequence of domains, its head and, for each method, a row for each kind of statistics: scores at the end."""
    sequences = {}
    for sequence, methods in _grouped(found).items():
        order = next(iter(methods.values()))[0].order
        rows = [["method", "tested by", *map(title_of, order)]]
        for title, runs in methods.items():
            for name, by in BY.items():
                cells = [cell([run.on(domain, by(domain)) for run in runs]) for domain in order]
                rows.append([title if name == "running" else "", name, *cells])
        sequences[sequence] = rows
    return sequences


def _grouped(found: Sequence[Rescored]) -> dict[str, dict[str, list[Rescored]]]:
    """The runs by sequence of domains and method, without those of networks that have no batch norm."""
    by_key = {key_of_identity(each.identity): each for each in found if each.rows}
    sequences = group(Record(each.identity, {}, 0.0, []) for each in by_key.values())
    return {
        sequence: {one.title: [by_key[key_of_identity(record.identity)] for record in one.records] for one in groups}
        for sequence, groups in sequences.items()
    }


def text_regained(found: Sequence[Rescored]) -> list[TextTable]:
    """One table for each sequence of domains."""
    tables = []
    for sequence, rows in regained_rows(found).items():
        table = TextTable(title=sequence, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for index, name in enumerate(HEAD):
            table.add_column(name, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        tables.append(table)
    return tables


def _markdown(rows: Sequence[Sequence[str]], *, texts: int = 1) -> str:
    """A table whose first row is its head, and whose columns but for the first so many are numbers."""
    rule = [*["---"] * texts, *["---:"] * (len(rows[0]) - texts)]
    return "".join("| " + " | ".join(row) + " |\n" for row in (rows[0], rule, *rows[1:]))


def write_regained(found: Sequence[Rescored], stem: Path) -> list[Path]:
    """Write STEM.md and, with every score, STEM.json, one run a line; returns what was written."""
    finals = final_rows(found)
    parts = [
        f"## {sequence}\n\n{_markdown([HEAD, *rows])}\n{_markdown(finals[sequence], texts=2)}"
        for sequence, rows in regained_rows(found).items()
    ]
    note = (
        "Means over the earlier domains of a sequence, in points, ± standard deviation over n seeds. kept: the score "
        "at the end; own statistics: the same weights with batch norm's statistics re-estimated on the training images "
        "of the domain that is tested; forgotten: what was lost since the domain was learnt; regained: what "
        "re-estimated statistics give back; on the last: their gain there, where nothing was forgotten.\n\n"
        "In the second table the score on each domain at the end, in percent: by the running statistics that the run "
        "ended with, by the domain's own, and by those of every tested batch, of as many images as in training.\n"
    )
    rendered = [f"{SYN}\n"] if any("syn" in each.order for each in found) else []
    lines = [
        json.dumps({"identity": each.identity, "before": each.before, "rows": each.rows}, sort_keys=True)
        for each in found
    ]
    written = {
        stem.with_name(stem.name + ".md"): "\n".join([*parts, note, *rendered]),
        stem.with_name(stem.name + ".json"): "[\n" + ",\n".join(lines) + "\n]\n",
    }
    with told(stem):
        stem.parent.mkdir(parents=True, exist_ok=True)
    for path, text in written.items():
        write_file(path, text.encode())
    return list(written)
