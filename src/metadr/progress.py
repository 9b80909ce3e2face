"""How far a longer piece of work is, for whoever watches: the layers below know no display."""

import time
from collections.abc import Callable
from typing import NamedTuple


class Work(NamedTuple):
    """Where a piece of work stands: what it is, and how much of it is done."""

    what: str
    done: int
    total: int  # 0 where nobody knows before the end


Watch = Callable[[Work], None]
SHOW_EVERY = 0.1  # seconds between two calls of `watch`


class Meter:
    """Counts a piece of work and tells `watch` some ten times a second, and at its end."""

    def __init__(self, what: str, total: int, watch: Watch | None) -> None:
        self._what, self._total, self._watch = what, total, watch
        self._done, self._told_at = 0, 0.0

    def add(self, amount: int = 1) -> None:
        self._done += amount
        now = time.monotonic()
        if self._watch and (0 < self._total <= self._done or now - self._told_at >= SHOW_EVERY):
            self._watch(Work(self._what, self._done, self._total))
            self._told_at = now
