"""The commands for speed: parse, measure, print."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from metadr import listing, settings
from metadr.cli_report import print_written
from metadr.core import Training
from metadr.errors import unknown
from metadr.files import write_file
from metadr.settings import assignments

app = typer.Typer(help="Measure speed against what users could pick instead.", no_args_is_help=True)
console = Console(highlight=False, width=None if Console().is_terminal else 120)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="change a setting")]


@app.command("transforms")
def bench_transforms(
    transforms: Annotated[str, typer.Option("--set", help="transformation set")] = "psi3",
    batch: Annotated[int, typer.Option(min=1, help="images in a batch")] = 64,
    repeats: Annotated[int, typer.Option(min=3, help="measurements of each")] = 15,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="JSON file to write")] = None,
) -> None:
    """Time a batch of transformations against PIL, one image at a time."""
    from metadr.bench.transforms import bench_transforms as measure

    measured = measure(set_name=transforms, batch=batch, repeats=repeats)
    console.print(listing.transform_speeds(measured))
    _keep(measured, output)


@app.command("step")
def bench_step(
    method: Annotated[list[str] | None, typer.Option(help="naive, dr or meta-dr; all unless given")] = None,
    benchmark: Annotated[str | None, typer.Option(help="whose settings and kind of labels, such as vkitti2")] = None,
    model: Annotated[str | None, typer.Option(help="network; the benchmark's, or resnet18, unless given")] = None,
    size: Annotated[
        str | None,
        typer.Option(metavar="SIDE|WIDTHxHEIGHT", help="of the images; the benchmark's, or 32, unless given"),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="images in a batch; the benchmark's, or 64, unless given")
    ] = None,
    precision: Annotated[list[str] | None, typer.Option(help="fp32, tf32 or bf16; fp32 unless given")] = None,
    lanes: Annotated[list[int] | None, typer.Option(min=1, help="runs side by side; 1 unless given")] = None,
    peers: Annotated[bool, typer.Option(help="measure plain autograd and `higher` too, where it is installed")] = True,
    recompute: Annotated[bool, typer.Option("--recompute", help="measure ours with recompute=true too")] = False,
    nondeterministic: Annotated[
        bool, typer.Option("--nondeterministic", help="measure ours with deterministic=false too")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="steps in a measurement")] = 20,
    repeats: Annotated[int, typer.Option(min=2, help="measurements of each")] = 5,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="JSON file to write")] = None,
) -> None:
    """Time a training step against plain autograd and the library `higher`."""
    from metadr.bench.step import METHODS
    from metadr.bench.step import bench_step as measure

    for name in method or []:
        if name not in METHODS:
            raise unknown("method", name, METHODS, within=" in 'metadr bench step'")
    precisions = tuple(settings.parse(Training, "precision", name) for name in precision or ("fp32",))
    measured = measure(
        method or METHODS,
        benchmark=benchmark,
        model=model,
        size=size,
        batch=batch,
        precisions=precisions,
        lanes=lanes or (1,),
        peers=peers,
        variants=[*(["recomputed"] if recompute else []), *(["not deterministic"] if nondeterministic else [])],
        steps=steps,
        repeats=repeats,
        device=device,
        so_far=lambda known: _write_json(known, output),
    )
    console.print(listing.step_speeds(measured))
    for each in measured["left_out"]:
        told = "{method}, {precision}, {contender}: left out, it cannot take this step: {reason}".format(**each)
        console.print(told, soft_wrap=True, markup=False)
    _keep(measured, output)


@app.command("fisher")
def bench_fisher(
    model: Annotated[str, typer.Option(help="network")] = "resnet18",
    size: Annotated[int, typer.Option(min=8, help="side of the images")] = 32,
    images: Annotated[int, typer.Option(min=1, help="images that the Fisher is of")] = 2000,
    peers: Annotated[bool, typer.Option(help="measure torch.func too")] = True,
    repeats: Annotated[int, typer.Option(min=2, help="measurements of each")] = 3,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="JSON file to write")] = None,
) -> None:
    """Time EWC's Fisher against gradients of single images by torch.func."""
    from metadr.bench.fisher import bench_fisher as measure

    measured = measure(model=model, size=size, images=images, peers=peers, repeats=repeats, device=device)
    console.print(listing.fisher_speeds(measured))
    _keep(measured, output)


@app.command("precision")
def bench_precision(
    recipe: Annotated[str, typer.Argument(help="benchmark and protocol; its first domain is trained on")] = "embedded",
    method: Annotated[str, typer.Option(help="a sum of parts, such as ewc+dr")] = "meta-dr",
    at: Annotated[list[int] | None, typer.Option(min=0, help="steps to stop at")] = None,
    set_: Set = None,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="JSON file to write")] = None,
) -> None:
    """Say how far gradients are off in each precision, against float64, along a training run."""
    from metadr.bench.precision import STOPS
    from metadr.bench.precision import bench_precision as measure

    measured = measure(recipe, method, at=at or STOPS, device=device, fields=assignments(set_ or []))
    console.print(listing.precision_errors(measured))
    _keep(measured, output)


@app.command("sweep")
def bench_sweep(
    method: Annotated[str, typer.Option(help="a sum of parts, such as ewc+dr")] = "meta-dr",
    runs: Annotated[int, typer.Option(min=1, help="seeds in each sweep")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="gradient steps a domain")] = 100,
    model: Annotated[str, typer.Option(help="network")] = "resnet18",
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16")] = "fp32",
    lanes: Annotated[int, typer.Option(min=1, help="runs side by side")] = 16,
    repeats: Annotated[int, typer.Option(min=1, help="measurements of each sweep but the first run")] = 2,
    device: Device = "auto",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="JSON file to write")] = None,
) -> None:
    """Time a whole sweep, from loading to the last test: in lanes, one run after another, and by others' loops."""
    from metadr.bench.sweep import bench_sweep as measure

    measured = measure(
        method,
        runs=runs,
        steps=steps,
        model=model,
        precision=precision,
        lanes=lanes,
        repeats=repeats,
        device=device,
        so_far=lambda known: _write_json(known, output),
    )
    console.print(listing.sweep_speeds(measured))
    for name, reason in measured["left_out"].items():
        console.print(f"{name}: left out, {reason}", soft_wrap=True, markup=False)
    _keep(measured, output)


def _keep(measured: dict[str, Any], output: Path | None) -> None:
    """Write what was measured, where that is wanted, and say so."""
    _write_json(measured, output)
    print_written([output] if output else [])


def _write_json(measured: dict[str, Any], output: Path | None) -> None:
    if output:
        write_file(output, (json.dumps(measured, indent=1) + "\n").encode())
