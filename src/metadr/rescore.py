"""Finished runs tested again, by other statistics of batch norm: how much of forgetting is only these?"""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from metadr import models, settings
from metadr.benchmarks import benchmark_of, data_fields, get_benchmark, prepare, training_of, with_settings
from metadr.core import Domain, Recipe
from metadr.domains import Resident, load_domains
from metadr.engine.ground import Ground, pick_device
from metadr.engine.network import Network
from metadr.engine.reestimate import BATCH, norms_of, reestimate
from metadr.errors import UserError
from metadr.evaluate import by_batches, confusion, score
from metadr.progress import Watch
from metadr.provenance import environment
from metadr.run import scores_of
from metadr.store import RunDirectory, finished_runs, recipe_from_identity

Statistics = Literal["own", "each"]
FILE = "rescored.json"
# What a row says of its statistics, where they are not a domain's: as the run ended, or of every tested batch.
OF_THE_RUN, OF_THE_BATCH = "run", "batch"
# By how much a score may be another on another device: points, or images where there are few.
TOLERANCE, TOLERATED_IMAGES = 1.0, 2


class Rescored(NamedTuple):
    """A finished run, tested again."""

    path: Path
    identity: dict[str, Any]
    before: list[list[float]]
    """R[i][j], as the run found it."""
    rows: list[dict[str, Any]]
    """The new scores, by the statistics that were used and the domain of the test; none without batch norm."""

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self.identity["order"])

    def on(self, domain: str, statistics: str) -> float:
        (value,) = (row["value"] for row in self.rows if (row["statistics"], row["on"]) == (statistics, domain))
        return float(value)

    @property
    def kept(self) -> float:
        """The score on the earlier domains at the end, on average."""
        return _mean(self.before[-1][:-1])

    @property
    def forgotten(self) -> float:
        """Points lost since each earlier domain was learnt, on average."""
        return _mean([self.before[j + 1][j] - self.before[-1][j] for j in range(len(self.order) - 1)])

    @property
    def regained(self) -> float:
        """Points that come back on the earlier domains with their own statistics, on average."""
        return _mean([self.on(name, name) - self.before[-1][j] for j, name in enumerate(self.order[:-1])])

    @property
    def control(self) -> float:
        """The same gain on the last domain, of which nothing can have been forgotten."""
        return self.on(self.order[-1], self.order[-1]) - self.before[-1][-1]


def rescore(
    sources: Iterable[str | Path],
    *,
    statistics: Statistics = "own",
    device: str = "auto",
    data: Mapping[str, str] | None = None,
    watch: Watch | None = None,
) -> Iterator[Rescored]:
    """Test every finished run at or below some folders again, and write what was found beside its rows.

    Args:
        sources: run directories, or folders of them.
        statistics: test every domain with its own statistics, or with those of each domain in turn.
        device: auto, cpu, cuda or cuda:N, whatever the run was made on.
        data: settings of the benchmark's data that a run was started with, as text.
        watch: told of decoding.
    """
    chosen = pick_device(device)
    for source in sources:
        paths = finished_runs(source)
        if not paths:
            raise UserError(
                f"No finished run in {source}. Only these can be tested again: finish it with 'metadr run'."
            )
        for path in paths:
            directory, recipe = finished_run(path, data or {})
            prepare(with_settings(recipe, weights=None), watch)  # the run's own are in its checkpoint
            with Ground(training_of(recipe), chosen).held():
                residents = load_domains(recipe, chosen)  # held until the next run has found them
                found = _rescored(directory, recipe, residents, statistics, chosen)
            yield found


