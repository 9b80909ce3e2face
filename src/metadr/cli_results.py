"""`metadr results`: runs from machine to machine, and their networks."""

import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from metadr import packs
from metadr.errors import UserError

app = typer.Typer(help="Runs as files: packed for another machine, or their networks alone.", no_args_is_help=True)
console = Console(highlight=False, width=None if Console().is_terminal else 120)

Out = Annotated[Path, typer.Option(help="folder of runs")]
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@app.command()
def pack(
    file: Annotated[Path, typer.Argument(help="file to write, such as runs.tar.gz")],
    out: Out = Path("runs"),
    only: Annotated[packs.Only, typer.Option(help="which runs")] = "all",
    light: Annotated[bool, typer.Option("--light", help="no checkpoints: unfinished runs would start afresh")] = False,
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints", help="also the last checkpoint of finished runs: weights, and images of a memory"
        ),
    ] = False,
    max_size: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="of a file, such as 15M; what is more goes into FILE-1, FILE-2 and so on"),
    ] = None,
) -> None:
    """Write runs to one file: finished ones without their checkpoints, unfinished ones with their newest.

    A run that is going on is packed as of its newest checkpoint, and not disturbed.
    """
    limit = None if max_size is None else _bytes(max_size)
    packed = packs.pack(file, out=out, only=only, light=light, checkpoints=checkpoints, max_size=limit)
    left_out = f", {packed.left_out} left out" if packed.left_out else ""
    console.print(
        f"Packed {packed.finished} finished and {packed.unfinished} unfinished runs; checkpoints: "
        f"{packed.checkpoints}{left_out}.",
        soft_wrap=True,
    )
    for each in packed.files:
        console.print(f"Wrote {escape(str(each))} ({each.stat().st_size / UNITS['M']:.2f} MiB)", soft_wrap=True)


@app.command()
def unpack(
    files: Annotated[
        list[Path], typer.Argument(help="files of 'metadr results pack', or a report's .json", metavar="FILE")
    ],
    out: Out = Path("runs"),
    replace: Annotated[
        bool, typer.Option("--replace", help="where both are finished and their scores differ, take the pack's")
    ] = False,
) -> None:
    """Put packed runs into a folder of runs; 'metadr run', 'sweep' and 'report' go on from there.

    Of a run that is in both, the finished one stays, else the one that is further along.
    One that a process is running is left alone.
    """
    done = packs.unpack(files, out=out, replace=replace)
    busy = f" Left alone, because a process is running them: {', '.join(done.busy)}." if done.busy else ""
    console.print(
        f"{done.finished} finished and {done.unfinished} unfinished runs: {len(done.new)} new, {len(done.kept)} kept, "
        f"{len(done.replaced)} replaced.{escape(busy)}",
        soft_wrap=True,
    )


@app.command()
def weights(
    run: Annotated[Path, typer.Argument(help="directory of a run")],
    output: Annotated[Path, typer.Option("--output", "-o", help="safetensors file to write")],
    past: Annotated[
        bool, typer.Option("--past", help="with all that its method kept of its domains: a run goes on from there")
    ] = False,
) -> None:
    """Write the network of a run to a file: its state_dict(), to be used anywhere, or as --weights of another run."""
    written = packs.write_weights(run, output, past=past)
    missing = len({*written.order}.difference(written.learnt))
    learnt = ", ".join(written.learnt) or "no domain to its end"
    left = f"; {missing} of {len(written.order)} domains had not ended" if missing else ""
    console.print(f"Wrote {escape(str(output))}: {written.model}, which learnt {escape(learnt)}{left}.", soft_wrap=True)
    if written.classes:
        console.print(f"Its outputs: {escape(', '.join(written.classes))}.", soft_wrap=True)
    if past:
        console.print("With what its method kept of these, images of a memory too: a run goes on from there.")
    more = "" if past else " It has nothing of what the method kept of its domains: --past brings that too."
    console.print(
        f"Its images: {written.images}. A run starts from it with --weights {escape(str(output))}.{more}",
        soft_wrap=True,
    )


def _bytes(text: str) -> int:
    match = re.fullmatch(r"([0-9]+)([KMG]?)(i?B)?", text.strip(), flags=re.IGNORECASE)
    if match is None or not (size := int(match[1]) * UNITS[match[2].upper()]):
        raise UserError(f"--max-size must be a size > 0 such as 500K, 15M or 1G. Got '{text}' instead.")
    return size
