"""Sweeps: recipes times seeds, less the runs that are finished."""

import json
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from metadr.benchmarks import check_recipe
from metadr.core import Recipe
from metadr.errors import UserError
from metadr.run import Progress, run
from metadr.store import RunDirectory


class Job(NamedTuple):
    """One run of a sweep."""

    recipe: Recipe
    seed: int

    @property
    def title(self) -> str:
        return f"{self.recipe.benchmark} {self.recipe.method_name} seed {self.seed}"


class Plan(NamedTuple):
    """What a sweep has to do."""

    missing: list[Job]
    finished: list[Job]


class Outcome(NamedTuple):
    """What became of a sweep: each failed job with its one-sentence reason."""

    done: list[Job]
    failed: list[tuple[Job, str]]


def plan(recipes: Sequence[Recipe], seeds: Sequence[int], out: str | Path) -> Plan:
    """Check every recipe, then tell the runs that are missing from those that are there."""
    problems = []
    for recipe in recipes:
        try:
            check_recipe(recipe)
        except UserError as error:
            problems.append(f"{recipe.method_name}: {error}")
    if problems:
        raise UserError("Nothing was started. " + " ".join(problems))
    jobs = [Job(recipe, seed) for seed in seeds for recipe in recipes]
    finished = [job for job in jobs if RunDirectory(out, job.recipe, job.seed).finished]
    return Plan([job for job in jobs if job not in finished], finished)


def sweep(
    jobs: Sequence[Job],
    *,
    out: str | Path = "runs",
    device: str = "auto",
    watch: Callable[[Job, Progress], None] | None = None,
) -> Outcome:
    """Run the jobs one after another. A failed run keeps its traceback in failed.json; the others go on."""
    outcome = Outcome([], [])
    for job in jobs:
        path = RunDirectory(out, job.recipe, job.seed).path
        try:
            run(job.recipe, job.seed, out=out, device=device, watch=_for(job, watch))
        except Exception as error:
            outcome.failed.append(
                (job, f"{error}" if isinstance(error, UserError) else f"{type(error).__name__}: {error}")
            )
            if path.exists():
                (path / "failed.json").write_text(json.dumps({"traceback": traceback.format_exc()}, indent=1))
        else:
            outcome.done.append(job)
            (path / "failed.json").unlink(missing_ok=True)
    return outcome


def _for(job: Job, watch: Callable[[Job, Progress], None] | None) -> Callable[[Progress], None] | None:
    return None if watch is None else lambda progress: watch(job, progress)
