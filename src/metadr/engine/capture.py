"""A step recorded once as a CUDA graph and replayed: one launch instead of thousands."""

import gc
from collections.abc import Callable, Iterable
from contextlib import suppress

import torch

from metadr.errors import UserError

MOST_LEFT = 1 << 33  # bytes that nobody uses, but a later step may: beyond, a recording gives them back


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
            _make_room()
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
        except Exception as error:
            with suppress(RuntimeError):  # it says again that the recording failed
                self.graph.capture_end()
            if isinstance(error, torch.OutOfMemoryError):
                raise
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"The step cannot be captured as a CUDA graph ({reason}). A part or layer waits for the device, or "
                "copies from the host: rewrite it, or use --eager."
            ) from error

    def replay(self) -> None:
        self.graph.replay()


def _make_room() -> None:
    """Give back what torch has reserved and nobody uses, where it is much or the device has no more than that left."""
    reserved = torch.cuda.memory_reserved()
    if reserved - torch.cuda.memory_allocated() > MOST_LEFT or torch.cuda.mem_get_info()[0] < reserved:
        torch.cuda.empty_cache()
