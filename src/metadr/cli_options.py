"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Out = Annotated[Path, typer.Option(help="folder of runs")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
Tiny = Annotated[bool, typer.Option("--tiny", help="shrink everything to seconds")]
Seeds = Annotated[int | None, typer.Option(min=1, help="so many, from the table's first on (0)")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="change a setting")]
Weights = Annotated[str | None, typer.Option(metavar="FILE", help="safetensors to start from, as --set weights=")]
Eager = Annotated[bool, typer.Option("--eager", help="on a GPU, take every step as it is: slower, the same bits")]
