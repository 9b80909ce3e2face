"""Time a training step: ours, alone and in lanes, against plain autograd and `higher` in the same run."""

import dataclasses
import functools
import gc
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.flop_counter import FlopCounterMode

from metadr import models
from metadr.bench.peers import Peer, peers_of
from metadr.bench.timing import in_turn
from metadr.bench.work import SIZES, Work, noise, parts_of, size_of, task_of, training_on
from metadr.core import Domain, Recipe, Training
from metadr.engine.fit import check_fit
from metadr.engine.ground import Ground, pick_device
from metadr.engine.learner import Learner
from metadr.engine.log import LOOK_EVERY
from metadr.engine.network import Network
from metadr.provenance import environment
from metadr.training import Precision

METHODS = ("naive", "dr", "meta-dr")
# Ours with something set otherwise.
VARIANTS: dict[str, dict[str, Any]] = {"recomputed": {"recompute": True}, "not deterministic": {"deterministic": False}}


class Ours:
    """A learner on its own ground, as a run has it."""

    def __init__(self, work: Work, *, seed: int = 0, capture: bool = True) -> None:
        device = work.train.x.device
        self.ground = Ground(work.training, device)
        with self.ground.held():
            self.learner = Learner(
                Recipe("bench", ("images",), work.parts),
                work.training,
                work.task,
                models.build(work.training.model, work.task.num_classes),
                seed=seed,
                device=device,
                capture=capture,
                sizes=[(work.train.x.shape[2], work.train.x.shape[3])],
            )
            self.learner.begin_domain(work.train, first=True)

    def launch(self, num_steps: int) -> Any:
        with self.ground.held():
            return self.learner.steps(num_steps)


class Contender(NamedTuple):
    """Who is timed: what it calls, and how many steps that is."""

    call: Callable[[], None]
    steps: int


def bench_step(
    methods: Sequence[str] = METHODS,
    *,
    benchmark: str | None = None,
    model: str | None = None,
    size: str | None = None,
    batch: int | None = None,
    precisions: Sequence[Precision] = ("fp32",),
    lanes: Sequence[int] = (1,),
    steps: int = 20,
    repeats: int = 5,
    device: str = "auto",
    peers: bool = True,
    variants: Sequence[str] = (),
    images: int | None = None,
    so_far: Callable[[dict[str, Any]], None] = lambda measured: None,
) -> dict[str, Any]:
    """Measure milliseconds a step and run, in turns.

    Args:
        methods: naive, dr or meta-dr.
        benchmark: whose settings, labels or masks; none: ten classes, and the parts' own settings.
        model: a network by name; none: the benchmark's.
        size: side of the images, which are noise, or WIDTHxHEIGHT; none: the benchmark's.
        batch: images in a batch; none: as many as the benchmark's.
        precisions: of fp32, tf32 and bf16.
        lanes: how many runs share the device, on a GPU.
        steps: in one measurement.
        repeats: measurements of each.
        device: where.
        peers: whether to measure the others too.
        variants: of ours, to be measured beside it: recomputed, not deterministic.
        images: how many there are to draw from; none: as many as half a GiB holds.
        so_far: given all that is known whenever there is more: a measurement that is cut short loses the last part.

    Returns:
        The setting and one row for each method, precision and contender: median and quartiles in ms a step and run,
        the ratio to our single lane, the memory that torch reserves, the seconds of the first call (with capture), and
        the share of the arithmetic limit; and who could not take the step, with the reason.
    """
    chosen, task = pick_device(device), task_of(benchmark)
    width, height = size_of(size or SIZES.get(benchmark or "", "32"))
    usual = training_on(benchmark)
    usual = dataclasses.replace(usual, model=model or usual.model, batch_size=batch or usual.batch_size)
    train = noise(task, (width, height), usual.batch_size, images, chosen)
    check_fit(usual, Network(models.build(usual.model, task.num_classes), task), [Domain("noise", train, train)])
    measured: dict[str, Any] = {
        **({"benchmark": benchmark} if benchmark else {}),
        "model": usual.model,
        "size": width if width == height else f"{width}x{height}",
        "batch": usual.batch_size,
        "steps": steps,
        "n": repeats,
        "environment": environment(chosen),
        "rows": [],
        "left_out": [],
    }
    for method in methods:
        for precision in precisions:
            training = dataclasses.replace(usual, precision=precision)
            work = Work(parts_of(benchmark, method), training, task, train)
            told = {"method": method, "precision": precision}
            chunk = min(steps, LOOK_EVERY)
            ours, others = _ours(work, lanes, chunk, variants), _others(work, chunk) if peers else {}
            rows, left_out = _measure(work, ours, others, repeats)
            measured["rows"] += [{**told, **row} for row in rows]
            measured["left_out"] += [{**told, "contender": name, "reason": why} for name, why in left_out.items()]
            so_far(measured)
    return measured


