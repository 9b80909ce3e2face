"""Run directories: what a run is, where it stands, what it found. JSON and safetensors, written atomically."""

import dataclasses
import fcntl
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from metadr import models
from metadr.benchmarks import benchmark_of, check_recipe, get_benchmark, training_of
from metadr.core import ORACLES, Recipe
from metadr.errors import UserError, unknown
from metadr.files import told, write_file
from metadr.parts import PARTS
from metadr.policies import policy_of, settled
from metadr.settings import names

log = logging.getLogger("metadr")

FORMAT = 1  # of the files below; part of the key
# Fields of Training that older runs do not have, with the value that they ran with: so their keys still hold.
LATER_FIELDS = (
    ("precision", "fp32"),
    ("deterministic", True),
    ("weights", None),
    ("epochs", None),
    ("later_epochs", None),
    ("kept_epoch", "last"),
    ("sampling", "uniform"),
    ("stream", False),
    ("mirror", False),
    ("loss", "cross_entropy"),
    ("tested_by", "running"),
    ("recompute", False),
    ("norm_momentum", None),
    ("later_norm", "batch"),
    ("decay", "none"),
)
# How a run computes, which is no part of what it is compared for.
ARITHMETIC = ("precision", "deterministic", "stream", "recompute")
RESUMED = "resumed"  # in a run's environment: what else it went on with, one after another
KEPT_CHECKPOINTS = 2  # the newest, and the one to fall back on if that is damaged
WEIGHTS = ", weights "  # in the fingerprint of what a run begins with: between its data and its weights
NETWORK = "model/"  # before the names of a checkpoint's tensors that are the network's


class Busy(UserError):
    """The run is another process's at the moment."""


def identity(recipe: Recipe, seed: int) -> dict[str, Any]:
    """All that decides a run's result, as JSON: equal identities are the same experiment."""
    return {**description(recipe), "data": content_of(recipe), "seed": seed}


def content_of(recipe: Recipe) -> str:
    """The fingerprint of the files that a run begins with: its data and, where they are from a file, its weights."""
    training = training_of(recipe)
    weights = models.content_of(training.model, training.weights)
    return f"{data_of(recipe)}{WEIGHTS}{weights}" if weights else data_of(recipe)


def data_of(recipe: Recipe) -> str:
    """The fingerprint of its data alone."""
    return benchmark_of(recipe).fingerprint_of(recipe.domains)


def apart(content: str) -> tuple[str, str]:
    """The fingerprints of data and of weights, which are none where they are from no file."""
    data, _, weights = content.partition(WEIGHTS)
    return data, weights


def description(recipe: Recipe) -> dict[str, Any]:
    """What of it is known without the data, for all seeds."""
    told, usual = benchmark_of(recipe).reading, get_benchmark(recipe.benchmark).settings
    reading = {name: value for name, value in recipe.data if name in told and value != getattr(usual, name)}
    training = dataclasses.asdict(training_of(recipe))
    training["weights"] = models.kind_of(training["weights"])
    training["stream"] = bool(training["stream"])  # where images lie changes no bit; where rows are drawn does
    training["batch_norm"] = policy_of(training["batch_norm"], map(type, recipe.method))
    return {
        "format": FORMAT,
        "benchmark": recipe.benchmark,
        "order": list(recipe.order),
        **({"tested": list(recipe.tested)} if recipe.tested else {}),  # older runs do not have it
        **({"reading": reading} if reading else {}),
        "method": [part.content() for part in recipe.method],
        "memory_per_domain": recipe.memory_per_domain,
        "memory_choice": recipe.memory_choice,
        "access": recipe.access,
        "training": {name: value for name, value in training.items() if (name, value) not in LATER_FIELDS},
    }


def whole_training(content: Mapping[str, Any]) -> dict[str, Any]:
    """How the run of an identity was trained, with the fields that it is too old to have."""
    training = {**dict(LATER_FIELDS), **content["training"]}
    training["batch_norm"] = policy_of(training["batch_norm"], (PARTS.get(part["part"]) for part in content["method"]))
    return training


def key_of(recipe: Recipe, seed: int) -> str:
    return key_of_identity(identity(recipe, seed))


