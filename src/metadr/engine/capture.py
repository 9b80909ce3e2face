"""A step recorded once as a CUDA graph and replayed: one launch instead of thousands."""

import gc
from collections.abc import Callable, Iterable
from contextlib import suppress

import torch

from metadr.errors import NoRoom, UserError

MOST_LEFT = 1 << 33  # bytes that nobody uses, but a later step may: beyond, a recording gives them back


class _Room:
    """What torch has reserved and nobody uses: given back where it is much, or the device has no more than it."""

    held = 0  # by the recordings there were, the last time: it is theirs as long as they are

    def make(self) -> None:
        reserved = torch.cuda.memory_reserved()
        left = reserved - torch.cuda.memory_allocated()
        if left - self.held > MOST_LEFT or torch.cuda.mem_get_info()[0] < reserved:
            torch.cuda.empty_cache()
            self.held = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


_ROOM = _Room()


def found_no_memory(error: BaseException | None) -> bool:
    """Whether an error is of the device's memory: torch's allocator has its own, the driver says it in words."""
    told = isinstance(error, RuntimeError) and "out of memory" in str(error)
    return told or isinstance(error, torch.OutOfMemoryError | NoRoom)


def out_of_memory(error: BaseException) -> str:
    """What to tell a user of such an error."""
    if isinstance(error, NoRoom):
        return str(error)
    said = str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")
    return (
        f"The device is out of memory ({said}). Use a smaller batch_size, --set recompute=true, fewer --lanes, or a "
        "device with more."
    )


class Captured:
    """What a function did on the device, to be done again on the same tensors.

    The function must have run once before: what libraries set up at a first call cannot be recorded. The generators
    advance with each replay as they would with each call.
    """

    def __init__(self, function: Callable[[], object], generators: Iterable[torch.Generator]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        for generator in generators:
            self.graph.register_generator_state(generator)
        gc_was_on = gc.isenabled()
        gc.disable()  # freeing another graph in the middle would end the recording
        try:
            # A recording has memory of its own, and cannot take what the function left behind when it ran before.
            _ROOM.make()
            # Of this thread alone: other lanes go on launching theirs.
            self.graph.capture_begin(capture_error_mode="thread_local")
            self._record(function)
        finally:
            if gc_was_on:
                gc.enable()
        self.graph.capture_end()

    def _record(self, function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:  # Ctrl-C too: a recording that stays open would take in what others do
            with suppress(RuntimeError):  # it says again that the recording failed
                self.graph.capture_end()
            if found_no_memory(error) or not isinstance(error, Exception):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"The step cannot be captured as a CUDA graph ({reason}). A part or layer waits for the device, or "
                "copies from the host: rewrite it, or use --eager."
            ) from error

    def replay(self) -> None:
        self.graph.replay()
