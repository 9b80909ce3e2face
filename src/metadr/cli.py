"""The command line: parse, call, print."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from metadr import cli_bench, cli_data, cli_report, cli_results, cli_study, cli_sweep, listing
from metadr.benchmarks import BENCHMARKS, data_fields, make_recipe, prepare, training_of
from metadr.cli_options import Device, Eager, Out, Set, Tiny, Weights
from metadr.cli_report import print_tables
from metadr.core import Recipe
from metadr.display import Watch, working
from metadr.engine.capture import found_no_memory, out_of_memory
from metadr.errors import UserError
from metadr.models import FROM_A_FILE, kind_of
from metadr.packs import beginning, unlike_images
from metadr.past import past_of
from metadr.progress import Work
from metadr.report import read_records
from metadr.run import run as run_recipe
from metadr.sequence import Progress
from metadr.settings import assignments
from metadr.stopping import Stop, Stopped
from metadr.store import RunDirectory
from metadr.survey import survey


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
    fields = assignments(set_ or [])
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
    if begins := beginning(made, seed):
        console.print(escape(begins), soft_wrap=True)
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
        past = past_of(training_of(made))
        for shown in listing.before_and_after(record, dict(past.learnt) if past else {}):
            console.print(shown)
        if unlike := unlike_images(file, record.identity, record.environment):
            console.print(unlike, soft_wrap=True)
    console.print(f"Run: {escape(str(result.path))}", soft_wrap=True)


app.command()(cli_sweep.sweep)
app.command()(cli_sweep.demo)


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
    with working(console) as watch:
        watch(Work(f"a few steps of {recipe.method_name}", 0, 0))
        seen = survey(recipe, found, seed, device=device)
    for shown in listing.survey(seen):
        console.print(shown, soft_wrap=isinstance(shown, str))
    directory = RunDirectory(out, recipe, seed)
    state = "finished" if directory.finished else "begun" if directory.checkpoints() else "not begun"
    console.print(f"Run: {escape(str(directory.path))} ({state})", soft_wrap=True)
