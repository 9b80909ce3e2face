"""A comparison with the paper as Markdown, CSV and LaTeX."""

import csv
import io
import re

from metadr.report.comparison import Cell, Comparison
from metadr.report.grid import markdown_grid

LINES = ("ours", "paper", "difference")
NOT_PRINTED = "-"
MADE_HERE = {"SYN": "SYN is rendered here, not Ganin's"}  # by column
STAND_INS = {"vkitti2-rendered": "scenes are rendered here, not Virtual KITTI 2's"}  # by benchmark
HOW_TO_READ = "Score on each domain's {} images at the end of the sequence, in percent"
MEAN = ": mean ± standard deviation (number of runs)"
BESIDE_THE_PAPER = f"{MEAN}; the paper's mean ± spread; ours less the paper's"


def markdown_comparison(made: Comparison) -> str:
    """Three lines a row: ours, the paper's, the difference, where it has any; of a grid a line a point. Then notes."""
    if any(row.point for row in made.table.rows):
        return f"## {_title(made)}\n\n" + "\n\n".join([markdown_grid(made, MADE_HERE), *_notes(made)]) + "\n"
    head = ["method", "", *made.columns]
    rule = ["---", "---", *["---:"] * len(made.columns)]
    lines = "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *_body(made)))
    return f"## {_title(made)}\n\n{lines}\n\n" + "\n\n".join(_notes(made)) + "\n"


def csv_comparison(made: Comparison) -> str:
    """One line a cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["table", "row", "column", "ours", "spread", "n", "wanted", "paper", "paper_spread", "difference", "note"]
    writer.writerow(head)
    stand_in = STAND_INS.get(made.table.recipes[0].benchmark, "")
    for (row, column), cell in made.cells.items():
        ours = [_number(cell.mean), _number(cell.spread), len(cell.values), cell.wanted]
        paper = ["", ""] if cell.paper is None else [f"{cell.paper.mean:.{cell.paper.places}f}", cell.paper.spread]
        note = next((text for domain, text in MADE_HERE.items() if domain in column.split()), stand_in)
        writer.writerow([made.table.name, row, column, *ours, *paper, _number(cell.difference), note])
    return text.getvalue()


def tex_comparison(made: Comparison) -> str:
    """A table environment that needs no package."""
    columns = " & ".join(_tex(column) for column in made.columns)
    rows = _body(made)
    last = rows[-1][1]  # the line that ends a row of the table
    body = [" & ".join(map(_tex, row)) + r" \\" + (r" \hline" if row[1] == last else "") for row in rows]
    notes = " ".join([f"{_title(made)}.", *_notes(made)])
    return "\n".join(
        [
            "% Made by metadr. Needs no package; wide tables fit a page that is turned.",
            r"\begin{table}",
            r"\centering",
            r"\scriptsize",
            r"\setlength{\tabcolsep}{2pt}",
            rf"\begin{{tabular}}{{ll{'r' * len(made.columns)}}}",
            r"\hline",
            rf"method & & {columns} \\ \hline",
            *body,
            r"\end{tabular}",
            rf"\caption{{{_tex(notes)}}}",
            r"\end{table}",
            "",
        ]
    )


def _body(made: Comparison) -> list[list[str]]:
    rows, printed = [], any(cell.paper for cell in made.cells.values())
    for row in made.rows:
        cells = [made.cells.get((row, column)) for column in made.columns]
        rows.append([row, LINES[0], *(NOT_PRINTED if cell is None else cell.ours for cell in cells)])
        if printed:
            rows.append(["", LINES[1], *(map(_paper, cells))])
            rows.append(["", LINES[2], *(map(_difference, cells))])
    return rows


def _paper(cell: Cell | None) -> str:
    return NOT_PRINTED if cell is None or cell.paper is None else str(cell.paper)


def _difference(cell: Cell | None) -> str:
    return NOT_PRINTED if cell is None or cell.difference is None else f"{cell.difference:+z.1f}"


def _notes(made: Comparison) -> list[str]:
    held_out = {dict(recipe.data).get("test_on") for recipe in made.table.recipes} == {"val"}
    how = HOW_TO_READ.format("held-out training" if held_out else "test")
    cells = made.cells.values()
    beside = (
        BESIDE_THE_PAPER
        if any(each.paper for each in cells)
        else MEAN
        if any(each.wanted > 1 for each in cells)
        else ""
    )
    return [f"{how}{beside}.", *made.notes, _made_with(made)]


def _title(made: Comparison) -> str:
    return f"{made.table.name}: {made.table.about}"


def _made_with(made: Comparison) -> str:
    records = made.records
    if not records:
        return f"No finished run of this table: 'metadr sweep {made.table.name}' runs it."
    hours = sum(record.seconds for record in records) / 3600
    where = "; ".join(sorted({record.made_with for record in records}))
    wanted = sum(map(len, made.table.seeds_of.values()))
    found = sum(map(len, made.runs.values()))
    count = f"{len(records)} runs in {found} of {wanted} places" if made.shared else f"{found} of {wanted} runs"
    return f"{count}, {hours:.1f} hours of runs (those side by side count each), on {where}."


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
}


def _tex(text: str) -> str:
    """Text as LaTeX: signs escaped, numbers with a proper minus."""
    text = "".join(TEX.get(sign, sign) for sign in text)
    return re.sub(r"^([+-])(\d+\.\d+)$", r"$\1\2$", text)
