"""What the tests of results share: tables that pages show, and runs that were tested again."""

import itertools
import json
from pathlib import Path

import pytest

from metadr.rescore import Rescored

ROOT = Path(__file__).parents[3]


@pytest.fixture
def shown_below():
    """The rows of a table below a marker of a page, cell by cell."""

    def shown_below(marker, page):
        lines = page.partition(f"<!-- {marker} -->\n")[2].splitlines()
        shown = [line.strip("|").split("|") for line in itertools.takewhile(lambda line: line.startswith("|"), lines)]
        return [[cell.strip() for cell in line] for line in shown[2:]]

    return shown_below


@pytest.fixture
def rescored():
    """The runs of a file of results/ that were tested again."""

    def rescored(name):
        path = ROOT / "results" / f"{name}.json"
        return [Rescored(path, each["identity"], each["before"], each["rows"]) for each in json.loads(path.read_text())]

    return rescored