def key_of_identity(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def method_name_of(content: Mapping[str, Any]) -> str:
    """`Recipe.method_name` of the run of an identity, whose parts need not be known here."""
    oracle = [name for name, access in ORACLES.items() if access == content["access"]]
    return "+".join([*oracle, *(part["part"] for part in content["method"])]) or "naive"


def recipe_from_identity(content: Mapping[str, Any], **data: Any) -> Recipe:
    """The recipe that a run's identity is of: what `recipe.json` holds, as a value again.

    Where a benchmark's data lie is not among it: give what differs from the usual. The identity of what is returned is
    the run's own, unless data, a default or a revision have changed.
    """
    benchmark = get_benchmark(content["benchmark"])
    method = []
    for part in content["method"]:
        if part["part"] not in PARTS:
            raise unknown("part", part["part"], PARTS, hint="Import the module that registers it.")
        kind = PARTS[part["part"]]
        method.append(kind(**{**kind.later, **{name: part[name] for name in names(kind) if name in part}}))
    training = whole_training(content)
    usual = dataclasses.asdict(settled(benchmark.training, method))
    if training["batch_norm"] == policy_of(usual["batch_norm"], map(type, method)):
        training["batch_norm"] = usual["batch_norm"]
    return check_recipe(
        Recipe(
            benchmark.name,
            tuple(content["order"]),
            tuple(method),
            memory_per_domain=content["memory_per_domain"],
            memory_choice=content["memory_choice"],
            access=content["access"],
            tested=tuple(content.get("tested", ())),
            overrides=tuple(item for item in training.items() if item not in usual.items()),
            data=tuple({**content.get("reading", {}), **data}.items()),
        )
    )


class Checkpoint(NamedTuple):
    """A moment of a run: where it stands (JSON) and every tensor it needs to go on."""

    position: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def network(self) -> dict[str, Tensor]:
        """What of it is the network's state."""
        return {name[len(NETWORK) :]: value for name, value in self.tensors.items() if name.startswith(NETWORK)}


class RunDirectory:
    """One run on disk.

    recipe.json        what is run: the identity that the key is the hash of
    environment.json   what it runs on
    rows.json          the scores so far, one row per (after domain, on domain)
    checkpoint-*       the newest two moments, of a finished run its end; the name carries the hash of the content
    done.json          written last: without it the run is not finished
    """

    _writing: "Future[None] | None" = None  # the last checkpoint, until somebody has seen that it was written

    def __init__(self, out: str | Path, recipe: Recipe, seed: int) -> None:
        self.key = key_of(recipe, seed)
        self.identity = identity(recipe, seed)
        self.path = Path(out) / recipe.benchmark / f"{recipe.method_name}-seed{seed}-{self.key}"

    @classmethod
    def at(cls, path: Path, content: dict[str, Any]) -> "RunDirectory":
        """The run of a folder by its identity: its benchmark need not be known here."""
        made = cls.__new__(cls)
        made.key, made.identity, made.path = key_of_identity(content), content, path
        return made

    @property
    def finished(self) -> bool:
        return (self.path / "done.json").exists()

    @property
    def held(self) -> bool:
        """Whether some process has claimed it and lives."""
        try:
            with (self.path / "lock").open() as handle:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # nobody ever claimed it, or its folder cannot be read: who claims it will be told
            return False
        return False

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the run for this process; the system lets go of it when the process dies, however it dies."""
        with told(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = (self.path / "lock").open("a+")
        with handle:
            with told(self.path / "lock", "lock", then="Choose a folder --out on a disk that locks files."):
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    handle.seek(0)
                    holder = handle.read().strip() or "unknown"
                    raise Busy(
                        f"Run {self.path} is being run by process {holder}. Wait for it, or stop it and run again."
                    ) from None
            with told(self.path):
                handle.truncate(0)
                handle.write(str(os.getpid()))
                handle.flush()
                for leftover in self.path.glob("*.part"):
                    leftover.unlink()
                self._check_identity()
            try:
                yield
            finally:
                self.settle()

    def write(self, name: str, content: Any) -> None:
        write_file(self.path / name, (json.dumps(content, indent=1) + "\n").encode())

    def read(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text())
        except (OSError, ValueError) as error:
            raise UserError(
                f"Cannot read {self.path / name} ({error}). Restore it, or remove its folder to run this afresh."
            ) from None

    def goes_on_with(self, environment: dict[str, Any]) -> bool:
        """Write down what a run goes on with, where that is not what it had when it stopped; whether it never was."""
        try:
            made = self.read("environment.json")
        except UserError:  # a report will say so
            return False
        before = made.get(RESUMED, [])
        last = without_index([made, *before][-1])
        other = any(last.get(name) != value for name, value in without_index(environment).items())
        if other:
            self.write("environment.json", {**made, RESUMED: [*before, environment]})
        return not before and not other

    def save(self, checkpoint: Checkpoint, written: Callable[[Path], None] | None = None) -> None:
        """Take a checkpoint, to be written while the run goes on; what may come of that is raised by the next call.

        `written` is told of the file once it is there.
        """
        self.settle()
        position = json.dumps({"key": self.key, **checkpoint.position})
        # A copy in any case: training writes into the tensors again before they are written.
        tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in checkpoint.tensors.items()}
        self._writing = _writer(os.getpid()).submit(self._write_checkpoint, tensors, position, written)

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is still on its way to the disk."""
        return self._writing is not None and not self._writing.done()

    def settle(self) -> None:
        """Wait until the checkpoint that was saved last is on disk."""
        writing = self._writing
        if writing is not None:
            try:
                writing.result()
            finally:
                if writing.done():  # else somebody interrupted, and the run must not be let go of yet
                    self._writing = None

    def _write_checkpoint(
        self, tensors: dict[str, Tensor], position: str, written: Callable[[Path], None] | None
    ) -> None:
        """Write it, then drop those that are older than the one before it."""
        data = save_tensors(tensors, metadata={"position": position})
        count = 1 + max((_count(path) for path in self.checkpoints()), default=0)
        path = self.path / f"checkpoint-{count:06d}-{_digest(data)}.safetensors"
        write_file(path, data)
        if written is not None:
            written(path)
        for old in self.checkpoints()[KEPT_CHECKPOINTS:]:
            old.unlink()

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or none."""
        self.settle()
        paths, damaged = self.checkpoints(), []
        for path in paths:
            with told(path, "read"):
                checkpoint = read_checkpoint(path)
            if checkpoint is None:
                log.warning("%s is damaged (its hash differs): trying the one before it.", path)
                damaged.append(path)
                continue
            if (key := checkpoint.position["key"]) != self.key:
                raise UserError(
                    f"{path} belongs to another recipe (key {key}, this run has {self.key}). "
                    "Move it back to its own run, or remove it to start this one afresh."
                )
            for wrong in damaged:  # so that the next save keeps this one, and not them, to fall back on
                wrong.unlink()
            return checkpoint
        if paths:
            log.warning("No checkpoint in %s is whole: starting afresh.", self.path)
        return None

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted(self.path.glob("checkpoint-*.safetensors"), key=_count, reverse=True)

    def keep_newest(self) -> None:
        """Drop the checkpoints that only a run that goes on would fall back on."""
        for old in self.checkpoints()[1:]:
            old.unlink(missing_ok=True)

    def _check_identity(self) -> None:
        if not (self.path / "recipe.json").exists():
            self.write("recipe.json", self.identity)
        elif self.read("recipe.json") != self.identity:
            raise UserError(
                f"{self.path / 'recipe.json'} describes another run than its folder's key {self.key}. "
                "Remove the folder to run it afresh, or choose another --out."
            )


def without_index(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment whatever the number of its GPU: one of several of a kind is like the others."""
    return {**environment, "device": str(environment.get("device")).partition(":")[0]}


@functools.cache
def _writer(process: int) -> ThreadPoolExecutor:
    """Checkpoints are written beside the training: else all lanes would stand still for a quarter second each time.

    A process that was forked has its own: threads stay with their parent.
    """
    return ThreadPoolExecutor(1, thread_name_prefix="metadr-checkpoints")


def read_checkpoint(path: Path) -> Checkpoint | None:
    """What a file holds whose name ends with the hash of its content; none if that is not so."""
    data = path.read_bytes()
    return Checkpoint(position_of(data), load_tensors(data)) if _digest(data) == path.stem.split("-")[-1] else None


def read_position(path: Path) -> dict[str, Any]:
    """Where a checkpoint stands, without its tensors."""
    with told(path, "read"), path.open("rb") as file:
        start = file.read(8)
        length = int.from_bytes(start, "little")  # of a damaged file any number
        return position_of(start + file.read(min(length, path.stat().st_size)))


def position_of(data: bytes) -> dict[str, Any]:
    """Where a checkpoint stands, from the header of its bytes."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    position: dict[str, Any] = json.loads(header["__metadata__"]["position"])
    return position


def _count(path: Path) -> int:
    return int(path.stem.split("-")[1])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def finished_runs(folder: str | Path) -> list[Path]:
    """Every finished run at or below a folder, in a stable order; what is being unpacked, in a hidden one, is none."""
    root = Path(folder)
    if not root.exists():
        raise UserError(f"No folder {root}. Give a folder of runs, such as the --out of 'metadr run'.")
    folders = (path.parent for path in root.rglob("done.json") if (path.parent / "rows.json").exists())
    return sorted(path for path in folders if not any(part[0] == "." for part in path.relative_to(root).parts))
