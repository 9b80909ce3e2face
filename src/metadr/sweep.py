"""Sweeps: recipes times seeds, less the runs that are finished."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from metadr import settings
from metadr.beginnings import Beginnings, shared_domains
from metadr.benchmarks import check_recipe, steps_of, training_of
from metadr.core import Recipe
from metadr.engine.capture import found_no_memory, out_of_memory
from metadr.engine.ground import check_precision, pick_device
from metadr.errors import UserError
from metadr.lanes import ELSEWHERE, Lanes, Stages, interleave
from metadr.run import advance
from metadr.sequence import Progress
from metadr.store import RunDirectory, identity

MOST_NAMED = 8  # in a sentence on what is wrong with several
AGAIN_SECONDS = 1.0  # between looks at a run that another process has
ALONE = 2.5  # times its share of a full device is what a run alone takes of it: it leaves it idle now and then


class Job(NamedTuple):
    """One run of a sweep."""

    recipe: Recipe
    seed: int

    @property
    def title(self) -> str:
        return f"{self.recipe.benchmark} {self.recipe.method_name} seed {self.seed}"


def titles_of(jobs: Sequence[Job]) -> dict[Job, str]:
    """A title for every job; where several would have the same, what tells them apart is added."""
    every = list(dict.fromkeys(jobs))
    titles = told_apart([(job.title, settings_of(job.recipe)) for job in every])
    return dict(zip(every, titles, strict=True))


def told_apart(titled: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Titles; where several are the same, those of their settings that differ are added."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for title, own in titled:
        alike.setdefault(title, []).append(own)
    differing = {title: _differing(those) for title, those in alike.items()}
    titles = []
    for title, own in titled:
        told = ", ".join(f"{name} {own[name]}" for name in differing[title] if name in own)
        titles.append(f"{title} ({told})" if told else title)
    return titles


def _differing(all_settings: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for each in all_settings for name in each)
    return [name for name in names if len({str(each.get(name)) for each in all_settings}) > 1]


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """All that may differ between recipes of one method, by the shortest names."""
    parts = {name: getattr(part, name) for part in recipe.method for name in settings.names(type(part))}
    memory = {"memory": recipe.memory_per_domain, "choice": recipe.memory_choice}
    orders = {"order": " → ".join(recipe.order), "tested": ", ".join(recipe.tested)}
    return {**orders, **memory, **parts, **dict(recipe.overrides), **dict(recipe.data)}


class Plan(NamedTuple):
    """What a sweep has to do."""

    missing: list[Job]
    finished: list[Job]


class Outcome(NamedTuple):
    """What became of a sweep: each failed job with its one-sentence reason."""

    done: list[Job]
    failed: list[tuple[Job, str]]


def plan(recipes: Sequence[Recipe], seeds: Sequence[int], out: str | Path) -> Plan:
    """What is to be done for recipes that are all run over the same seeds."""
    return plan_jobs([Job(recipe, seed) for seed in seeds for recipe in recipes], out)


def jobs_of(*tables: Mapping[Recipe, range]) -> list[Job]:
    """Every recipe of some tables over its own seeds, once: the first of all of them, then the second."""
    every = sorted({seed for seeds_of in tables for seeds in seeds_of.values() for seed in seeds})
    jobs = (Job(recipe, s) for s in every for seeds_of in tables for recipe, seeds in seeds_of.items() if s in seeds)
    return list(dict.fromkeys(jobs))


def plan_jobs(jobs: Sequence[Job], out: str | Path) -> Plan:
    """Check every recipe, then tell the runs that are missing from those that are there."""
    problems: list[tuple[str, str]] = []
    for recipe in dict.fromkeys(job.recipe for job in jobs):
        try:
            check_recipe(recipe)
        except UserError as error:
            problems.append((recipe.method_name, str(error)))
    if problems:
        raise UserError(f"Nothing was started. {each_reason_once(problems)}")
    return _as_found(jobs, out)


def each_reason_once(problems: Iterable[tuple[str, str]]) -> str:
    """What is wrong with whom, in one line: those that share a reason together, and not all of many."""
    by_reason: dict[str, dict[str, None]] = {}
    for who, reason in problems:
        by_reason.setdefault(reason, {})[who] = None
    told = []
    for reason, names in by_reason.items():
        some, more = list(names)[:MOST_NAMED], len(names) - MOST_NAMED
        told.append(f"{', '.join(some)}{f' and {more} more' if more > 0 else ''}: {reason}")
    if len(told) > MOST_NAMED:
        told[MOST_NAMED:] = [f"And {len(told) - MOST_NAMED} more like these."]
    return " ".join(told)


def plan_known(jobs: Sequence[Job], out: str | Path) -> Plan:
    """The same without those that cannot be run here, such as one whose file of weights is not given."""
    return _as_found([job for job in jobs if _is_sound(job.recipe)], out)


def _is_sound(recipe: Recipe) -> bool:
    try:
        check_recipe(recipe)
        identity(recipe, 0)
    except UserError:
        return False
    return True


def _as_found(jobs: Sequence[Job], out: str | Path) -> Plan:
    # Recipes that differ in words alone, such as a default that one of them states, are one run.
    runs: dict[Path, tuple[RunDirectory, Job]] = {}
    for job in jobs:
        directory = RunDirectory(out, job.recipe, job.seed)
        runs.setdefault(directory.path, (directory, job))
    finished = {job: directory.finished for directory, job in runs.values()}
    return Plan(
        [job for job, there in finished.items() if not there], [job for job, there in finished.items() if there]
    )


class Standing(NamedTuple):
    """Where a whole sweep stands."""

    done: int
    running: int
    left: int
    steps_per_second: float  # of all runs together
    seconds_left: float | None  # none before anything can be said


class Watcher(Protocol):
    """Whoever follows a sweep."""

    def show(self, title: str, now: Progress) -> None: ...

    def end(self, title: str, text: str) -> None: ...

    def overall(self, now: Standing) -> None: ...


def sweep(
    jobs: Sequence[Job],
    *,
    out: str | Path = "runs",
    device: str = "auto",
    lanes: Lanes = "auto",
    capture: bool = True,
    watcher: Watcher | None = None,
    stop: Callable[[], bool] = lambda: False,
    seconds_left: Callable[[], float] | None = None,
) -> Outcome:
    """Run the jobs, as many side by side as there are lanes. A failed run keeps its traceback; the others go on.

    Several processes may sweep the same jobs into one folder: each takes those that no other has. What another has is
    waited for, and taken over if that process dies.

    Args:
        jobs: what to run.
        out: folder of run directories.
        device: auto, cpu, cuda or cuda:N.
        lanes: how many runs share the device; auto finds out.
        capture: on a GPU, record a step once and replay it.
        watcher: told of every turn.
        stop: asked between turns; once it is true, what is running stops at a checkpoint.
        seconds_left: asked before a run starts; one with which it or a running one would take longer, by others of
            their methods so far, is not started.
    """
    chosen = pick_device(device)  # a wrong one is refused once, not once a run
    for training in {training_of(job.recipe) for job in jobs}:
        check_precision(training, chosen)
    outcome, tally, titles = Outcome([], []), _Tally(jobs), titles_of(jobs)
    # Of many lanes, each checkpoint is a copy of a whole network from the device: on a GPU one every other second.
    seconds = 30 if chosen.type == "cpu" else 300

    with closing(Beginnings(jobs, out, chosen)) as beginnings:
        others, ended_elsewhere = _Others(out), set[Job]()

        def start(job: Job) -> Stages:
            if RunDirectory(out, *job).finished:
                ended_elsewhere.add(job)
            tally.start(job)
            beginnings.start(*job)
            where: dict[str, Any] = {"out": out, "device": str(chosen), "beginnings": beginnings}
            how: dict[str, Any] = {"checkpoint_seconds": seconds, "capture": capture, "network_alone": True}
            return advance(job.recipe, job.seed, **where, **how)

        def waits(job: Job, running: Collection[Job]) -> bool:
            return others.have(job) or beginnings.waits(job, running)

        def fits(job: Job) -> bool:
            return seconds_left is None or tally.seconds_with(job, beginnings.num_ended(*job)) <= seconds_left()

        turns = interleave(jobs, start, lanes, chosen, stop, kind=lambda job: job.recipe, waits=waits, fits=fits)
        for happened in turns:
            job, became = happened.job, ""
            if happened.progress is not None:
                tally.went_on(job, happened.progress)
                if watcher:
                    watcher.show(titles[job], happened.progress)
            elif happened.waits:
                tally.put_back(job)
                beginnings.put_back(*job)
                if happened.waits == ELSEWHERE:
                    others.found_with(job)
                became = f"waits: {happened.waits}"
            elif happened.error is not None:
                beginnings.put_back(*job)
                reason = _keep(happened.error, happened.trace, RunDirectory(out, job.recipe, job.seed))
                outcome.failed.append((job, reason))
                became = f"failed in {tally.ended(job):.0f} s"
            else:
                outcome.done.append(job)
                beginnings.end(*job)
                seconds_taken = tally.ended(job)
                became = "done by another process" if job in ended_elsewhere else f"done in {seconds_taken:.0f} s"
            if watcher:
                if became:
                    watcher.end(titles[job], f"{titles[job]}: {became}")
                watcher.overall(tally.standing(len(outcome.done) + len(outcome.failed)))
    return outcome


class _Others:
    """What other processes were found to have, looked at again now and then."""

    def __init__(self, out: str | Path) -> None:
        self._out = out
        self._theirs: dict[Job, tuple[RunDirectory, float]] = {}  # and when that was

    def found_with(self, job: Job) -> None:
        self._theirs[job] = RunDirectory(self._out, *job), time.monotonic()

    def have(self, job: Job) -> bool:
        if job not in self._theirs:
            return False
        directory, looked = self._theirs[job]
        if time.monotonic() - looked >= AGAIN_SECONDS:
            if not directory.held:
                del self._theirs[job]
                return False
            self._theirs[job] = directory, time.monotonic()
        return True


def _keep(error: BaseException, trace: str, directory: RunDirectory) -> str:
    """Write a failed run's traceback into its directory; the reason in one sentence."""
    if found_no_memory(error):
        reason = out_of_memory(error)
    else:
        reason = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    with suppress(UserError), directory.claimed():  # unless another process has it, or the disk is full
        directory.write("failed.json", {"reason": reason, "traceback": trace})
    return reason


