"""`metadr claims` and `metadr rescore`: what finished runs show, and what is behind it."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from metadr.files import told, write_file
from metadr.report import read_records
from metadr.report.verdicts import judge, markdown_claims, reading, text_claims

console = Console(highlight=False, width=None if Console().is_terminal else 120)


def claims(
    sources: Annotated[
        list[Path] | None, typer.Argument(metavar="SOURCE", help="folders of runs, or .json files that reports wrote")
    ] = None,
    runs: Annotated[Path, typer.Option(help="folder of runs, where no SOURCE is given")] = Path("runs"),
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Markdown file to write")] = None,
) -> None:
    """Put the paper's claims to finished runs: each holds, does not hold, or is not decided by so few."""
    records = [record for source in sources or [runs] for record in read_records(source)]
    verdicts = judge(records)
    console.print(text_claims(verdicts))
    console.print(reading(verdicts), soft_wrap=True)
    for note in dict.fromkeys(verdict.note for verdict in verdicts if verdict.note and verdict.found):
        console.print(f"  {escape(note)}", soft_wrap=True)
    if output:
        with told(output):
            output.parent.mkdir(parents=True, exist_ok=True)
        write_file(output, markdown_claims(verdicts).encode())
        console.print(f"Wrote {escape(str(output))}", soft_wrap=True)
