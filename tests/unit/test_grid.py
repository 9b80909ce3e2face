"""Grids of settings: every point by its distance from the paper, and what a setting does on average."""

import json
import math

import pytest

from metadr.core import Recipe
from metadr.recipes import Table, get_table
from metadr.report import Record, compare, rendered
from metadr.report.paper import PAPER
from metadr.store import description

ENVIRONMENT = {"gpu": "abacus", "threads": 2, "torch": "2.0", "metadr": "0.1", "commit": "c0ffee", "dirty": False}
PRINTED = {
    row: [PAPER["table4"][row, column].mean for column in ("MNIST-M", "SYN", "SVHN")]
    for row in ("without DR", "with DR")
}


def finished(recipe: Recipe, scores: list[float], data: str) -> Record:
    values = {"mnist": 99.0, **dict(zip(("mnist_m", "syn", "svhn"), scores, strict=True))}
    rows = [
        {"after": after, "on": on, "metric": "accuracy", "value": value, "images": 100}
        for after in ("untrained", "mnist")
        for on, value in values.items()
    ]
    return Record(json.loads(json.dumps({**description(recipe), "data": data, "seed": 0})), ENVIRONMENT, 36.0, rows)


@pytest.fixture(scope="module")
def table() -> Table:
    return get_table("calibration4")


def lines_of(text: str, first: str) -> list[list[str]]:
    """The cells of the lines that begin so."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith(f"| {first} |")
    ]


def test_every_point_is_one_run_of_its_own(table):
    assert len(table.rows) == len(table.recipes) == 12 + 48
    assert len({json.dumps(description(recipe)) for recipe in table.recipes}) == 60
    assert {row.paper for row in table.rows} == set(PRINTED)
    held_out = {"digits/p2", "pacs"}
    assert all(recipe.benchmark == "digits" and recipe.order == ("mnist",) for recipe in table.recipes), held_out


def test_points_are_told_apart_by_how_their_data_were_read(table):
    """Two readings of the data have two fingerprints: each run goes into its own row, and none is refused for that."""
    rows = [row for row in table.rows if row.paper == "without DR"]
    runs = [finished(row.recipes[0], [10.0 + n, 0.0, 0.0], f"read {n % 6}") for n, row in enumerate(rows)]
    made = compare(table, runs)
    assert [made.cells[row.title, "MNIST-M"].mean for row in rows] == [10.0 + n for n in range(12)]


def test_the_nearest_point_comes_first_and_the_missing_ones_last(table):
    rows = [row for row in table.rows if row.paper == "with DR"]
    far = {5: 1.0, 20: 30.0, 40: 4.0}
    runs = [
        finished(rows[n].recipes[0], [PRINTED["with DR"][0] + off, 3.0, PRINTED["with DR"][2] - off], "read")
        for n, off in far.items()
    ]
    text = rendered(compare(table, runs), "md").decode().partition("### with DR")[2]
    points = [line.split(" | ") for line in text.partition("\n\n| setting")[0].splitlines() if line.startswith("| one")]
    assert len(points) == 48
    assert [point[-1].removesuffix(" |") for point in points[:4]] == ["1.0", "4.0", "30.0", "-"]
    assert " | ".join(points[0]).startswith("| " + " | ".join(value for _, value in rows[5].point))
    assert all("missing" in " ".join(point) for point in points[3:])


def test_syn_judges_no_point_because_it_is_rendered_here(table):
    row = next(row for row in table.rows if row.paper == "with DR")
    near = [PRINTED["with DR"][0], 0.0, PRINTED["with DR"][2]]
    text = rendered(compare(table, [finished(row.recipes[0], near, "read")]), "md").decode()
    assert lines_of(text, row.point[0][1])[0][-1] == "0.0"
    assert "Distances are over MNIST-M and SVHN." in text


def test_the_mean_over_a_setting_leaves_out_what_is_missing(table):
    rows = [row for row in table.rows if row.paper == "without DR" and dict(row.point)["28x28 to 32x32"] == "pad"][:2]
    runs = [
        finished(row.recipes[0], [PRINTED["without DR"][0] + off, 50.0, PRINTED["without DR"][2]], "read")
        for row, off in zip(rows, (2.0, 4.0), strict=True)
    ]
    text = rendered(compare(table, runs), "md").decode().partition("### with DR")[0]
    [pad] = [line for line in lines_of(text, "28x28 to 32x32") if line[1] == "pad"]
    mean = PRINTED["without DR"][0] + 3.0
    assert pad[2:] == ["2", f"{mean:.1f}", "50.0", f"{PRINTED['without DR'][2]:.1f}", f"{math.sqrt(3.0**2 / 2):.1f}"]
    [lanczos] = [line for line in lines_of(text, "28x28 to 32x32") if line[1] == "lanczos"]
    assert lanczos[2:] == ["0", "-", "-", "-", "-"]


def test_how_far_the_others_move_with_syn():
    """Differences are from the usual rendering of the same method; what moves on SYN itself does not count."""
    table = get_table("syn-sensitivity")
    assert [row.part for row in table.rows] == ["Naive"] * 3 + ["Naive + DR"] * 3 + ["Meta-DR"] * 3
    assert {row.recipes[0] for row in table.rows[::3]} <= set(get_table("table1").recipes)

    def run(row: int, **scores: float) -> Record:
        recipe = table.rows[row].recipes[0]
        rows = [
            {"after": after, "on": on, "metric": "accuracy", "value": scores[on], "images": 100}
            for after in ("untrained", *recipe.order)
            for on in recipe.order
        ]
        identity = json.loads(json.dumps({**description(recipe), "data": f"read {row % 3}", "seed": 0}))
        return Record(identity, ENVIRONMENT, 36.0, rows)

    usual = run(0, mnist=80.0, mnist_m=60.0, syn=90.0, svhn=85.0)
    hard = run(2, mnist=83.0, mnist_m=60.0, syn=40.0, svhn=81.0)
    alone = run(8, mnist=1.0, mnist_m=2.0, syn=3.0, svhn=4.0)  # of Meta-DR, whose usual run is missing
    text = rendered(compare(table, [usual, hard, alone]), "md").decode()
    assert lines_of(text, "as usual")[0][1:] == ["80.0", "60.0", "90.0", "85.0", "0.0"]
    assert lines_of(text, "easier to read")[0][1:] == ["missing"] * 4 + ["-"]
    moved = math.sqrt((3**2 + 0 + 4**2) / 3)
    assert lines_of(text, "harder to read")[0][1:] == [
        *("83.0 (+3.0)", "60.0 (+0.0)", "40.0 (-50.0)", "81.0 (-4.0)", f"{moved:.1f}")
    ]
    assert lines_of(text, "harder to read")[2][1:] == ["1.0", "2.0", "3.0", "4.0", "-"]
    assert "mean square over MNIST, MNIST-M and SVHN" in text
