"""Time a training step: ours, alone and in lanes, against plain autograd and `higher` in the same run."""

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from metadr import models
from metadr.bench.peers import Peer, peers_of
from metadr.bench.timing import in_turn
from metadr.core import Recipe, Split, Task, Training
from metadr.engine.ground import Ground
from metadr.engine.learner import Learner
from metadr.engine.log import LOOK_EVERY
from metadr.parts import parse_method
from metadr.provenance import environment
from metadr.run import pick_device
from metadr.training import Precision

METHODS = ("naive", "dr", "meta-dr")
NUM_CLASSES = 10


class Ours:
    """A learner on its own ground, as a run has it."""

    def __init__(self, method: str, training: Training, train: Split, *, seed: int = 0, capture: bool = True) -> None:
        device = train.x.device
        self.ground = Ground(training, device)
        recipe = Recipe("bench", ("images",), parse_method(method, {}))
        with self.ground.held():
            module = models.build(training.model, NUM_CLASSES)
            self.learner = Learner(
                recipe,
                training,
                Task(NUM_CLASSES),
                module,
                seed=seed,
                device=device,
                capture=capture,
                sizes=[(train.x.shape[2], train.x.shape[3])],
            )
            self.learner.begin_domain(train, first=True)

    def launch(self, num_steps: int) -> Any:
        with self.ground.held():
            return self.learner.steps(num_steps)


def noise(images: int, size: int, device: torch.device) -> Split:
    """Images of noise, with labels drawn for them."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(256, (images, 3, size, size), generator=rng, dtype=torch.uint8)
    return Split(x, torch.randint(NUM_CLASSES, (images,), generator=rng)).to(device)


def bench_step(
    methods: Sequence[str] = METHODS,
    *,
    model: str = "resnet18",
    size: int = 32,
    batch: int = 64,
    precisions: Sequence[Precision] = ("fp32",),
    lanes: Sequence[int] = (1,),
    deterministic: bool = True,
    steps: int = 20,
    repeats: int = 5,
    device: str = "auto",
    peers: bool = True,
    images: int = 2000,
    so_far: Callable[[dict[str, Any]], None] = lambda measured: None,
) -> dict[str, Any]:
    """Measure milliseconds a step and run, in turns.

    Args:
        methods: naive, dr or meta-dr with the paper's settings.
        model: a network by name.
        size: side of the images, which are noise.
        batch: images in a batch.
        precisions: of fp32, tf32 and bf16.
        lanes: how many runs share the device, on a GPU.
        deterministic: ours alone; torch's defaults have no such promise.
        steps: in one measurement.
        repeats: measurements of each.
        device: where.
        peers: whether to measure the others too.
        images: how many there are to draw from.
        so_far: given all that is known whenever there is more: a measurement that is cut short loses the last part.

    Returns:
        The setting and one row for each method, precision and contender: median and quartiles in ms a step and run,
        the ratio to our single lane, the peak of memory, the seconds of the first call (with capture), and the share
        of the arithmetic limit.
    """
    chosen = pick_device(device)
    train = noise(images, size, chosen)
    setting = {"model": model, "size": size, "batch": batch, "steps": steps, "n": repeats}
    rows: list[dict[str, Any]] = []
    measured = {**setting, "deterministic": deterministic, "environment": environment(chosen), "rows": rows}
    for method in methods:
        for precision in precisions:
            training = Training(model=model, batch_size=batch, precision=precision, deterministic=deterministic)
            rows += _measure(method, training, train, lanes, min(steps, LOOK_EVERY), repeats, peers)
            so_far(measured)
    return measured


def _measure(
    method: str,
    training: Training,
    train: Split,
    lanes: Sequence[int],
    steps: int,
    repeats: int,
    peers: bool,
) -> list[dict[str, Any]]:
    device = train.x.device
    operations, limit = _operations(method, training, train), _arithmetic_limit(training, device)
    contenders: dict[str, Callable[[], None]] = {}
    for count in lanes:
        name = "metadr" if count == 1 else f"metadr, {count} lanes"
        group = [Ours(method, training, train, seed=seed) for seed in range(count)]
        contenders[name] = functools.partial(_take_together, group, steps)
    for name, kind in peers_of(method).items() if peers else ():
        # Torch's own defaults for determinism: it is not what they are compared for.
        ground = Ground(dataclasses.replace(training, deterministic=False), device)
        with ground.held():
            module = models.build(training.model, NUM_CLASSES).to(device)
        peer = kind(module, train, method=method, batch_size=training.batch_size, precision=training.precision)
        contenders[name] = functools.partial(_take_alone, peer, ground, steps)
    first = {name: _first_call(call, device) for name, call in contenders.items()}
    sizes = {name: steps * (lanes[index] if index < len(lanes) else 1) for index, name in enumerate(contenders)}
    measured = {name: _scaled(values, sizes[name]) for name, values in in_turn(contenders, repeats, device).items()}
    alone = measured[next(iter(measured))]["ms"]
    return [
        {
            "method": method,
            "precision": training.precision,
            "contender": name,
            **values,
            "ratio": values["ms"] / alone,
            "memory_mib": first[name][0],
            "first_seconds": first[name][1],
            "gflop": operations / 1e9,
            "share_of_limit": operations / (values["ms"] * 1e-3) / limit,
        }
        for name, values in measured.items()
    ]


def _take_together(group: list[Ours], steps: int) -> None:
    for taken in [each.launch(steps) for each in group]:
        taken.read()


def _take_alone(peer: Peer, ground: Ground, steps: int) -> None:
    with ground.held():
        peer.steps(steps)


def _scaled(values: dict[str, Any], by: int) -> dict[str, Any]:
    return {"ms": values["ms"] / by, "quartiles_ms": [value / by for value in values["quartiles_ms"]]}


def _operations(method: str, training: Training, train: Split) -> float:
    """Floating-point operations of the convolutions and matrix products of one of our steps."""
    ours = Ours(method, training, train, capture=False)
    with FlopCounterMode(display=False) as counter, ours.ground.held():
        ours.learner.step()
    return float(counter.get_total_flops())


def _arithmetic_limit(training: Training, device: torch.device) -> float:
    """Operations a second of a large matrix product in the same precision, measured here."""
    side = 8192 if device.type == "cuda" else 512
    dtype = torch.bfloat16 if training.precision == "bf16" else torch.float32
    with Ground(training, device).held():
        a = torch.randn(side, side, device=device, dtype=dtype)
        milliseconds: float = in_turn({"product": lambda: a @ a}, 5, device)["product"]["ms"]
    return 2 * side**3 / (milliseconds * 1e-3)


def _first_call(call: Callable[[], None], device: torch.device) -> tuple[float | None, float]:
    """What a contender's first call adds to the memory that torch holds, in MiB, and its seconds: capture included."""
    on_gpu, before = device.type == "cuda", 0
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    call()
    seconds = time.perf_counter() - started
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20 if on_gpu else None, seconds