def _pace(recipe: Recipe) -> Hashable:
    """What decides how long a step takes in a lane, by and large."""
    training = training_of(recipe)
    return recipe.benchmark, recipe.method_name, recipe.memory_per_domain, training.model, training.batch_size


class _Tally:
    """Counts steps, to say how long a sweep will take, and a run of it."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        taken_over = dict(zip(jobs, shared_domains(jobs), strict=True))  # from those before it
        self.steps = {job: steps_of(job.recipe) for job in jobs}  # on each domain
        self.skipped = {job: sum(self.steps[job][:shared]) for job, shared in taken_over.items()}
        self.total = {job: sum(self.steps[job]) - self.skipped[job] for job in jobs}
        self.first: dict[Job, int] = {}  # steps that a job had taken when it went on here
        self.taken: dict[Job, int] = {}
        self.started: dict[Job, float] = {}
        self.running: set[Job] = set()
        self.most = 0  # at once so far
        self.began = time.monotonic()
        self.alike = {job: _pace(job.recipe) for job in jobs}
        self.told: dict[Job, int] = {}  # all steps of a job, when it last told of them
        self.since: dict[Job, float] = {}  # when that was, or when it was started
        self.known_steps, self.known_seconds = Counter[Hashable](), defaultdict[Hashable, float](float)

    def start(self, job: Job) -> None:
        self.running.add(job)
        self.most = max(self.most, len(self.running))
        self.started[job] = self.since[job] = time.monotonic()
        self.told.pop(job, None)

    def went_on(self, job: Job, now: Progress) -> None:
        self.taken[job] = max(0, now.taken - self.skipped[job])
        self.first.setdefault(job, self.taken[job])
        self._learn(job, now.taken - self.told.get(job, now.taken))  # from where it went on, it tells first
        self.told[job] = now.taken

    def put_back(self, job: Job) -> None:
        self.running.discard(job)

    def ended(self, job: Job) -> float:
        self._learn(job, 0)  # its last test took time as well
        self.running.discard(job)
        # What is missing of a failed run, or was there before, nobody takes here.
        self.first[job] = self.first.get(job, 0) + self.total[job] - self.taken.get(job, 0)
        self.taken[job] = self.total[job]
        return time.monotonic() - self.started[job]

    def seconds_with(self, job: Job, num_ended: int) -> float:
        """Until a run and all that are running have ended, if it is started now, with so many of its domains behind it.

        Of a method of which nothing is known, nothing is counted.
        """
        # Not by `total`: the run from which it was to take over a beginning may not have been started.
        left = {each: sum(self.steps[each]) - self.told.get(each, 0) for each in self.running}
        left[job] = sum(self.steps[job][num_ended:])
        work = [steps * self._share(each) for each, steps in left.items()]
        return max(sum(work), min(self.most, ALONE) * max(work))

    def _share(self, job: Job) -> float:
        """The seconds of the whole device that a step of its method takes: lanes share it."""
        steps, seconds = self.known_steps[self.alike[job]], self.known_seconds[self.alike[job]]
        return seconds / steps if steps else 0.0

    def _learn(self, job: Job, steps: int) -> None:
        """So many steps were taken in the time since it last told; its start and its tests are part of that."""
        self.known_steps[self.alike[job]] += steps
        self.known_seconds[self.alike[job]] += (time.monotonic() - self.since[job]) / len(self.running)
        self.since[job] = time.monotonic()

    def standing(self, ended: int) -> Standing:
        steps = sum(self.taken[job] - self.first[job] for job in self.taken)
        rate = steps / max(time.monotonic() - self.began, 1e-9)
        left = sum(self.total.values()) - sum(self.taken.values())
        num_left = len(self.total) - ended - len(self.running)
        return Standing(ended, len(self.running), num_left, rate, left / rate if steps else None)
