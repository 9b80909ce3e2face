"""`metadr claims`, `rescore` and `predictions`: what finished runs show, and what is behind it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table as TextTable

from metadr.display import working
from metadr.files import told, write_file
from metadr.images import write_picture
from metadr.predictions import prediction_sheet
from metadr.report import read_records
from metadr.report.regained import text_regained, write_regained
from metadr.report.verdicts import FAMILIES, Family, judge, markdown_claims, reading, text_claims
from metadr.rescore import FILE, Rescored, Statistics
from metadr.rescore import rescore as rescore_runs
from metadr.settings import assignments

console = Console(highlight=False, width=None if Console().is_terminal else 120)


def claims(
    sources: Annotated[
        list[Path] | None, typer.Argument(metavar="SOURCE", help="folders of runs, or .json files that reports wrote")
    ] = None,
    runs: Annotated[Path, typer.Option(help="folder of runs, where no SOURCE is given")] = Path("runs"),
    of: Annotated[Family, typer.Option(help="whose claims")] = "digits",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Markdown file to write")] = None,
) -> None:
    """Put the paper's claims to finished runs: each holds, does not hold, or is not decided by so few."""
    records = [record for source in sources or [runs] for record in read_records(source)]
    verdicts = judge(records, FAMILIES[of])
    tested = [verdict for verdict in verdicts if verdict.found]
    if tested:
        console.print(text_claims(tested))
    console.print(reading(verdicts), soft_wrap=True)
    if not tested and (
        others := [name for name in FAMILIES if any(each.found for each in judge(records, FAMILIES[name]))]
    ):
        options = " or ".join(f"--of {name}" for name in others)
        console.print(f"None of {len(records)} runs is one that these claims are about. They fit {options}.")
    elif not tested:
        console.print(f"None of {len(records)} runs has exactly the settings that a claim names (docs/protocol.md).")
    if len(tested) < len(verdicts):
        console.print(f"Not shown: {len(verdicts) - len(tested)} claims without runs; -o FILE writes all.")
    for note in dict.fromkeys(verdict.note for verdict in verdicts if verdict.note and verdict.found):
        console.print(f"  {escape(note)}", soft_wrap=True)
    if output:
        with told(output):
            output.parent.mkdir(parents=True, exist_ok=True)
        write_file(output, markdown_claims(verdicts).encode())
        console.print(f"Wrote {escape(str(output))}", soft_wrap=True)


def rescore(
    sources: Annotated[list[Path], typer.Argument(metavar="RUN", help="finished runs, or folders of them")],
    statistics: Annotated[
        Statistics, typer.Option(help="test every domain with its own statistics, or with those of each domain")
    ] = "own",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    data: Annotated[Path | None, typer.Option(metavar="ROOT", readable=False, help="folder: your images")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="settings of the data, as of the run")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="path of the files of all runs together, without suffix")
    ] = None,
) -> None:
    """Test finished runs again with batch norm's statistics re-estimated: how much of forgetting is only these?"""
    fields = assignments(set_ or []) | ({} if data is None else {"root": str(data)})
    all_found = []
    with working(console) as watch:
        for found in rescore_runs(sources, statistics=statistics, device=device, data=fields, watch=watch):
            _print_rescored(found, statistics)
            all_found.append(found)
    if len(all_found) > 1:
        for table in text_regained(all_found):
            console.print(table)
    for path in write_regained(all_found, output) if output else ():
        console.print(f"Wrote {escape(str(path))}", soft_wrap=True)


def predictions(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="directories of finished runs on masks")],
    output: Annotated[Path, typer.Option("-o", "--output", help="image file to write")],
    images: Annotated[int, typer.Option(min=1, help="of each domain")] = 2,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")] = "auto",
    data: Annotated[Path | None, typer.Option(metavar="ROOT", readable=False, help="the scenes, as of the run")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="settings of the data, as of the run")
    ] = None,
) -> None:
    """Write a sheet of test images, their masks, and what each run says of them at its end."""
    fields = assignments(set_ or []) | ({} if data is None else {"root": str(data)})
    with working(console) as watch:
        sheet = prediction_sheet(runs, num_images=images, device=device, data=fields, watch=watch)
    write_picture(output, sheet)
    console.print(f"Wrote {escape(str(output))}", soft_wrap=True)


def _print_rescored(found: Rescored, statistics: Statistics) -> None:
    if not found.rows:
        model = escape(found.identity["training"]["model"])
        what = f"network '{model}' has no batch norm, so there is nothing to re-estimate"
        console.print(f"{escape(str(found.path))}: {what}.", soft_wrap=True)
        return
    table = TextTable(title=escape(found.path.name), title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    columns = ("own statistics", "gain") if statistics == "own" else [f"by {name}" for name in found.order]
    for index, name in enumerate(("domain", "once learnt", "at the end", *columns)):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for j, name in enumerate(found.order):
        end = found.before[-1][j]
        by = [found.on(name, each) for each in ((name,) if statistics == "own" else found.order)]
        gain = [f"{by[0] - end:+.1f}"] if statistics == "own" else []
        table.add_row(name, f"{found.before[j + 1][j]:.1f}", f"{end:.1f}", *(f"{each:.1f}" for each in by), *gain)
    console.print(table)
    console.print(
        f"Forgotten on the earlier domains: {found.forgotten:.1f} points on average. With their own statistics "
        f"{found.regained:+.1f} come back, and {found.control:+.1f} on the last, where nothing was forgotten.",
        soft_wrap=True,
    )
    console.print(f"Wrote {escape(str(found.path / FILE))}", soft_wrap=True)
