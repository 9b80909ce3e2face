"""Published data sets by name, whatever they hold: what the commands for data ask of each."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from metadr.data import digits
from metadr.data.digits import PAPER
from metadr.data.pacs import PACS
from metadr.data.remote import RemoteFile
from metadr.data.source import Files, Source, decode, locate
from metadr.data.standing import Status, Verified
from metadr.data.syn import RENDERED
from metadr.data.vkitti2_set import VKITTI2, VKITTI2_RENDERED
from metadr.errors import unknown
from metadr.progress import Watch


class DataSet(Protocol):
    """A data set that can be fetched, imported and verified."""

    @property
    def name(self) -> str: ...
    @property
    def homepage(self) -> str: ...
    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """What it is published as: files that it takes as they come, or archives; nothing if it is only made here."""
        ...

    @property
    def build(self) -> str:
        """A command that makes a substitute, if there is one."""
        ...

    @property
    def holds(self) -> str:
        """What a folder with a copy of it holds, in words."""
        ...

    @property
    def readable(self) -> Collection[str]:
        """The names of files that it takes as they come."""
        ...

    @property
    def adds(self) -> bool:
        """Whether an import is added to what is there, part by part; else it takes the place of all of it."""
        ...

    def locate(self, folder: Path) -> Files:
        """Its files and folders at or below a folder, or one sentence on what is missing."""
        ...

    def lands(self, role: str, found: Path) -> str:
        """Where in its own folder what was found as `role` is put."""
        ...

    def check(self, files: Files, root: Path, watch: Watch | None = None) -> None:
        """Refuse files that cannot be read."""
        ...

    def taken(self, files: Files, place: Path) -> Files:
        """Those of new files that an import takes where a copy is in place, or one sentence on what would be lost."""
        ...

    def keep(self, place: Path, copy: Path, files: Files) -> bool:
        """Add to a new copy, of these files, what was in place; whether there was anything to add."""
        ...

    def status(self, root: Path) -> Status:
        """How the copy below a data root stands, without decoding it."""
        ...

    def verify(self, root: Path, watch: Watch | None = None) -> Verified:
        """How it stands after a look at every byte."""
        ...


@dataclass(frozen=True)
class DigitSet:
    """One of the four sets of digits, or another rendering of one."""

    source: Source
    adds: ClassVar[bool] = False  # images and labels belong together

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def homepage(self) -> str:
        return self.source.homepage

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        return self.source.files

    @property
    def build(self) -> str:
        return self.source.build

    @property
    def holds(self) -> str:
        return self.source.needs[0].names[0]

    @property
    def readable(self) -> Collection[str]:
        return {known for need in self.source.needs for known in need.names}

    def locate(self, folder: Path) -> Files:
        return locate(self.source, folder)

    def lands(self, role: str, found: Path) -> str:
        return found.name

    def check(self, files: Files, root: Path, watch: Watch | None = None) -> None:
        decode(self.source, files, PAPER, watch)

    def taken(self, files: Files, place: Path) -> Files:
        return files

    def keep(self, place: Path, copy: Path, files: Files) -> bool:
        return False

    def status(self, root: Path) -> Status:
        return digits.status(self.source, PAPER, root=root)

    def verify(self, root: Path, watch: Watch | None = None) -> Verified:
        return digits.verify(self.source, PAPER, root=root, watch=watch)


def data_sets() -> dict[str, DataSet]:
    """All of them, by name."""
    others: tuple[DataSet, ...] = (PACS, VKITTI2, VKITTI2_RENDERED)
    return {
        **{name: DigitSet(source) for name, source in {**digits.SOURCES, **RENDERED}.items()},
        **{each.name: each for each in others},
    }


def get_set(name: str) -> DataSet:
    """The data set of a name; MNIST-M is `mnist_m` or `mnist-m`."""
    found = data_sets().get(name) or data_sets().get(name.replace("-", "_"))
    if found is None:
        raise unknown("data set", name, data_sets())
    return found
