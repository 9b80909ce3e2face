"""Tables of runs that were tested again with each domain's own statistics: what of forgetting is only these."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table as TextTable

from metadr.files import told, write_file
from metadr.report.records import Record
from metadr.report.tables import cell, group
from metadr.rescore import Rescored
from metadr.store import key_of_identity

HEAD = ("method", "kept", "kept, own statistics", "forgotten", "regained", "on the last", "n")


def regained_rows(found: Sequence[Rescored]) -> dict[str, list[list[str]]]:
    """By sequence of domains, a row for each method: means over seeds, in points."""
    by_key = {key_of_identity(each.identity): each for each in found if each.rows}
    sequences = {}
    for sequence, groups in group(Record(each.identity, {}, 0.0, []) for each in by_key.values()).items():
        rows = []
        for one in groups:
            runs = [by_key[key_of_identity(record.identity)] for record in one.records]
            columns = (
                [run.kept for run in runs],
                [run.kept + run.regained for run in runs],
                [run.forgotten for run in runs],
                [run.regained for run in runs],
                [run.control for run in runs],
            )
            rows.append([one.title, *map(cell, columns), str(len(runs))])
        sequences[sequence] = rows
    return sequences


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


def write_regained(found: Sequence[Rescored], stem: Path) -> list[Path]:
    """Write STEM.md and, with every score, STEM.json, one run a line; returns what was written."""
    rule = ["---", *["---:"] * (len(HEAD) - 1)]
    parts = [
        f"## {sequence}\n\n" + "".join("| " + " | ".join(row) + " |\n" for row in (HEAD, rule, *rows))
        for sequence, rows in regained_rows(found).items()
    ]
    note = (
        "Means over the earlier domains of a sequence, in points, ± standard deviation over n seeds. kept: the score "
        "at the end; own statistics: the same weights with batch norm's statistics re-estimated on the training images "
        "of the domain that is tested; forgotten: what was lost since the domain was learnt; regained: what "
        "re-estimated statistics give back; on the last: their gain there, where nothing was forgotten.\n"
    )
    lines = [
        json.dumps({"identity": each.identity, "before": each.before, "rows": each.rows}, sort_keys=True)
        for each in found
    ]
    written = {
        stem.with_name(stem.name + ".md"): "\n".join([*parts, note]),
        stem.with_name(stem.name + ".json"): "[\n" + ",\n".join(lines) + "\n]\n",
    }
    with told(stem):
        stem.parent.mkdir(parents=True, exist_ok=True)
    for path, text in written.items():
        write_file(path, text.encode())
    return list(written)
