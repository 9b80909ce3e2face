"""`metadr report`: finished runs as tables and figures, beside the paper's numbers where it has them."""

from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.markup import escape

from metadr.errors import UserError, unknown
from metadr.provenance import published_files
from metadr.recipes import COMPARED, get_table
from metadr.report import Record, compare, group, read_records, text_table, write_report
from metadr.report.comparison import Comparison
from metadr.report.records import TestedBy, by_statistics
from metadr.report.write import FIGURES, PICTURES, Format, rendered, write_comparison, write_picture

TABLES = ("md", "csv", "tex")
# What a table says of its tests where they do not go by runs' own statistics.
BY_BATCHES = "Tested by batch norm's statistics of every tested batch; runs that were not tested so are missing."
BY_PASSES = (
    "Tested by batch norm's running statistics as passes '{}' alone move them, of methods that have other passes; runs "
    "that did not keep these are missing."
)
console = Console(highlight=False, width=None if Console().is_terminal else 120)


def report(
    source: Annotated[str, typer.Argument(help="a table, such as table1; a folder of runs; a report's .json file")],
    runs: Annotated[Path | None, typer.Option(help="of a table: a folder of runs; unless given, results/")] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="of a table; unless given, by the file's suffix, or md")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="of a table: the file; else the path of the files, no suffix")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="of a table: so many in every row, from its first on")
    ] = None,
    ddof: Annotated[int, typer.Option(min=0, max=1, help="the spread divides by n - DDOF")] = 1,
    tested_by: Annotated[
        TestedBy,
        typer.Option(
            help="of a table: batch norm's statistics in runs' last test: their own, a batch's, by some passes"
        ),
    ] = "running",
) -> None:
    """Print a table of finished runs: one of the paper's beside its numbers, or all that a folder holds.

    A table of the paper is printed, or written to FILE. Of a folder, the table is printed and written as Markdown and
    CSV, with the figure and the records; of a report's file likewise, where an output is named.
    """
    if source in PICTURES:
        kind = _format(source, format_ or ("png" if output is None else None), output)
        print_written(write_picture(source, cast(Path, output), kind))
        return
    if source in COMPARED:
        kind = _format(source, format_, output)
        if tested_by != "running" and kind not in TABLES:
            raise UserError(
                f"A {kind} holds runs along the whole sequence, and only their last test is by other statistics too. "
                f"Leave --tested-by out, or use --format {', '.join(TABLES)}."
            )
        made = comparison(source, runs, seeds=seeds, ddof=ddof, tested_by=tested_by)
        print_comparison(made, kind, output)
        return
    if runs or format_ or seeds or tested_by != "running":
        raise UserError(
            f"--runs, --format, --seeds and --tested-by belong to a table of the paper; '{source}' is none. Leave them "
            "out: a folder's report has every format. List the tables with 'metadr list tables'."
        )
    folder = Path(source)
    if len(folder.parts) == 1 and not folder.exists():
        raise unknown(
            "table or folder of runs", source, [*COMPARED, *PICTURES], hint="List all with 'metadr list tables'."
        )
    records = read_records(folder)
    print_tables(records, ddof=ddof)
    if output or folder.is_dir():  # a file is left as it is, and what lies beside it
        print_written(write_report(records, output or folder / "report", ddof=ddof))


def print_tables(records: list[Record], *, ddof: int = 1) -> None:
    for title, groups in group(records).items():
        console.print(text_table(title, groups, ddof=ddof))


def print_comparison(made: Comparison, kind: Format, output: Path | None) -> None:
    """Print a table, or write it to a file."""
    if output is not None:
        print_written(write_comparison(made, {output: kind}))
    else:
        typer.echo(rendered(made, kind).decode(), nl=False)  # as it is: no wrapping


def print_written(paths: list[Path]) -> None:
    for path in paths:
        console.print(f"Wrote {escape(str(path))}", soft_wrap=True)


def comparison(
    name: str,
    runs: Path | None = None,
    *,
    seeds: int | None = None,
    ddof: int = 1,
    tested_by: TestedBy = "running",
) -> Comparison:
    """A table of the paper with the runs of a folder, or with those that are published in results/."""
    table = get_table(name).with_seeds(seeds)
    # Its own file, then those of the other tables: they share runs.
    names = [name, *(other for other in COMPARED if other != name)]
    sources = [runs] if runs is not None else [path for each in names for path in published_files(f"{each}.json")]
    records = [record for source in sources for record in read_records(source)]
    made = compare(table, records, published=runs is None, ddof=ddof)
    if tested_by == "running":
        return made
    noted = table._replace(notes=(*table.notes, BY_BATCHES if tested_by == "batch" else BY_PASSES.format(tested_by)))
    otherwise = compare(noted, by_statistics(records, tested_by), published=runs is None, ddof=ddof)
    if made.records and not otherwise.records:
        what, otherwise_known = f"'{tested_by}'", ""
        if tested_by == "batch":
            what, otherwise_known = "batches", ", or use 'metadr rescore' where their checkpoints are"
        raise UserError(
            f"None of {len(made.records)} runs was tested by the statistics of {what}: an earlier version made them. "
            f"Leave --tested-by out, or run them again{otherwise_known}."
        )
    return otherwise


def _format(name: str, given: Format | None, output: Path | None) -> Format:
    suffix = "" if output is None else output.suffix.removeprefix(".")
    known: dict[str, Format] = {"md": "md", "csv": "csv", "tex": "tex", "json": "json", "png": "png", "pdf": "pdf"}
    if output is not None and given is None and suffix not in known:
        raise UserError(f"-o must end in .{', .'.join(known)}, or --format say what to write. Got '{output}'.")
    kind = given or known.get(suffix, "md")
    if kind not in ("png", "pdf") and name in PICTURES:
        raise UserError(f"'{name}' is a picture of data, without a table. Write it as png or pdf: -o {name}.png")
    if kind in ("png", "pdf"):
        figures = [*FIGURES, *PICTURES]
        if name not in figures:
            raise UserError(f"'{name}' is no figure. Figures: {', '.join(figures)}. Use --format md, csv, tex or json.")
        if output is None:
            raise UserError(f"A {kind} is not for a terminal. Name a file: -o {name}.{kind}")
    return kind
