"""`metadr data`: what there is, where to get it, whether it is sound."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn
from rich.table import Table

from metadr.data import obtain
from metadr.data.catalog import DataSet, data_sets, get_set
from metadr.data.fetch import Download
from metadr.data.source import data_root, in_words
from metadr.data.standing import Status
from metadr.data.vkitti2_files import RENDERED
from metadr.display import working
from metadr.errors import UserError
from metadr.images import write_picture
from metadr.progress import Work
from metadr.synthetic import fonts as font_list
from metadr.synthetic import syn_digits, syn_sheet
from metadr.synthetic.street import sheet as street_sheet
from metadr.synthetic.street import writing as street
from metadr.vkitti2_classes import CONDITIONS, FRAMES

app = typer.Typer(
    help="Data sets: what is there, download, import, make, verify. They lie in METADR_DATA, or ~/.cache/metadr.",
    no_args_is_help=True,
)
console = Console(highlight=False, width=None if Console().is_terminal else 120)

Name = Annotated[str, typer.Argument(help=f"of {', '.join(data_sets())}")]
SomeName = Annotated[str | None, typer.Argument(help=f"of {', '.join(data_sets())}; all of them if left out")]


@app.command("status")
def status_(name: SomeName = None) -> None:
    """Say which data sets are there, complete or in part."""
    _print_standing([each.status(data_root()) for each in _named(name)])


@app.command("fetch")
def fetch_(name: Name) -> None:
    """Download a data set from its publisher; a broken download goes on where it stopped."""
    with _downloads() as bars:
        now = obtain.download(name, watch=bars)
    _print_standing([now])
    _end(now)


@app.command("import")
def import_(name: Name, place: Annotated[Path, typer.Argument(help="a folder or an archive that holds it")]) -> None:
    """Take a data set from a folder or an archive, in any layout it is found in. Exits with 1 if it is not sound."""
    with working(console) as watch:
        now = obtain.bring(name, place, watch=watch)
    _print_standing([now])
    _end(now)


Size = Annotated[str, typer.Option(help="vkitti2: width and height, pixels")]
Scenes = Annotated[str, typer.Option(help="vkitti2: which ones, with commas between")]
Conditions = Annotated[str, typer.Option(help="vkitti2: which ones, with commas between")]
ALL_SCENES, ALL_CONDITIONS = ",".join(FRAMES), ",".join(CONDITIONS)


@app.command()
def build(
    name: Annotated[str, typer.Argument(help="syn, mnist_m or vkitti2")],
    seed: Annotated[int, typer.Option(min=0, help="decides every pixel")] = 0,
    variant: Annotated[
        syn_digits.Variant, typer.Option(help="syn: how hard to read; others than standard are sets of their own")
    ] = "standard",
    fonts: Annotated[Path | None, typer.Option(help="syn: a folder of other fonts")] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="each takes seconds to start. By default syn has 1, vkitti2 all cores")
    ] = None,
    photos: Annotated[Path | None, typer.Option(help="mnist_m: a folder of photographs")] = None,
    size: Size = "1242x375",
    scenes: Scenes = ALL_SCENES,
    conditions: Conditions = ALL_CONDITIONS,
    frames: Annotated[
        int | None, typer.Option(help="vkitti2: so many of each scene, evenly spread over it; all if left out")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="vkitti2: the folder; by default with the other data sets")] = None,
) -> None:
    """Make a data set: syn from fonts, mnist_m from MNIST and photographs, streets in the layout of Virtual KITTI 2."""
    known_as = name.replace("-", "_")
    if known_as == "syn":
        chosen = font_list.in_folder(fonts) if fonts else font_list.find()
        with working(console) as watch:
            syn_digits.build(
                data_root() / syn_digits.SETS[variant],
                seed=seed,
                variant=variant,
                fonts=chosen,
                processes=processes or 1,
                watch=lambda done: watch(Work("rendering syn", done, sum(syn_digits.COUNTS.values()))),
            )
        _print_standing([get_set(syn_digits.SETS[variant]).status(data_root())])
    elif known_as == "mnist_m":
        if photos is None:
            raise UserError("mnist_m is made of MNIST and photographs: name a folder of them with --photos FOLDER.")
        with working(console) as watch:
            now = obtain.build_mnist_m(photos, seed=seed, watch=watch)
        _print_standing([now])
    elif known_as in ("vkitti2", "vkitti2_rendered"):
        with working(console) as watch:
            made = street.build(
                out or data_root() / RENDERED,
                size=street.size_of(size),
                scenes=scenes.split(","),
                conditions=conditions.split(","),
                frames=frames,
                seed=seed,
                processes=processes,
                watch=watch,
            )
        console.print(
            f"{made.frames:,} frames of {size}, {made.new:,} of them new, in {escape(str(made.folder))}. "
            "They are rendered by metadr (docs/street.md) in the layout of Virtual KITTI 2, and are not that data set.",
            soft_wrap=True,
        )
    else:
        instead = f"Try 'metadr data fetch {known_as}'." if known_as in data_sets() else "Name one of them."
        raise UserError(f"'{name}' cannot be built; only syn, mnist_m and vkitti2 can. {instead}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="vkitti2 or syn")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the picture file")],
    size: Size = "416x128",
    scenes: Scenes = ALL_SCENES,
    conditions: Conditions = ALL_CONDITIONS,
    part: Annotated[float, typer.Option(help="which moment of a scene, from 0 to 1")] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="decides every pixel")] = 0,
) -> None:
    """Write a contact sheet of what 'metadr data build' renders: streets, or the three variants of syn."""
    if name == "syn":
        sheet = syn_sheet.contact_sheet(seed=seed)
    elif name == "vkitti2":
        sheet = street_sheet.contact_sheet(
            size=street.size_of(size), scenes=scenes.split(","), conditions=conditions.split(","), part=part, seed=seed
        )
    else:
        raise UserError(f"There is no sheet of '{name}'; vkitti2 and syn have one.")
    write_picture(output, sheet)
    console.print(f"written: {escape(str(output))}", soft_wrap=True)


@app.command("verify")
def verify_(name: SomeName = None) -> None:
    """Read every byte: checksums, images, labels, images per class. Exits with 1 if anything is wrong."""
    with working(console) as watch:
        checked = [each.verify(data_root(), watch) for each in _named(name)]
    _print_standing([each.status for each in checked])
    for each in checked:
        for file in each.files:
            console.print(f"  {each.status.name}/{file.name}: {file.verdict}", soft_wrap=True)
        if each.content:
            console.print(f"  {each.status.name}: pixels and labels {each.content[:16]}", soft_wrap=True)
    if not all(each.sound for each in checked):
        raise typer.Exit(1)


def _end(now: Status) -> None:
    """What was brought is kept even where it is not sound, but nobody is to take it for that."""
    if now.state == "broken":
        raise typer.Exit(1)


def _named(name: str | None) -> list[DataSet]:
    return list(data_sets().values()) if name is None else [get_set(name)]


def _print_standing(standings: list[Status]) -> None:
    table = Table(title=f"data in {escape(str(data_root()))}", title_justify="left")
    for column in ("name", "state", "images", "note"):
        table.add_column(column, no_wrap=column in ("name", "state"), overflow="fold")
    for each in standings:
        images = in_words(each.found, each.expected) if each.found else ""
        origin = f"{each.origin}." if each.origin and each.problems else each.origin
        note = " ".join(filter(None, (origin, *each.problems)))
        table.add_row(each.name, each.state, images, escape(note))
    console.print(table)


@contextmanager
def _downloads() -> Iterator["_Bars"]:
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _Bars(progress)


class _Bars:
    """One bar per file of a download."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, now: Download) -> None:
        if now.name not in self._bars:
            self._bars[now.name] = self._progress.add_task(now.name, total=now.total)
        self._progress.update(self._bars[now.name], completed=now.received, total=now.total)
