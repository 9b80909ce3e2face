"""What a run computes on: device, stream, precision and determinism, held for one leg of the run at a time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from metadr.core import Training
from metadr.errors import UserError


def prepare_process() -> None:
    """Set what CUDA reads from the environment when it starts, unless the user has."""
    # Torch refuses deterministic matrix products without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Queues to the GPU: with the usual 8, 16 lanes wait for each other.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")


def pick_device(name: str) -> torch.device:
    """The device of a name; 'auto' takes a GPU where there is one."""
    prepare_process()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise UserError(f"No device '{name}'. Allowed: auto, cpu, cuda, cuda:0 and so on.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        gpus = {0: "no usable GPU", 1: "one usable GPU"}.get(count := torch.cuda.device_count(), f"{count} usable GPUs")
        raise UserError(f"Device '{name}' was asked for, but this machine has {gpus}. Use --device auto.")
    return device


def check_precision(training: Training, device: torch.device) -> None:
    if training.precision == "tf32" and device.type != "cuda":
        raise UserError(f"Precision 'tf32' needs a GPU, and this run is on {device.type}. Use fp32, bf16 or a GPU.")


class Ground:
    """Torch's global switches as one run needs them, and on a GPU a stream of the run's own.

    `with ground.held(): learner.steps(100)`

    The switches are the process's, not the run's: they are put back before anyone else runs, another lane or the
    caller of a paused run.
    """

    def __init__(self, training: Training, device: torch.device) -> None:
        check_precision(training, device)
        self.training = training
        self.stream = _stream(device)

    @contextmanager
    def held(self) -> Iterator[None]:
        if self.stream is None:
            yield
            return
        precision = "tf32" if self.training.precision == "tf32" else "ieee"
        switches = (
            (torch.backends.cuda.matmul, "fp32_precision", precision),
            (torch.backends.cudnn.conv, "fp32_precision", precision),  # type: ignore[attr-defined]
            (torch.backends.cudnn, "deterministic", self.training.deterministic),
            (torch.backends.cudnn, "benchmark", False),
            (torch.utils.deterministic, "fill_uninitialized_memory", False),
        )
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in switches]
        strict = torch.are_deterministic_algorithms_enabled()
        lenient = torch.is_deterministic_algorithms_warn_only_enabled()
        try:
            _set(switches)
            torch.use_deterministic_algorithms(self.training.deterministic)
            free = not self.training.deterministic
            # Torch adds up gradients in the order in which operations were recorded, and counts those per thread: on
            # threads of its own, that order would depend on all that ran before in this process.
            with torch.cuda.stream(self.stream), torch.autograd.set_multithreading_enabled(free):
                yield
        except RuntimeError as error:
            refused = _refusal(error)
            if refused is None:
                raise
            raise refused from error
        finally:
            torch.use_deterministic_algorithms(strict, warn_only=lenient)
            _set(before)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Products and convolutions on a GPU in float32, within a run of any precision."""
    if device.type != "cuda":
        yield
        return
    switches = (torch.backends.cuda.matmul, torch.backends.cudnn.conv)  # type: ignore[attr-defined]
    before = [(owner, "fp32_precision", owner.fp32_precision) for owner in switches]
    try:
        _set([(owner, "fp32_precision", "ieee") for owner in switches])
        yield
    finally:
        _set(before)


def _refusal(error: RuntimeError) -> UserError | None:
    """Torch's refusal of an operation that may give other bits each time, as a sentence with a way out."""
    if "CUBLAS_WORKSPACE_CONFIG" in str(error):
        return UserError(
            "Matrices were multiplied on the GPU before metadr could make that give the same bits each time. "
            "Set CUBLAS_WORKSPACE_CONFIG=:4096:8 before Python starts, or use --set deterministic=false."
        )
    name, refused, _ = str(error).partition(" does not have a deterministic implementation")
    if not refused:
        return None
    return UserError(
        f"The network or a part uses {name}, which gives other bits each time on a GPU. "
        "Use --set deterministic=false, or another layer."
    )


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def _set(switches: "tuple[tuple[Any, str, Any], ...] | list[tuple[Any, str, Any]]") -> None:
    for owner, name, value in switches:
        setattr(owner, name, value)
