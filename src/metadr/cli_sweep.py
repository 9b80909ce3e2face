"""`metadr sweep` and `demo`: what is missing of tables is run, and all that there is of them shown."""

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal

import torch
import typer
from rich.console import Console
from rich.markup import escape

from metadr import packs
from metadr.asked import as_asked, in_other_precisions, with_seeds_there
from metadr.benchmarks import prepare, training_of
from metadr.cli_options import Device, Eager, Out, Seeds, Set, Tiny, Weights
from metadr.cli_report import print_comparison, print_tables, print_written
from metadr.core import Recipe
from metadr.cost import estimate
from metadr.display import Watch, duration, working
from metadr.engine.ground import pick_device
from metadr.errors import UserError
from metadr.files import told
from metadr.images import write_picture
from metadr.predictions import prediction_sheet
from metadr.progress import Work
from metadr.recipes import COMPARED, Row, Table, get_table, only
from metadr.report import Record, compare, read_records, write_comparison, write_report
from metadr.report.write import every_format
from metadr.sequence import BY_PASSES
from metadr.settings import assignments
from metadr.stopping import Stop, Stopped
from metadr.store import RunDirectory, finished_runs
from metadr.survey import seconds_a_step
from metadr.sweep import Job, each_reason_once, jobs_of, plan_jobs, plan_known, titles_of
from metadr.sweep import sweep as sweep_jobs

console = Console(highlight=False, width=None if Console().is_terminal else 120)
PACK_SECONDS = 60  # between packs while a sweep goes on: 255 runs take 0.2 s


def sweep(
    tables: Annotated[list[str], typer.Argument(metavar="TABLE", help="a table, such as demo; or several")],
    row: Annotated[list[str] | None, typer.Option(help="only rows of this title, * for any text")] = None,
    seeds: Seeds = None,
    seed: Annotated[list[int] | None, typer.Option(help="only runs of this seed; may be given several times")] = None,
    weights: Weights = None,
    set_: Set = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    lanes: Annotated[str, typer.Option(help="runs side by side on a GPU: a number, or auto")] = "auto",
    minutes: Annotated[float | None, typer.Option(min=0, help="stop at a checkpoint after so long")] = None,
    whole: Annotated[bool, typer.Option("--whole", help="start no run that would not end within --minutes")] = False,
    pack: Annotated[
        Path | None, typer.Option(metavar="FILE", help="finished runs as one file, made anew as runs end")
    ] = None,
    tiny: Tiny = False,
    eager: Eager = False,
) -> None:
    """Run what is missing of tables, many runs side by side on a GPU, and show them; a second call goes on."""
    fields = assignments(set_ or [])
    if weights is not None and "weights" in fields:
        raise UserError("--weights and --set weights= say the same thing twice. Leave one of them out.")
    if whole and minutes is None:
        raise UserError("--whole starts only runs that will end in time, and no time is given. Add --minutes 9 or so.")
    usual = [get_table(name, tiny=tiny) for name in dict.fromkeys(tables)]
    _sweep_and_report(
        as_asked(usual, row or [], fields, weights, tiny=tiny),
        out,
        num_seeds=seeds,
        device=device,
        lanes=_lanes(lanes),
        capture=not eager,
        minutes=minutes,
        whole=whole,
        rows=row or [],
        seeds=seed or [],
        pack=pack,
    )


def demo(
    seeds: Seeds = None,
    out: Out = Path("runs/demo"),
    device: Device = "cpu",
    tiny: Tiny = False,
    segmentation: Annotated[bool, typer.Option("--segmentation", help="streets that are rendered, by pixels")] = False,
) -> None:
    """See forgetting and its cure in minutes on a CPU: naive, dr and meta-dr on the embedded digits, or on streets."""
    usual = get_table("demo-segmentation" if segmentation else "demo", tiny=tiny)
    (chosen,) = as_asked([usual], [], {}, None, tiny=tiny)
    started = time.monotonic()
    _sweep_and_report([chosen], out, num_seeds=seeds, device=device)
    if segmentation:
        runs = [RunDirectory(out, recipe, 0).path for recipe in chosen.recipes]
        sheet = out / f"predictions{'-tiny' if tiny else ''}.png"
        write_picture(sheet, prediction_sheet(runs, device=device))
        print_written([sheet])
    console.print(f"Took {duration(time.monotonic() - started)} (finished runs are not run again).")


