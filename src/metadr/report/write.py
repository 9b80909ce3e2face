"""Write a report's files: Markdown, CSV, LaTeX, figures, and the records they were made from."""

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from matplotlib.figure import Figure

from metadr.errors import UserError
from metadr.files import write_file
from metadr.report.classes import markdown_classes
from metadr.report.comparison import Comparison
from metadr.report.figure3 import digits_figure
from metadr.report.figure4 import clean_figure
from metadr.report.figure5 import styles_figure
from metadr.report.figures import sequence_figure
from metadr.report.records import Record, pack_records
from metadr.report.render import csv_comparison, markdown_comparison, tex_comparison
from metadr.report.tables import Group, csv_table, group, markdown

Format = Literal["md", "csv", "tex", "json", "png", "pdf"]
RENDERED = ("streets", "vkitti2-rendered")
TEXTS: dict[str, Callable[[Comparison], str]] = {
    "md": markdown_comparison,
    "csv": csv_comparison,
    "tex": tex_comparison,
    "json": lambda made: pack_records(made.records),
}
FIGURES: dict[str, Callable[[Comparison], Figure]] = {
    "figure3": digits_figure,
    "figure3-weights": digits_figure,
    "figure4": clean_figure,
    "vkitti2-rendered": clean_figure,
}
PICTURES: dict[str, Callable[[], Figure]] = {"figure5": styles_figure}  # of data alone, without a run


def write_report(records: list[Record], stem: str | Path, *, ddof: int = 1) -> list[Path]:
    """Write STEM.md, STEM.csv, STEM.json and a figure per sequence of domains; returns what was written."""
    stem = Path(stem)
    sequences = group(records)
    figures = [
        (title, groups, stem.with_name(stem.name + (f"-{i}" if i else "") + ".png"))
        for i, (title, groups) in enumerate(sequences.items())
    ]
    text = "\n".join(
        "\n".join([f"## {title}\n", *_tables(groups, ddof), f"![score along the sequence]({path.name})\n"])
        for title, groups, path in figures
    )
    written = {
        stem.with_name(stem.name + ".md"): (text + "\n" + _footer(records)).encode(),
        stem.with_name(stem.name + ".csv"): csv_table(records).encode(),
        stem.with_name(stem.name + ".json"): _one_per_line(records).encode(),
        **{path: _png(groups, ddof) for _, groups, path in figures},
    }
    return _write(written)


def _tables(groups: list[Group], ddof: int) -> list[str]:
    """Scores and, of runs on masks, classes."""
    return [table for table in (markdown(groups, ddof=ddof), markdown_classes(groups, ddof=ddof)) if table]


def rendered(made: Comparison, kind: Format) -> bytes:
    """A comparison with the paper as a file of some kind; a picture only of what is a figure."""
    return TEXTS[kind](made).encode() if kind in TEXTS else _drawn(FIGURES[made.table.name](made), kind)


def write_picture(name: str, path: Path, kind: Format) -> list[Path]:
    """Write a figure that needs no run."""
    return _write({path: _drawn(PICTURES[name](), kind)})


def _drawn(figure: Figure, kind: Format) -> bytes:
    image = io.BytesIO()
    undated = {"CreationDate": None} if kind == "pdf" else None  # the same runs, the same bytes
    figure.savefig(image, format=kind, dpi=130, metadata=undated)
    return image.getvalue()


def write_comparison(made: Comparison, files: Mapping[Path, Format]) -> list[Path]:
    """Write a comparison with the paper to files of some kinds."""
    return _write({path: rendered(made, kind) for path, kind in files.items()})


def every_format(made: Comparison, stem: Path) -> dict[Path, Format]:
    """A file for each kind that a table has."""
    kinds: tuple[Format, ...] = ("md", "csv", "tex", "json")
    kinds = (*kinds, "png", "pdf") if made.table.name in FIGURES else kinds
    return {stem.with_name(f"{stem.name}.{kind}"): kind for kind in kinds}


def _write(files: Mapping[Path, bytes]) -> list[Path]:
    for path, content in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"Cannot write the report {path}: {error.strerror}. Choose another place with -o."
            ) from error
        write_file(path, content)
    return list(files)


def _png(groups: list[Group], ddof: int) -> bytes:
    image = io.BytesIO()
    sequence_figure(groups, ddof=ddof).savefig(image, format="png", dpi=130)
    return image.getvalue()


def _one_per_line(records: list[Record]) -> str:
    """One run a line, so that a changed run is a changed line."""
    parts = ("identity", "environment", "seconds", "rows")
    kept = [{name: getattr(record, name) for name in parts} for record in records]
    return "[\n" + ",\n".join(json.dumps(each, sort_keys=True) for each in kept) + "\n]\n"


def _footer(records: list[Record]) -> str:
    """How to read the table, and what it was made with."""
    made = sorted({record.made_with for record in records})
    streets = any(record.identity["benchmark"] in RENDERED for record in records)
    rendered = "The streets are rendered here: simple scenes, not photographs.\n\n" if streets else ""
    minutes = sum(record.seconds for record in records) / 60
    return (
        "Score on each domain's test images at the end of the sequence, in percent, mean ± standard deviation over n "
        "seeds. ACC: mean over all domains; kept: mean over all but the last; BWT: kept less what it was right after "
        "training on each; FWT: score before training on a domain, over an untrained model's; forgetting: best so far "
        f"less final.\n\n{rendered}"
        f"{len(records)} runs, {minutes:.1f} minutes in all, on {'; '.join(made)}.\n"
    )
