"""Every number of paper.csv against the paper's own LaTeX, read here by another way."""

import csv
import os
import re
from pathlib import Path

import pytest

import metadr.report.paper
from metadr.report.paper import PAPER, Published, columns_of, rows_of

REPOSITORY = Path(__file__).parents[2]
# How the titles of the paper's tabulars begin, and which tables they are; the last one lists no results.
TITLES = {
    "Digits experiment: comparison": "table1",
    "PACS experiment": "table2",
    "Digits experiment: ablation study": "table3",
    "Domain generalization MNIST models": "table4",
    "Domain generalization Sketches models": "table5",
    "Digits experiment: hyper-parameter beta": "table6",
    "Digits experiment: hyper-parameter gamma": "table7",
    "Digits experiment: hyper-parameter alpha": "table8",
    "Sem. segm. experiment: hyper-parameter beta": "table9",
    "Digits experiment: memory size": "table10",
    "Digits experiment: 24 permutations": "table11",
    "Semantic segmentation experiment": "figure4",
}
NUMBER = re.compile(r"(?P<mean>\d+\.\d+) *(?:± *(?P<spread>\d+\.\d+)|\((?P<other>\d+\.\d+)\))")
SIZE = re.compile(r"-|\d+")
TICK = "✓"
LOSSES = {("", ""): "neither", (TICK, ""): "recall", ("", TICK): "adapt", (TICK, TICK): "recall and adapt"}

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def source() -> str:
    folder = Path(os.environ.get("METADR_SHARED_PAPER", REPOSITORY.parent / "shared" / "paper"))
    texts = sorted(folder.glob("*.txt"))
    if not texts:
        pytest.skip(f"no paper: {folder} has no .txt (set METADR_SHARED_PAPER)")
    return "\n".join(text.read_text() for text in texts)


def plain(text: str) -> str:
    """A cell without its LaTeX."""
    text = text.replace(r"\metada", "Meta-DR").replace(r"\checkmark", TICK).replace(r"\pm", "±")
    text = re.sub(r"~?\\cite\{[^}]*\}", "", text)
    text = re.sub(r"\\(?:multicolumn\{\d+\}\{\w\}|color\{[\w()]+\}|rowcolor\{[^}]*\})", " ", text)
    text = re.sub(r"\\(?:cmidrule\(\w\)\{[\d-]+\}|specialrule(?:\{[^}]*\}){3}|(?:top|mid|bottom)rule)", " ", text)
    text = re.sub(r"\\(?:textbf|mathbf|mathcal|footnotesize)\b", " ", text)
    text = re.sub(r"\\(alpha|beta|gamma)", r"\1", text)
    text = re.sub(r"[{}$~]", " ", text)
    return " ".join(text.split())


def tabulars(source: str) -> dict[str, list[list[str]]]:
    """By table, the rows of its tabular as plain cells, without the title."""
    found = {}
    for body in re.findall(r"\\begin\{tabular\}\{@\{\}\w+@\{\}\}(.*?)\\end\{tabular\}", source, flags=re.DOTALL):
        rows = [[plain(cell) for cell in line.split("&")] for line in body.split(r"\\")]
        (title,), *rows = [row for row in rows if any(row)]
        if title in TITLES:
            assert not any("\\" in cell for row in rows for cell in row), title
            found[TITLES[title]] = rows
    return found


def method(name: str) -> str:
    """A method as the tables of this project call it."""
    return re.sub(r"^Oracle \(cumul\.?\)$", "Oracle (cumul.)", name)


def read(rows: list[list[str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """(row, column) -> (mean, spread), as printed."""
    cells: dict[tuple[str, str], tuple[str, str]] = {}
    protocols: list[str] = []
    heads: list[str] = []
    last = ""
    for row in rows:
        numbers = [match for cell in row if (match := NUMBER.fullmatch(cell))]
        if not numbers:
            named = [cell for cell in row if re.fullmatch(r"(?:Training )?Protocol:? P\d", cell)]
            if named:
                protocols = [cell[-2:] for cell in named] if ":" not in named[0] else []
            else:
                heads = [re.sub(r" ?\(\d\)$", "", cell) for cell in row]
                heads = [head for head in heads if head and head not in ("Method", "Methods", "M.size", "M. size")]
                heads = [head for head in heads if not re.match("L *_", head)]
            continue
        label, *rest = row
        if (label, rest[0]) in LOSSES:
            name = LOSSES[label, rest[0]]
        else:
            last = name = method(label.replace("w/o", "without").replace("w/ ", "with ").replace("=", " = ") or last)
            if SIZE.fullmatch(rest[0]) and rest[0] != "-":
                name = f"{name}, M = {rest[0]}"
        assert len(numbers) == len(heads), row
        each = len(heads) // max(len(protocols), 1)
        for place, (head, match) in enumerate(zip(heads, numbers, strict=True)):
            column = f"{protocols[place // each]} {head}" if protocols else head
            assert (name, column) not in cells
            cells[name, column] = (match["mean"], match["spread"] or match["other"])
    return cells


def test_every_cell_of_the_paper_is_here_and_nothing_else(source: str) -> None:
    found = {table: read(rows) for table, rows in tabulars(source).items()}
    assert set(found) == set(TITLES.values()) == set(PAPER)
    for table, cells in found.items():
        wanted = {
            place: Published(float(mean), float(spread), len(mean.partition(".")[2]))
            for place, (mean, spread) in cells.items()
        }
        assert wanted == PAPER[table], table
        assert list(dict.fromkeys(row for row, _ in cells)) == rows_of(table)
        assert list(dict.fromkeys(column for _, column in cells)) == columns_of(table)
    assert sum(map(len, found.values())) == source.count(r"\pm") + len(found["table11"])


def test_every_number_was_read_once() -> None:
    lines = (Path(metadr.report.paper.__file__).with_name("paper.csv")).read_text().splitlines()
    assert len(lines) - 1 == len({tuple(line[:3]) for line in csv.reader(lines[1:])}) == sum(map(len, PAPER.values()))
