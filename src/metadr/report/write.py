"""Write a report's files: Markdown, CSV, figures, and the records they were made from."""

import io
import json
from pathlib import Path

from metadr.errors import UserError
from metadr.files import write_file
from metadr.report.figures import sequence_figure
from metadr.report.records import Record
from metadr.report.tables import Group, csv_table, group, markdown


def write_report(records: list[Record], stem: str | Path, *, ddof: int = 1) -> list[Path]:
    """Write STEM.md, STEM.csv, STEM.json and a figure per sequence of domains; returns what was written."""
    stem = Path(stem)
    sequences = group(records)
    figures = [
        (title, groups, stem.with_name(stem.name + (f"-{i}" if i else "") + ".png"))
        for i, (title, groups) in enumerate(sequences.items())
    ]
    text = "\n".join(
        f"## {title}\n\n{markdown(groups, ddof=ddof)}\n![score along the sequence]({path.name})\n"
        for title, groups, path in figures
    )
    written = {
        stem.with_name(stem.name + ".md"): (text + "\n" + _footer(records)).encode(),
        stem.with_name(stem.name + ".csv"): csv_table(records).encode(),
        stem.with_name(stem.name + ".json"): _one_per_line(records).encode(),
        **{path: _png(groups, ddof) for _, groups, path in figures},
    }
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write the report {stem}: {error.strerror}. Choose another place with -o.") from error
    for path, content in written.items():
        write_file(path, content)
    return list(written)


def _png(groups: list[Group], ddof: int) -> bytes:
    image = io.BytesIO()
    sequence_figure(groups, ddof=ddof).savefig(image, format="png", dpi=130)
    return image.getvalue()


def _one_per_line(records: list[Record]) -> str:
    """One run a line, so that a changed run is a changed line."""
    return "[\n" + ",\n".join(json.dumps(record._asdict(), sort_keys=True) for record in records) + "\n]\n"


def _footer(records: list[Record]) -> str:
    """How to read the table, and what it was made with."""
    made = sorted({record.made_with for record in records})
    minutes = sum(record.seconds for record in records) / 60
    return (
        "Score on each domain's test images at the end of the sequence, in percent, mean ± standard deviation over n "
        "seeds. ACC: mean over all domains; kept: mean over all but the last; BWT: kept less what it was right after "
        "training on each; FWT: score before training on a domain, over an untrained model's; forgetting: best so far "
        "less final.\n\n"
        f"{len(records)} runs, {minutes:.1f} minutes in all, on {'; '.join(made)}.\n"
    )
