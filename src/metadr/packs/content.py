"""What a pack takes of a run directory, and how far a run is."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from metadr.files import told
from metadr.store import key_of_identity, position_of

log = logging.getLogger("metadr")

FORMAT = 1
MANIFEST = "metadr-runs.json"  # the first member: {"format", "count", "runs": {run: {file: SHA-256}}}
JSON_FILES = ("recipe.json", "environment.json", "failed.json", "rows.json", "done.json")
CHECKPOINT = re.compile(r"checkpoint-([0-9]{6,})-([0-9a-f]{16})\.safetensors")
# What a file that is not what it should be makes its reader raise.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Moment(NamedTuple):
    """A whole checkpoint of a run."""

    name: str
    data: bytes
    position: dict[str, Any]

    @property
    def reached(self) -> tuple[int, int]:
        """Stage and step: the greater, the further along."""
        return int(self.position["stage"]), int(self.position["step"])


def run_folders(root: Path) -> Iterator[Path]:
    """Every run at or below a folder, finished or not, in a stable order. Hidden folders and links hold none."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, below, files in os.walk(root, onerror=refuse):
        if "recipe.json" in files:
            below.clear()
            yield Path(folder)
        below[:] = sorted(name for name in below if not name.startswith("."))


def is_named_after(folder: str, identity: Any) -> bool:
    """Whether a folder's name ends with the key of what its recipe.json says."""
    return isinstance(identity, dict) and folder.endswith(f"-{key_of_identity(identity)}")


def checkpoints(folder: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in folder.glob("checkpoint-*") if count(path.name)), key=_count_of, reverse=True)


def count(name: str) -> int:
    """The number of a checkpoint by its file's name; 0 if it is none."""
    match = CHECKPOINT.fullmatch(name)
    return int(match[1]) if match else 0


def _count_of(path: Path) -> int:
    return count(path.name)


def newest_moment(folder: Path, *, quiet: bool = False) -> Moment | None:
    """The newest whole checkpoint, also of a run that is going on: it writes new ones and drops old ones meanwhile."""
    damaged: set[Path] = set()
    while left := [path for path in checkpoints(folder) if path not in damaged and path.is_file()]:
        with told(left[0], "read"):
            try:
                data = left[0].read_bytes()
            except FileNotFoundError:
                continue  # dropped since it was listed: there are newer ones
        try:
            return whole_moment(left[0].name, data)
        except ValueError as error:
            if not quiet:
                log.warning("%s is damaged (%s): trying the one before it.", left[0], error)
            damaged.add(left[0])
    return None


def whole_moment(name: str, data: bytes) -> Moment:
    """A checkpoint from its bytes; a ValueError says what is wrong with it."""
    match = CHECKPOINT.fullmatch(name)
    if match is None or hashlib.sha256(data).hexdigest()[:16] != match[2]:
        raise ValueError("its hash differs")
    try:
        moment = Moment(name, data, position_of(data))
        _ = moment.reached, moment.position["key"], moment.position["rows"]
    except UNREADABLE as error:
        raise ValueError(f"it does not say where it stands: {error!r}") from None
    return moment


def as_file(content: Any) -> bytes:
    """JSON as run directories have it."""
    return (json.dumps(content, indent=1) + "\n").encode()
