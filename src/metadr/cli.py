"""The command line: parse, call, print."""

import logging
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from metadr import cli_bench, cli_data, cli_report, cli_results, cli_study, listing
from metadr.benchmarks import (
    BENCHMARKS,
    data_fields,
    known_fields,
    make_recipe,
    prepare,
    training_of,
    with_settings,
)
from metadr.cli_report import print_tables, print_written
from metadr.core import Recipe
from metadr.cost import estimate
from metadr.display import Watch, duration, working
from metadr.engine.capture import found_no_memory, out_of_memory
from metadr.engine.ground import pick_device
from metadr.errors import UserError, unknown
from metadr.images import write_picture
from metadr.models import FROM_A_FILE, kind_of
from metadr.packs import unlike_images
from metadr.predictions import prediction_sheet
from metadr.progress import Work
from metadr.recipes import COMPARED, Table, get_table, only
from metadr.report import Record, compare, read_records, write_comparison, write_report
from metadr.report.write import every_format
from metadr.run import run as run_recipe
from metadr.sequence import Progress
from metadr.settings import assignments as _assignments
from metadr.stopping import Stop
from metadr.store import RunDirectory, description
from metadr.survey import survey
from metadr.sweep import Job, each_reason_once, jobs_of, plan_jobs, plan_known, titles_of
from metadr.sweep import sweep as sweep_jobs


class Stopped(Exception):
    """Ctrl-C, under a name that typer does not act on, with what the same command will do."""

    def __init__(self, then: str = "The same command goes on from the last checkpoint.") -> None:
        super().__init__(then)