def _measure(
    work: Work, ours: dict[str, Contender], others: dict[str, Contender], repeats: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """A row for each contender, and of the others those that cannot take the step, with the reason."""
    device, contenders = work.train.x.device, ours | others
    operations, limit = _operations(work), _arithmetic_limit(work.training, device)
    first: dict[str, tuple[float | None, float]] = {}
    left_out: dict[str, str] = {}
    for name, each in contenders.items():
        try:
            first[name] = _first_call(each.call, device)
        except Exception as error:
            if name in ours:
                raise
            left_out[name] = (str(error).strip() or type(error).__name__).splitlines()[0]
    calls = {name: contenders[name].call for name in first}
    measured = {
        name: _scaled(values, contenders[name].steps) for name, values in in_turn(calls, repeats, device).items()
    }
    alone = measured[next(iter(measured))]["ms"]
    rows = [
        {
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
    return rows, left_out


def _ours(work: Work, lanes: Sequence[int], steps: int, variants: Sequence[str]) -> dict[str, Contender]:
    contenders = {}
    for count in lanes:
        group = [Ours(work, seed=seed) for seed in range(count)]
        name = "metadr" if count == 1 else f"metadr, {count} lanes"
        contenders[name] = Contender(functools.partial(_take_together, group, steps), count * steps)
    for variant in variants:
        other = Ours(work._replace(training=dataclasses.replace(work.training, **VARIANTS[variant])))
        contenders[f"metadr, {variant}"] = Contender(functools.partial(_take_together, [other], steps), steps)
    return contenders


def _others(work: Work, steps: int) -> dict[str, Contender]:
    contenders = {}
    for name, kind in peers_of(work.parts).items():
        # Torch's own defaults for determinism: it is not what they are compared for.
        ground = Ground(dataclasses.replace(work.training, deterministic=False), work.train.x.device)
        with ground.held():
            module = models.build(work.training.model, work.task.num_classes).to(work.train.x.device)
        contenders[name] = Contender(functools.partial(_take_alone, kind(module, work), ground, steps), steps)
    return contenders


def _take_together(group: list[Ours], steps: int) -> None:
    for taken in [each.launch(steps) for each in group]:
        taken.read()


def _take_alone(peer: Peer, ground: Ground, steps: int) -> None:
    with ground.held():
        peer.steps(steps)


def _scaled(values: dict[str, Any], by: int) -> dict[str, Any]:
    return {"ms": values["ms"] / by, "quartiles_ms": [value / by for value in values["quartiles_ms"]]}


def _operations(work: Work) -> float:
    """Floating-point operations of the convolutions and matrix products of one of our steps."""
    ours = Ours(work, capture=False)
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
    """What a contender's first call adds to the memory that torch reserves, in MiB, and its seconds: capture included.

    Reserved, since a recorded step keeps all it has used from one replay to the next.
    """
    on_gpu, before = device.type == "cuda", 0
    if on_gpu:
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        torch.cuda.reset_peak_memory_stats(device)
    started = time.perf_counter()
    call()
    seconds = time.perf_counter() - started
    return (torch.cuda.max_memory_reserved(device) - before) / 2**20 if on_gpu else None, seconds
