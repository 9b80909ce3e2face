"""How a copy of a data set stands: what there is of it, and what a look at every byte found."""

from pathlib import Path
from typing import Literal, NamedTuple

from metadr.data.source import Counts

State = Literal["present", "partial", "missing", "broken"]


class Status(NamedTuple):
    """How a copy of a data set stands, from what lies on disk and without decoding it."""

    name: str
    state: State
    folder: Path
    found: Counts | None
    expected: Counts
    problems: tuple[str, ...] = ()
    origin: str = ""
    """What a stand-in for the published files says of itself."""


class FileCheck(NamedTuple):
    """A file against its published checksum."""

    name: str
    verdict: Literal["as published", "differs", "no checksum published"]


class Verified(NamedTuple):
    """What a look at every byte of a data set found."""

    status: Status
    files: tuple[FileCheck, ...] = ()
    content: str | None = None
    """SHA-256 of the decoded pixels and labels."""

    @property
    def sound(self) -> bool:
        return self.status.state in ("present", "partial")