class Commands(TyperGroup):
    """Let Ctrl-C through to `main`; typer alone would exit without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Stopped("The same command starts again, from a checkpoint where there is one.") from None


app = typer.Typer(
    cls=Commands,
    help="Continual domain adaptation for vision: learn new domains without forgetting the old ones.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(cli_bench.app, name="bench")
app.add_typer(cli_data.app, name="data")
app.add_typer(cli_results.app, name="results")
app.command()(cli_report.report)
app.command()(cli_study.claims)
app.command()(cli_study.rescore)
app.command()(cli_study.predictions)
console = Console(highlight=False, width=None if Console().is_terminal else 120)

Out = Annotated[Path, typer.Option(help="folder of runs")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
Tiny = Annotated[bool, typer.Option("--tiny", help="shrink everything to seconds")]
Seeds = Annotated[int | None, typer.Option(min=1, help="so many, from the table's first on (0)")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="change a setting")]
Weights = Annotated[str | None, typer.Option(metavar="FILE", help="safetensors to start from, as --set weights=")]
Eager = Annotated[bool, typer.Option("--eager", help="on a GPU, take every step as it is: slower, the same bits")]


@app.command("list")
def list_(kind: Annotated[str, typer.Argument(help=f"of {', '.join(listing.KINDS)}")] = "all") -> None:
    """Show what there is: benchmarks, recipes, tables, methods, fields, transforms, models."""
    for table in listing.tables(kind):
        console.print(table)


@app.command()
def run(
    recipe: Annotated[str, typer.Argument(help="benchmark and protocol, such as embedded/p1")],
    method: Annotated[str, typer.Option(help="a sum of parts, such as ewc+dr")] = "naive",
    data: Annotated[Path | None, typer.Option(metavar="ROOT", readable=False, help="folder: your images")] = None,
    order: Annotated[str | None, typer.Option(help="domains separated by commas, as --set order=")] = None,
    model: Annotated[str | None, typer.Option(help="network, as --set model=")] = None,
    weights: Weights = None,
    seed: Annotated[int, typer.Option(min=0, help="decides weights and every random draw")] = 0,
    set_: Set = None,
    out: Out = Path("runs"),
    device: Device = "auto",
    tiny: Tiny = False,
    checkpoint_seconds: Annotated[float, typer.Option(min=0, help="time between checkpoints")] = 30.0,
    eager: Eager = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what there is and what it takes, then stop")] = False,
) -> None:
    """Run one recipe; a run that was stopped goes on where it was."""
    fields = _assignments(set_ or [])
    given = {"--data": data, "--order": order, "--model": model, "--weights": weights}
    for option, value in given.items():
        field = "root" if option == "--data" else option.removeprefix("--")
        for name in (field, f"{recipe.partition('/')[0]}.{field}"):
            if value is not None and name in fields:
                raise UserError(f"{option} and --set {name}= say the same thing twice. Leave one of them out.")
        if value is not None:
            fields[field] = str(value)
    if data is not None:
        _check_takes_data(recipe)
    made = make_recipe(recipe, method, tiny=tiny, **fields)
    if dry_run:
        _print_survey(made, seed, out, device)
        return
    title = made.method_name
    with Stop() as stop, Watch(console) as watch:

        def look(now: Progress) -> None:
            watch.show(title, now)
            if stop():
                raise Stopped  # which leaves a checkpoint

        def tell(now: Work) -> None:
            watch.work(title, now)
            if stop():
                raise Stopped("The same command starts again.")  # nothing is kept of a domain that is half decoded

        watch.begin(title)
        prepare(made, tell)
        begun = listing.begun(RunDirectory(out, made, seed))
        result = run_recipe(
            made,
            seed,
            out=out,
            device=device,
            checkpoint_seconds=checkpoint_seconds,
            capture=not eager,
            watch=look,
        )
    records = read_records(result.path)
    if begun:
        console.print(begun)
    print_tables(records)
    file = training_of(made).weights
    if file is not None and kind_of(file) == FROM_A_FILE:
        (record,) = records
        console.print(listing.before_and_after(record))
        if unlike := unlike_images(file, record.identity, record.environment):
            console.print(unlike, soft_wrap=True)
    console.print(f"Run: {escape(str(result.path))}", soft_wrap=True)


@app.command()
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
    tiny: Tiny = False,
    eager: Eager = False,
) -> None:
    """Run what is missing of tables, many runs side by side on a GPU, and show them; a second call goes on."""
    fields = _assignments(set_ or [])
    if weights is not None and "weights" in fields:
        raise UserError("--weights and --set weights= say the same thing twice. Leave one of them out.")
    usual = [get_table(name, tiny=tiny).with_seeds(seeds) for name in dict.fromkeys(tables)]
    _sweep_and_report(
        _as_asked(usual, row or [], fields, weights, tiny=tiny),
        out,
        device=device,
        lanes=_lanes(lanes),
        capture=not eager,
        minutes=minutes,
        rows=row or [],
        seeds=seed or [],
    )


@app.command()
def demo(
    seeds: Seeds = None,
    out: Out = Path("runs/demo"),
    device: Device = "cpu",
    tiny: Tiny = False,
    segmentation: Annotated[bool, typer.Option("--segmentation", help="streets that are rendered, by pixels")] = False,
) -> None:
    """See forgetting and its cure in minutes on a CPU: naive, dr and meta-dr on the embedded digits, or on streets."""
    chosen = get_table("demo-segmentation" if segmentation else "demo", tiny=tiny).with_seeds(seeds)
    started = time.monotonic()
    _sweep_and_report([chosen], out, device=device)
    if segmentation:
        runs = [RunDirectory(out, recipe, 0).path for recipe in chosen.recipes]
        sheet = out / "predictions.png"
        write_picture(sheet, prediction_sheet(runs, device=device))
        print_written([sheet])
    console.print(f"Took {duration(time.monotonic() - started)} (finished runs are not run again).")


@app.command()
def show(
    transforms: Annotated[str, typer.Argument(help="a transformation set, such as psi3 or brightness+rotate")],
    folder: Annotated[Path, typer.Argument(help="a folder of images")],
    output: Annotated[Path, typer.Option("-o", "--output", help="image file to write")],
    seed: Annotated[int, typer.Option(min=0)] = 0,
) -> None:
    """Write a contact sheet: what a transformation set does to the first images of a folder."""
    from metadr.transforms import write_contact_sheet

    write_contact_sheet(transforms, folder, output, seed=seed)
    console.print(f"Wrote {escape(str(output))}", soft_wrap=True)


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    errors = Console(stderr=True, highlight=False)
    try:
        app()
    except UserError as error:
        errors.print(f"[bold red]Error:[/] {escape(str(error))}", soft_wrap=True)
        raise SystemExit(2) from None
    except Stopped as stopped:
        errors.print(f"Stopped. {stopped}", soft_wrap=True)
        raise SystemExit(130) from None
    except RuntimeError as error:
        if not found_no_memory(error):
            raise
        errors.print(f"[bold red]Error:[/] {escape(out_of_memory(error))}", soft_wrap=True)
        raise SystemExit(2) from None


def _as_asked(
    tables: list[Table], rows: list[str], fields: dict[str, str], weights: str | None, *, tiny: bool
) -> list[Table]:
    """The tables with settings from the command line in the rows that are asked for, and a note where these are not
    their own. A file of weights is for those that start from weights; where none of them does, for all of them."""
    asked_for = {recipe for table in only(tables, rows) for recipe in table.recipes}
    known = {recipe: known_fields(recipe) for recipe in asked_for}
    every = {name for names in known.values() for name in names}
    for name in fields:
        if name not in every:
            raise unknown("field", name, every, hint="No row has such a setting: list all with 'metadr list fields'.")
    some = any(training_of(recipe).weights for recipe in asked_for)

    def change(recipe: Recipe) -> Recipe:
        if recipe not in asked_for:
            return recipe
        own = {name: value for name, value in fields.items() if name in known[recipe]}  # not all have all parts
        if weights and (training_of(recipe).weights or not some):
            own["weights"] = weights
        return with_settings(recipe, **own)

    given = {**fields, **({"weights": weights} if weights else {})}
    changes = ", ".join([*(["--tiny"] if tiny else []), *(f"{name}={value}" for name, value in given.items())])
    asked = []
    for usual in tables:
        chosen = usual.changed(change)
        if len(chosen.recipes) < len(usual.recipes):
            raise UserError(
                f"With {changes} rows of table '{usual.name}' that differ in this would be the same. Choose one of "
                "them with --row, or leave the setting out."
            )
        # A file of weights where the table wants one is no other setting.
        if tiny or [*map(description, chosen.recipes)] != [*map(description, usual.recipes)]:
            chosen = chosen._replace(notes=(*chosen.notes, f"Not the settings of the table: {changes}."))
        asked.append(chosen)
    return asked


def _lanes(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    if not text.isdecimal() or not int(text):
        raise UserError(f"--lanes must be 'auto' or a whole number >= 1. Got '{text}' instead.")
    return int(text)


def _check_takes_data(recipe: str) -> None:
    name = recipe.partition("/")[0]
    if name in BENCHMARKS and "root" not in data_fields(BENCHMARKS[name]):
        taking = [each for each, benchmark in BENCHMARKS.items() if "root" in data_fields(benchmark)]
        raise UserError(
            f"Benchmark '{name}' has its own images and takes no --data. Leave it out, or run {' or '.join(taking)}."
        )


def _print_survey(recipe: Recipe, seed: int, out: Path, device: str) -> None:
    with working(console) as watch:
        found = prepare(recipe, watch)
    for shown in listing.files(found):
        console.print(shown, soft_wrap=isinstance(shown, str))
    # The files come first: where too many of them are broken, that is all there is to tell.
    for shown in listing.survey(survey(recipe, found, seed, device=device)):
        console.print(shown, soft_wrap=isinstance(shown, str))
    directory = RunDirectory(out, recipe, seed)
    state = "finished" if directory.finished else "begun" if directory.checkpoints() else "not begun"
    console.print(f"Run: {escape(str(directory.path))} ({state})", soft_wrap=True)


def _sweep_and_report(
    tables: Sequence[Table],
    out: Path,
    *,
    device: str,
    minutes: float | None = None,
    rows: Sequence[str] = (),
    seeds: Collection[int] = (),
    **options: Any,
) -> None:
    """Run what is missing of tables, or of some of their rows and seeds, and report all that there is of them."""
    stop = Stop(minutes)  # what is read and decoded first counts too
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
    for table in chosen:
        _print_plan(table, out)
    jobs = plan_jobs([job for job in wanted if not seeds or job.seed in seeds], out)
    if seeds:
        console.print(f"Of seed {', '.join(map(str, sorted(set(seeds))))}: {len(jobs.missing)} to run.")
    if jobs.missing:
        cost = estimate(jobs.missing, out, pick_device(device), lanes=options.get("lanes", "auto"))
        console.print(str(cost), soft_wrap=True)
    started = time.monotonic()
    with stop, Watch(console) as watch:
        outcome = sweep_jobs(jobs.missing, out=out, device=device, watcher=watch, stop=stop, **options)
    left = len(jobs.missing) - len(outcome.done) - len(outcome.failed)
    if stop.interrupted and left:
        raise Stopped
    for table in tables:
        _report(table, out)
    if jobs.missing:
        ended = f"{len(outcome.done)} of {len(jobs.missing)} runs done, {len(outcome.failed)} failed"
        names = ", ".join(table.name for table in tables)
        console.print(f"{names}: {ended}, in {duration(time.monotonic() - started)}.")
    if left:
        runs = "1 run" if left == 1 else f"{left} runs"
        console.print(f"Time is up with {runs} left. The same command goes on from the last checkpoints.")
    if outcome.failed:
        titles = titles_of(jobs.missing)
        reasons = each_reason_once((titles[job], reason) for job, reason in outcome.failed)
        raise UserError(
            f"{len(outcome.failed)} of {len(jobs.missing)} runs failed; "
            f"each keeps its traceback in failed.json. {reasons}"
        )


def _print_plan(table: Table, out: Path) -> None:
    jobs = plan_jobs(jobs_of(table.seeds_of), out)
    counts = sorted({len(each) for each in table.seeds_of.values()})
    seeds = " to ".join(str(count) for count in sorted({counts[0], counts[-1]}))
    first = f" from {table.first_seed} on" if table.first_seed else ""
    console.print(
        f"{table.name}: {table.about}. {len(table.recipes)} recipes x {seeds} seeds{first}, "
        f"{len(jobs.finished)} finished, {len(jobs.missing)} to run.",
        soft_wrap=True,
    )


def _report(table: Table, out: Path) -> None:
    records = _records_of(plan_known(jobs_of(table.seeds_of), out).finished, out)
    if records and table.name in COMPARED:
        made = compare(table, records)
        cli_report.print_comparison(made, "md", None)
        print_written(write_comparison(made, every_format(made, out / table.name)))
    elif records:
        print_tables(records)
        print_written(write_report(records, out / table.name))


def _read_by(recipe: Recipe) -> tuple[Any, ...]:
    """What a run reads before it begins: images, and weights of a network."""
    training = training_of(recipe)
    weights = training.weights and (training.model, training.weights)
    return recipe.benchmark, recipe.data, frozenset(recipe.domains), weights


def _records_of(jobs: list[Job], out: Path) -> list[Record]:
    paths = sorted(RunDirectory(out, job.recipe, job.seed).path for job in jobs)
    return [record for path in paths for record in read_records(path)]
