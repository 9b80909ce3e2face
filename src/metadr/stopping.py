"""Stopping in good order: on Ctrl-C, when the system asks for it, or when the time is up."""

import math
import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any


class Stopped(Exception):
    """Ctrl-C, under a name that typer does not act on, with what the same command will do."""

    def __init__(self, then: str = "The same command goes on from the last checkpoint.") -> None:
        super().__init__(then)


class Stop:
    """Says whether to stop. The first signal asks what is running to stop at a checkpoint; a second one interrupts it.

    `with Stop(minutes=9) as stop: sweep(jobs, stop=stop)`
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, minutes: float | None = None) -> None:
        self._deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
        self._before: dict[int, Any] = {}
        self.interrupted = False

    def __call__(self) -> bool:
        return self.interrupted or self.out_of_time

    @property
    def out_of_time(self) -> bool:
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        return self._deadline - time.monotonic()

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():  # signals belong to it alone
            self._before = {each: signal.signal(each, self._ask) for each in self.SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)  # none: it was not set from Python

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        if os.isatty(2):  # at once and past every buffer: a checkpoint may be some time away
            os.write(2, b"\nStopping at the next checkpoint. A second Ctrl-C interrupts at once.\n")