def _rescored(
    directory: RunDirectory, recipe: Recipe, residents: list[Resident], statistics: Statistics, device: torch.device
) -> Rescored:
    network = network_of(directory, recipe, residents, device)
    before = scores_of(directory.read("rows.json"), recipe.order)
    found = Rescored(directory.path, directory.identity, before, [])
    if not norms_of(network):
        return found
    domains = [resident.domain for resident in residents[: len(recipe.order)]]  # what was not learned is not forgotten

    def test(by: str, tested: Iterable[Domain]) -> None:
        for domain in tested:
            value = score(network.task, confusion(network, domain.test))
            row = {"statistics": by, "on": domain.name, "metric": network.task.score, "value": value}
            found.rows.append({**row, "images": domain.test.num_images})

    test(OF_THE_RUN, domains)
    _check_reproduced(found)
    for domain in domains:
        with by_batches(network, domain.test.num_images, training_of(recipe).batch_size):
            test(OF_THE_BATCH, [domain])
    for domain in domains:
        reestimate(network, domain.train.x)
        test(domain.name, [domain] if statistics == "own" else domains)
    content = {"statistics": statistics, "batch": BATCH, "environment": environment(device), "rows": found.rows}
    directory.write(FILE, content)
    return found


def finished_run(path: Path, data: Mapping[str, str]) -> tuple[RunDirectory, Recipe]:
    """A finished run and its recipe, from its directory and the settings of its data that are not the usual ones."""
    if not (path / "done.json").exists():
        raise UserError(f"No finished run in {path}. Give the directory of one, or finish it with 'metadr run'.")
    directory = RunDirectory.at(path, _read_identity(path))
    return directory, _recipe_of(directory, data)


def _read_identity(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads((path / "recipe.json").read_text())
        return content
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read {path / 'recipe.json'} ({error}). Restore it, or remove the run.") from None


def _recipe_of(directory: RunDirectory, data: Mapping[str, str]) -> Recipe:
    content = directory.identity
    benchmark = get_benchmark(content["benchmark"])
    known = data_fields(benchmark)
    values = {
        name: settings.parse(type(benchmark.settings), name, text) if name in known else text
        for name, text in data.items()
    }
    return recipe_from_identity(content, **values)


def network_of(directory: RunDirectory, recipe: Recipe, residents: list[Resident], device: torch.device) -> Network:
    """The network as the run left it."""
    if training_of(recipe).tested_by == "batch":
        raise UserError(
            f"Run {directory.path} was tested by the statistics of every tested batch (tested_by=batch): there are no "
            "running ones to re-estimate or to go by. Leave it out."
        )
    checkpoint = directory.load()
    if checkpoint is None:
        raise UserError(
            f"Run {directory.path} has no checkpoint, and so no weights to test. Bring it along with "
            "'metadr results pack --checkpoints', or remove the run and run it again."
        )
    if checkpoint.position["stage"] < len(recipe.order):
        raise UserError(
            f"The last whole checkpoint of run {directory.path} is not of its end. Remove the run and run it again."
        )
    if checkpoint.position["data"] != [resident.fingerprint for resident in residents]:
        raise UserError(
            f"The data here are not those of run {directory.path}. Give the settings it was started with "
            "(--data, --set), or restore them."
        )
    training, task = training_of(recipe), benchmark_of(recipe).task
    with torch.random.fork_rng(devices=[]):  # weights that are overwritten: the caller's stream stays where it is
        module = models.build(training.model, task.num_classes)  # without `weights`: all are overwritten
    network = Network(module.to(device), task, scaling=training.scaling, precision=training.precision)
    network.load(checkpoint.network)
    return network


def _check_reproduced(found: Rescored) -> None:
    """The weights must score what the run says they did; all that follows is compared with that."""
    for then, row in zip(found.before[-1], found.rows, strict=True):
        name, now = row["on"], row["value"]
        if abs(then - now) > max(TOLERANCE, 100 * TOLERATED_IMAGES / row["images"]):
            raise UserError(
                f"The checkpoint of run {found.path} scores {now:.1f} on '{name}', where the run found {then:.1f}. "
                "Its files do not belong together: remove the run and run it again."
            )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
