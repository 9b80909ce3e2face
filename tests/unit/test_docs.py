"""The pages under docs/ say what the code does: fields, defaults, readings, commands, links and test files."""

import dataclasses
import itertools
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

from metadr import settings
from metadr.benchmarks import BENCHMARKS, RECIPE_FIELDS, data_fields, make_recipe
from metadr.core import Recipe, Training
from metadr.models import FROM_A_FILE
from metadr.parts import PARTS as REGISTERED
from metadr.recipes import TABLES, get_table

# Another test may have registered a part of its own.
PARTS = {name: part for name, part in REGISTERED.items() if part.__module__.startswith("metadr.")}
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROTOCOL = DOCS / "protocol.md"
PAGES = sorted([*DOCS.glob("*.md"), *DOCS.glob("methods/*.md"), *ROOT.glob("README.md")])
NUM_READINGS = 44


def page_of(part: str) -> Path:
    return DOCS / "methods" / f"{part.replace('-', '_')}.md"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables(path: Path) -> list[list[list[str]]]:
    """The Markdown tables of a page: a head and its rows, each a list of cells; fenced code is left out."""
    found: list[list[list[str]]] = []
    before = ""
    for line in prose(path).splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                found.append([])
            found[-1].append(cells(line))
        before = line
    return [[head, *rows] for head, _, *rows in found]


