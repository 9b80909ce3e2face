"""Finished runs from a file of records that a report wrote, such as those in results/: as run directories again."""

import json
from pathlib import Path
from typing import Any

from metadr.errors import UserError
from metadr.files import told
from metadr.packs.content import as_file
from metadr.report.records import read_records
from metadr.store import key_of_identity, method_name_of


def is_of_records(file: Path) -> bool:
    """Whether it looks like one: JSON, where a pack is compressed."""
    with told(file, "read"), file.open("rb") as opened:
        return opened.read(64).lstrip()[:1] in (b"{", b"[")


def write_runs(file: Path, folder: Path) -> dict[str, set[str]]:
    """Write every record as a run below a folder: the files of each run, by its place there.

    They have what a report kept: scores, and neither checkpoints nor what a segmentation has beside its scores.
    """
    runs = {}
    for record in read_records(file):
        place = f"{record.identity['benchmark']}/{_name(record.identity)}"
        files = {
            "recipe.json": record.identity,
            "environment.json": record.environment,
            "rows.json": record.rows,
            "done.json": {"seconds": record.seconds},
        }
        if place in runs and json.loads((folder / place / "rows.json").read_bytes()) != record.rows:
            raise UserError(
                f"{file} has two runs of {place} with other scores. Nothing was unpacked: remove one of them."
            )
        with told(folder):
            (folder / place).mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                (folder / place / name).write_bytes(as_file(content))
        runs[place] = set(files)
    return runs


def _name(identity: dict[str, Any]) -> str:
    return f"{method_name_of(identity)}-seed{identity['seed']}-{key_of_identity(identity)}"
