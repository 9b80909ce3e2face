"""One run: a model meets the domains of a recipe one after another and is tested on all of them in between."""

from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from metadr.beginnings import Beginnings
from metadr.benchmarks import check_recipe, training_of
from metadr.clock import Clock
from metadr.core import Recipe
from metadr.engine.ground import Ground, pick_device
from metadr.errors import UserError
from metadr.evaluate import Summary, summarise
from metadr.sequence import UNTRAINED, DomainSequence, Pauses, Progress
from metadr.store import RunDirectory


class Result(NamedTuple):
    """A finished run."""

    path: Path
    recipe: Recipe
    seed: int
    rows: list[dict[str, Any]]

    @property
    def scores(self) -> list[list[float]]:
        """R[i][j]: the score on domain j after i domains."""
        return scores_of(self.rows, self.recipe.order)

    @property
    def summary(self) -> Summary:
        return summarise(self.scores)


def scores_of(rows: list[dict[str, Any]], order: tuple[str, ...]) -> list[list[float]]:
    """The matrix R from a run's rows."""
    values = {(row["after"], row["on"]): row["value"] for row in rows}
    return [[values[after, on] for on in order] for after in (UNTRAINED, *order)]


def run(
    recipe: Recipe,
    seed: int = 0,
    *,
    out: str | Path = "runs",
    device: str = "auto",
    checkpoint_seconds: float = 30.0,
    capture: bool = True,
    watch: Callable[[Progress], None] | None = None,
) -> Result:
    """Run a recipe to its end, going on from its last checkpoint; a finished run is only read.

    What `watch` raises stops the run at a checkpoint.

    Args:
        recipe: what to run.
        seed: decides the initial weights and every random draw.
        out: folder of run directories.
        device: auto, cpu, cuda or cuda:N.
        checkpoint_seconds: time between checkpoints within a domain; each domain's end has one anyway.
        capture: on a GPU, record a step once and replay it: the same bits, sooner.
        watch: called every few steps.
    """
    # Closed whatever happens: a run that an error in `watch` leaves half-way must not stay claimed.
    stages = advance(recipe, seed, out=out, device=device, checkpoint_seconds=checkpoint_seconds, capture=capture)
    with closing(stages):
        while True:
            try:
                progress = next(stages)
            except StopIteration as end:
                result: Result = end.value
                return result
            if watch is not None and progress is not None:
                watch(progress)


def advance(
    recipe: Recipe,
    seed: int = 0,
    *,
    out: str | Path = "runs",
    device: str = "auto",
    checkpoint_seconds: float = 30.0,
    capture: bool = True,
    beginnings: Beginnings | None = None,
    network_alone: bool = False,
) -> Generator[Progress | None, None, Result]:
    """The same run as a generator that pauses every few steps, so that a caller can interleave several.

    It yields where it stands, or none where that is not known yet. Closed while it pauses, it leaves a checkpoint of
    that moment; while it is tested, of the domain's end, once that test is through; before it is trained, none.
    With `beginnings` it goes on from what another run has left there, and leaves what others begin with too. Finished,
    it keeps all that going on with another domain takes, or its `network_alone`, as one of hundreds does.
    """
    check_recipe(recipe)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise UserError(f"The seed must be a whole number >= 0. Got {seed!r} instead.")
    directory = RunDirectory(out, recipe, seed)
    if not directory.finished:
        chosen = pick_device(device)
        ground = Ground(training_of(recipe), chosen)  # refuses what cannot be before anything is written
        with directory.claimed():
            if not directory.finished:  # by another process, before this one had it
                clock = Clock()
                where, how = (directory, chosen), (checkpoint_seconds, capture, clock, beginnings, network_alone)
                yield from _in_legs(_play(recipe, seed, *where, *how), ground, clock)
    return Result(directory.path, recipe, seed, directory.read("rows.json"))


def _in_legs(stages: Pauses, ground: Ground, clock: Clock) -> Pauses:
    """Hold the ground while the run runs, and let go of it whenever it pauses."""
    try:
        while True:
            with ground.held(), clock.running():
                try:
                    progress = next(stages)
                except StopIteration:
                    return
            yield progress
    finally:
        with ground.held(), clock.running():
            stages.close()


def _play(*arguments: Any) -> Pauses:
    yield from DomainSequence(*arguments).play()  # made in here, so that its tensors are made on the run's own ground
