"""The time of a run among others."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Seconds that pass while a run has its turns: of runs side by side, these add up to the time of all."""

    def __init__(self) -> None:
        self._past, self._began = 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Asked for in a turn."""
        return self._past + time.monotonic() - self._began

    @contextmanager
    def running(self) -> Iterator[None]:
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._past = self.seconds