def _lanes(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not int(text):
        raise UserError(f"--lanes must be 'auto' or a whole number >= 1. Got '{text}' instead.")
    return int(text)


def _sweep_and_report(
    tables: Sequence[Table],
    out: Path,
    *,
    device: str,
    num_seeds: int | None = None,
    minutes: float | None = None,
    whole: bool = False,
    rows: Sequence[str] = (),
    seeds: Collection[int] = (),
    pack: Path | None = None,
    **options: Any,
) -> None:
    """Run what is missing of tables, or of some of their rows and seeds, and report all that there is of them."""
    stop = Stop(minutes)  # what is read and decoded first counts too
    watching = Watch(console) if pack is None else Packing(console, pack, out)
    usual, tables = tables, [table.with_seeds(num_seeds) for table in tables]
    chosen = only(tables, rows)
    wanted = jobs_of(*(table.seeds_of for table in chosen))
    if strange := set(seeds) - {job.seed for job in wanted}:
        found = sorted({job.seed for job in wanted})
        raise UserError(
            f"No run of these rows has the seed {min(strange)}; theirs are {found[0]} to {found[-1]}. Use one of them, "
            "or more of them with --seeds."
        )
    with working(console) as tell:
        for recipe in {_read_by(each): each for table in chosen for each in table.recipes}.values():
            prepare(recipe, tell)
    rows_with_own = [(row, table.seeds_in(row)) for table in chosen for row in table.rows if not row.by]
    planned = {job for row, each in rows_with_own for job in _of_row(row, each)}
    tables = [table.with_own_runs(partial(_has_own_runs, out, planned)) for table in tables]
    chosen = only(tables, rows)
    wanted = jobs_of(*(table.seeds_of for table in chosen))
    for table in chosen:
        _print_plan(table, out)
    jobs = plan_jobs([job for job in wanted if not seeds or job.seed in seeds], out)
    if seeds:
        console.print(f"Of seed {', '.join(map(str, sorted(set(seeds))))}: {len(jobs.missing)} to run.")
    for precision, count in in_other_precisions(jobs.missing, wanted, out).items():
        console.print(
            f"{count} of these are finished in another precision: with --set precision={precision} they count."
        )
    if jobs.missing:
        with working(console) as tell:
            timed = partial(_timed, tell) if minutes is None else None  # such time is short, and would be spent on it
            cost = estimate(jobs.missing, out, pick_device(device), lanes=options.get("lanes", "auto"), timed=timed)
        console.print(str(cost), soft_wrap=True)
        with told(out):
            out.mkdir(parents=True, exist_ok=True)
    started, in_time = time.monotonic(), stop.seconds_left if whole else None
    with stop, watching as watch:
        outcome = sweep_jobs(
            jobs.missing, out=out, device=device, watcher=watch, stop=stop, seconds_left=in_time, **options
        )
    time_is_up = stop.out_of_time  # before the report, which takes time too
    left = len(jobs.missing) - len(outcome.done) - len(outcome.failed)
    if stop.interrupted and left:
        done = f"{len(outcome.done)} of {len(jobs.missing)} runs done, {left} left."
        raise Stopped(f"{done} The same command goes on from the last checkpoints.")
    for table, own in zip(tables, usual, strict=True):
        _report(with_seeds_there(table, own, out), out)
    if jobs.missing:
        ended = f"{len(outcome.done)} of {len(jobs.missing)} runs done, {len(outcome.failed)} failed"
        names = ", ".join(table.name for table in tables)
        console.print(f"{names}: {ended}, in {duration(time.monotonic() - started)}.")
    if left:
        runs = _counted(left, "run")
        why = f"Time is up with {runs} left." if time_is_up else f"Not started: {runs}, to end in time."
        console.print(f"{why} The same command goes on from the last checkpoints.")
    if outcome.failed:
        titles = titles_of(jobs.missing)
        reasons = each_reason_once((titles[job], reason) for job, reason in outcome.failed)
        raise UserError(
            f"{len(outcome.failed)} of {len(jobs.missing)} runs failed; "
            f"each keeps its traceback in failed.json. {reasons}"
        )


class Packing(Watch):
    """Shows a sweep, and keeps a pack of the finished runs beside it: its machine may be taken away at any time."""

    def __init__(self, console: Console, file: Path, out: Path) -> None:
        if file.is_dir() or not file.parent.is_dir():
            raise UserError(f"--pack must be a file in a folder that is there. Got '{file}' instead.")
        super().__init__(console)
        self.file, self.out = file, out
        self.due = 0.0

    def end(self, title: str, text: str) -> None:
        super().end(title, text)
        if time.monotonic() >= self.due:
            self.pack()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self.pack()

    def pack(self) -> None:
        self.due = time.monotonic() + PACK_SECONDS
        if not (self.out.is_dir() and finished_runs(self.out)):
            return
        try:
            packs.pack(self.file, out=self.out, only="finished")
        except UserError as error:  # such as a full disk: the runs themselves are there, and the sweep goes on
            console.print(f"Not packed: {escape(str(error))}", soft_wrap=True)


def _timed(tell: Callable[[Work], None], recipe: Recipe, device: torch.device) -> float:
    tell(Work(f"a few steps of {recipe.method_name}", 0, 0))
    return seconds_a_step(recipe, device)


def _has_own_runs(out: Path, planned: set[Job], row: Row, seeds: Collection[int]) -> bool:
    """Whether a row that could read others' runs by another policy has runs of its own.

    It has where these are planned anyway or more of them are finished, and where a finished run that it would read was
    not tested by that policy, being too old.
    """
    own, others = row.read, _finished(out, row, seeds)
    lacking = any(row.by not in run.read("rows.json")[-1].get(BY_PASSES, ()) for run in others)
    return lacking or planned.issuperset(_of_row(own, seeds)) or len(_finished(out, own, seeds)) > len(others)


def _of_row(row: Row, seeds: Collection[int]) -> list[Job]:
    return [Job(recipe, seed) for recipe in row.recipes for seed in seeds]


def _finished(out: Path, row: Row, seeds: Collection[int]) -> list[RunDirectory]:
    try:
        runs = [RunDirectory(out, *job) for job in _of_row(row, seeds)]
    except UserError:  # one cannot be run as it is, which the plan will say
        return []
    return [run for run in runs if run.finished]


def _print_plan(table: Table, out: Path) -> None:
    jobs = plan_jobs(jobs_of(table.seeds_of), out)
    counts = sorted({len(each) for each in table.seeds_of.values()})
    seeds = f"{counts[0]} to {counts[-1]} seeds" if len(counts) > 1 else _counted(counts[0], "seed")
    first = f" from {table.first_seed} on" if table.first_seed else ""
    console.print(
        f"{table.name}: {table.about}. {_counted(len(table.recipes), 'recipe')} x {seeds}{first}, "
        f"{len(jobs.finished)} finished, {len(jobs.missing)} to run.",
        soft_wrap=True,
    )


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _report(table: Table, out: Path) -> None:
    records = _records_of(plan_known(jobs_of(table.seeds_of), out).finished, out)
    stem = out / (table.report or table.name)
    if records and table.name in COMPARED:
        made = compare(table, records)
        print_comparison(made, "md", None)
        print_written(write_comparison(made, every_format(made, stem)))
    elif records:
        print_tables(records)
        print_written(write_report(records, stem))


def _read_by(recipe: Recipe) -> tuple[Any, ...]:
    """What a run reads before it begins: images, and weights of a network."""
    training = training_of(recipe)
    weights = training.weights and (training.model, training.weights)
    return recipe.benchmark, recipe.data, frozenset(recipe.domains), weights


def _records_of(jobs: list[Job], out: Path) -> list[Record]:
    paths = sorted(RunDirectory(out, job.recipe, job.seed).path for job in jobs)
    return [record for path in paths for record in read_records(path)]
