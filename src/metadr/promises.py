"""What a process is about to leave in a folder, so that others that share it may wait instead of making it too."""

import fcntl
import uuid
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import IO

SUFFIX = ".promises"


class Promises:
    """The keys of what this process will leave, in a file that it holds a lock of, and those of other processes.

    The system lets go of the lock when a process dies, however it dies; what it promised counts no longer. A promise
    that is missed, because two look at the same moment or the disk takes no locks, costs time alone: what could have
    been waited for is made twice.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
        self._file: IO[str] | None = None  # there once something was promised
        self._held: Set[str] = frozenset()
        self._turn = Lock()  # whoever writes checkpoints may find that one cannot be left

    def hold(self, keys: Set[str]) -> None:
        """Promise these, and no others any more."""
        with self._turn, suppress(OSError):
            if keys != self._held:
                self._held = frozenset(keys)
                self._file = self._file or self._begun()
                self._file.seek(0)
                self._file.write("".join(f"{key}\n" for key in sorted(keys)))
                self._file.truncate()  # last: who looks meanwhile sees too many rather than none

    def of_others(self) -> Set[str]:
        """What living processes promise but this one."""
        others = [path for path in self._folder.glob(f"*{SUFFIX}") if path != self._path]
        return frozenset[str]().union(*map(_promised_in, others))

    def close(self) -> None:
        """Promise nothing any more."""
        with self._turn, suppress(OSError):
            self._held = frozenset()
            if self._file:
                self._path.unlink(missing_ok=True)
                self._file.close()
                self._file = None

    def _begun(self) -> IO[str]:
        """The file under its name once it is locked: one that is not would be taken for that of a dead process."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unseen = self._path.with_suffix(".part")
        file = unseen.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unseen.replace(self._path)
        except OSError:
            file.close()
            unseen.unlink(missing_ok=True)
            raise
        return file


def _promised_in(path: Path) -> list[str]:
    """What a living process has written there; what a dead one left is removed."""
    with suppress(OSError), path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others that look are no owners
        except BlockingIOError:
            return file.read().splitlines()
        path.unlink()
    return []
