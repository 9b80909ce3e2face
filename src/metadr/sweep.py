"""Sweeps: recipes times seeds, less the runs that are finished."""

import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from metadr.benchmarks import check_recipe
from metadr.core import Recipe
from metadr.errors import UserError
from metadr.run import Progress, pick_device, run
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


class Watcher(Protocol):
    """Whoever follows a sweep."""

    def begin(self, title: str) -> None: ...

    def show(self, now: Progress) -> None: ...

    def note(self, text: str) -> None: ...


def sweep(
    jobs: Sequence[Job], *, out: str | Path = "runs", device: str = "auto", watcher: Watcher | None = None
) -> Outcome:
    """Run the jobs one after another. A failed run keeps its traceback in failed.json; the others go on."""
    pick_device(device)  # a wrong one is refused once, not once a run
    outcome = Outcome([], [])
    for number, job in enumerate(jobs, start=1):
        directory = RunDirectory(out, job.recipe, job.seed)
        if watcher:
            watcher.begin(f"[{number}/{len(jobs)}] {job.title}")
        started = time.monotonic()
        try:
            run(job.recipe, job.seed, out=out, device=device, watch=watcher.show if watcher else None)
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            outcome.failed.append((job, reason))
            with suppress(UserError), directory.claimed():  # unless another process has it, or the disk is full
                directory.write("failed.json", {"reason": reason, "traceback": traceback.format_exc()})
        else:
            outcome.done.append(job)
        if watcher:
            what = "failed" if outcome.failed and outcome.failed[-1][0] == job else "done"
            watcher.note(f"{job.title}: {what} in {time.monotonic() - started:.0f} s")
    return outcome