def prose(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def fields_table(path: Path) -> dict[str, dict[str, str]]:
    """The rows of a page's table of fields, by the field's name; each a mapping from column to cell."""
    (table,) = [table for table in tables(path) if table[0][:2] == ["field", "default"]]
    head, *rows = table
    assert all(len(row) == len(head) for row in rows)
    names = [row[0].strip("`") for row in rows]
    assert len(set(names)) == len(names)
    return {name: dict(zip(head, row, strict=True)) for name, row in zip(names, rows, strict=True)}


def documented(owner: type) -> dict[str, dataclasses.Field]:
    return {field.name: field for field in dataclasses.fields(owner) if "doc" in field.metadata}


def anchors(path: Path) -> set[str]:
    """The names by which a page's headings can be linked to, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", PARTS)
def test_page_of_a_part_has_its_fields_with_the_defaults_of_the_code(name: str) -> None:
    part = PARTS[name]
    table = fields_table(page_of(name))
    assert list(table) == [f"{name}.{field}" for field in settings.names(part)]
    for field in dataclasses.fields(part):
        row = table[f"{name}.{field.name}"]
        assert row["default"] == str(field.default)
        assert row["allowed"] == settings.describe(part, field.name)
        assert row["meaning"]


def test_protocol_has_the_fields_of_recipe_and_training() -> None:
    table = fields_table(PROTOCOL)
    assert list(table) == [*documented(Recipe), *documented(Training)]
    for owner in (Recipe, Training):
        for name, field in documented(owner).items():
            assert table[name]["default"] == str(field.default)
            assert table[name]["allowed"] == settings.describe(owner, name)


def test_protocol_shows_how_the_embedded_benchmark_trains() -> None:
    table = fields_table(PROTOCOL)
    recipe, training = make_recipe("embedded"), BENCHMARKS["embedded"].training
    for name, row in table.items():
        owner = training if name in settings.names(Training) else recipe
        assert row["embedded"] == str(getattr(owner, name)), name


def test_page_of_the_data_has_the_fields_of_the_benchmarks() -> None:
    head = ["field", "default", "meaning"]
    rows = [row for table in tables(DOCS / "data.md") if table[0] == head for row in table[1:]]
    fields = {
        f"`{name}.{field.name}`": str(field.default)
        for name in ("digits", "pacs", "vkitti2", "folder")
        for field in dataclasses.fields(BENCHMARKS[name].settings)
    }
    assert {field: default for field, default, _ in rows} == fields
    assert len(rows) == len(fields) and all(meaning for *_, meaning in rows)


@pytest.mark.parametrize("name", ["naive", "oracles"])
def test_page_of_what_is_no_part(name: str) -> None:
    assert page_of(name).is_file()


@pytest.mark.parametrize("path", sorted(DOCS.glob("methods/*.md")), ids=lambda path: path.stem)
def test_page_of_a_method_is_complete(path: Path) -> None:
    text = path.read_text()
    assert path.stem in {page_of(name).stem for name in [*PARTS, "naive", "oracles"]}
    assert "Cost per step" in text
    assert "metadr run embedded --method" in text
    assert any(table[0] == ["paper", "here"] for table in tables(path))
    verified, deviations = text.split("## How it is verified")[1].split("## Readings and deviations")
    assert "tests/" in verified
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", deviations, flags=re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers
    rows = {int(row) for rows in re.findall(r"rows? ([\d, and to]+)", deviations) for row in re.findall(r"\d+", rows)}
    assert rows
    assert rows <= set(range(1, NUM_READINGS + 1))


def readings() -> list[list[str]]:
    (table,) = [table for table in tables(PROTOCOL) if table[0][0] == "#"]
    assert table[0] == ["#", "question", "what metadr does by default", "field", "evidence", "confidence"]
    return table[1:]


def test_every_reading_is_a_row() -> None:
    assert [row[0] for row in readings()] == [str(number) for number in range(1, NUM_READINGS + 1)]
    assert all(len(row) == 6 and all(row) for row in readings())
    assert {row[5] for row in readings()} <= {"H", "M-H", "M", "L", "-"}


def test_every_reading_names_fields_that_exist_or_says_why_there_is_none() -> None:
    known = {f"{name}.{field}" for name, part in PARTS.items() for field in settings.names(part)}
    known |= {*RECIPE_FIELDS, *settings.names(Training)}
    known |= {f"{name}.{field}" for name, each in BENCHMARKS.items() for field in data_fields(each)}
    for number, _, _, field, *_ in readings():
        named = re.findall(r"`([^`]+)`", field)
        modules = [name for name in named if name.startswith("metadr.")]
        arguments = ["ddof"] if modules else []
        for name in modules:
            assert pkgutil.resolve_name(name)
        assert set(named) - set(modules) - set(arguments) <= known, number
        assert named or field.startswith("fixed") or re.search(r"comes? with the \w+ benchmark", field), number


def test_every_setting_is_in_the_table_of_readings_or_has_a_page() -> None:
    text = PROTOCOL.read_text()
    for name, part in PARTS.items():
        pages = text + page_of(name).read_text()
        assert all(f"`{name}.{field}`" in pages for field in settings.names(part))
    for owner in (Recipe, Training):
        assert all(f"`{field}`" in text for field in documented(owner))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), f"{path.name} links to {target}"
        assert not anchor or anchor in anchors(place), f"{path.name} links to {target}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_test_files_that_are_named_exist(path: Path) -> None:
    for name in re.findall(r"tests/[\w/]+\.py", path.read_text()):
        assert (ROOT / name).is_file(), f"{path.name} names {name}"


def run_commands() -> list[tuple[str, str]]:
    """Every `metadr run` of the pages, outside the options that no recipe needs."""
    found = [
        (path.name, line)
        for path in PAGES
        for line in re.findall(r"^metadr run ([^\n#]*)", path.read_text(), flags=re.MULTILINE)
    ]
    assert found
    return found


@pytest.mark.parametrize(("page", "command"), run_commands(), ids=lambda text: text)
def test_commands_that_are_named_make_a_recipe(page: str, command: str, own_images: Path) -> None:
    """The recipe, the method and every --set are known; `metadr run` itself is tested elsewhere."""
    recipe, *rest = shlex.split(re.split(r"\s{2,}", command.strip())[0])
    options = [(name, value) for name, value in itertools.pairwise(rest) if name.startswith("--")]
    method = dict(options).get("--method", "naive")
    fields = dict(value.split("=", 1) for name, value in options if name == "--set")
    fields |= {name.removeprefix("--"): value for name, value in options if name in ("--order", "--model")}
    fields |= {"root": str(own_images)} if "--data" in dict(options) else {}
    fields |= {"weights": FROM_A_FILE} if "--weights" in dict(options) else {}
    assert make_recipe(recipe, method, **fields)


def test_protocol_counts_the_runs_of_every_table() -> None:
    (rows,) = [rows for head, *rows in tables(PROTOCOL) if head == ["table", "what", "runs"]]
    told = {}
    for named, _, runs in rows:
        names, counts = re.findall(r"`([a-z0-9-]+)`", named), [int(count) for count in re.findall(r"\d+", runs)]
        told.update(zip(names, counts * (len(names) if "each" in runs else 1), strict=True))
    assert told.pop("figure5") == 0
    assert told == {name: sum(map(len, get_table(name).seeds_of.values())) for name in told}
    untold = {"demo", "demo-segmentation", "embedded", "precision"}
    assert {name for name in TABLES if not name.startswith(("calibration", "strengths"))} - untold == set(told)
