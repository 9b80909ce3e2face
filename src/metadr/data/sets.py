"""What `metadr data` can do with each data set, by name."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from metadr.data import digits, obtain, vkitti2_obtain
from metadr.data.digits import SOURCES, Status, Verified
from metadr.data.fetch import Download
from metadr.data.vkitti2_files import NAME as VKITTI2
from metadr.errors import unknown
from metadr.progress import Watch


class Verify(Protocol):
    def __call__(self, *, watch: Watch | None = None) -> Verified: ...


class Fetch(Protocol):
    def __call__(self, *, watch: Callable[[Download], None] | None = None) -> Status: ...


class Import(Protocol):
    def __call__(self, place: str | Path, /, *, watch: Watch | None = None) -> Status: ...


class DataSet(NamedTuple):
    """A data set's commands; all of them read and write the data root."""

    name: str
    status: Callable[[], Status]
    verify: Verify
    download: Fetch
    bring: Import


NAMES = (*SOURCES, VKITTI2)


def get_data_set(name: str) -> DataSet:
    """The data set of a name; MNIST-M is `mnist_m` or `mnist-m`."""
    known_as = name.replace("-", "_")
    if known_as == VKITTI2:
        each = vkitti2_obtain
        return DataSet(VKITTI2, each.status, each.verify, each.download, each.bring)
    if known_as not in SOURCES:
        raise unknown("data set", name, NAMES)
    return DataSet(
        known_as,
        partial(digits.status, known_as),
        partial(digits.verify, known_as),
        partial(obtain.download, known_as),
        partial(obtain.bring, known_as),
    )
