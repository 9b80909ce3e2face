"""Virtual KITTI 2 beside the paper's numbers: a column is a condition, whatever scene it is of."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from metadr.core import Recipe
from metadr.recipes import get_table
from metadr.report import Record, compare, rendered
from metadr.report.figure4 import clean_figure
from metadr.report.records import pack_records, unpack_records
from metadr.store import description

KITTI = {"Clean": 50.0, "Foggy": 40.0, "Cloudy": 70.0, "Rainy": 45.0, "Sunset": 60.0, "Morning": 75.0}
LOOKS = {
    "clone": "Clean",
    "fog": "Foggy",
    "overcast": "Cloudy",
    "rain": "Rainy",
    "sunset": "Sunset",
    "morning": "Morning",
}


@pytest.fixture
def street_run(environment: dict[str, Any]) -> Callable[..., Record]:
    """A run that ends at a value of its condition on each domain, and has 10 more on the first before that."""

    def run(recipe: Recipe, offset: float, data: str) -> Record:
        moments = ("untrained", *recipe.order)
        rows = [
            {
                "after": after,
                "on": on,
                "metric": "miou",
                "value": KITTI[LOOKS[on.partition("-")[2]]] + offset + 10 * (after != moments[-1]),
                "images": 70,
            }
            for after in moments
            for on in recipe.order
        ]
        identity = json.loads(json.dumps({**description(recipe), "data": data, "seed": 0}))
        return Record(identity, environment, 36.0, rows)

    return run


@pytest.mark.parametrize("name", ["figure4", "table9", "vkitti2-rendered", "table9-rendered"])
def test_kitti_cells_are_means_over_permutations(name: str, street_run: Callable[..., Record]) -> None:
    table = get_table(name)
    # Each permutation reads other scenes, and each kind of network other weights.
    number = {recipe: row.recipes.index(recipe) for row in table.rows for recipe in row.recipes}
    runs = [
        street_run(recipe, 2.0 * number[recipe], f"{recipe.order} {dict(recipe.overrides).get('weights')}")
        for recipe in table.recipes
    ]
    made = compare(table, runs)
    usual, extras = {"vkitti2-rendered": (7, 5), "table9-rendered": (5, 5)}.get(name, (11, 11))
    middle = 2.0 * (usual - 1) / 2
    assert set(made.cells) == {(row, column) for row in made.rows for column in made.columns}
    for (row, column), cell in made.cells.items():
        title = column.split()[-1].replace("Clone", "Clean")
        permutations = extras if row == "ER" or "scratch" in row else usual
        assert cell.complete and cell.wanted == permutations
        assert cell.mean == pytest.approx(KITTI[title] + 2.0 * (permutations - 1) / 2)
    fewer = compare(table, runs[1:])
    assert {cell.ours for cell in fewer.cells.values() if not cell.complete} == {f"missing ({usual - 1} of {usual})"}
    assert f"{KITTI['Sunset'] + middle:.1f} ±" in rendered(made, "md").decode()


@pytest.mark.parametrize(
    ("length", "told"),
    [
        (1.0, "on frames of 416x128, as many as Virtual KITTI 2 has: tested on 70 to 252 of a scene."),
        (0.1, "on frames of 416x128, fewer than Virtual KITTI 2 has: tested on 8 to 26 of a scene, not on 70 to 252."),
    ],
)
def test_a_report_on_rendered_streets_says_how_many_frames_they_have(
    length: float, told: str, street_run: Callable[..., Record], environment: dict[str, Any]
) -> None:
    def run_of(recipe: Recipe) -> Record:
        record = street_run(recipe, 0.0, f"{recipe.order} {dict(recipe.overrides).get('weights')}")
        for row in record.rows:
            moments = int(length * {"01": 447, "02": 233, "06": 270, "18": 339, "20": 837}[row["on"][5:7]])
            row["images"] = 2 * (moments - moments * 85 // 100)  # docs/protocol.md: what is left from 85 % on
        return record._replace(environment={**environment, "images": [128, 416]})

    table = get_table("vkitti2-rendered")
    runs = [run_of(recipe) for recipe in table.recipes]
    text = rendered(compare(table, runs), "md").decode()
    assert f"These runs are {told}" in text
    assert "Meant for frames of 416x128" in text and "keeps 100 frames of each domain" in text
    older = [run._replace(environment=environment) for run in runs]
    assert f"These runs are {told}".replace(" of 416x128", "") in rendered(compare(table, older), "md").decode()
    assert "These runs" not in rendered(compare(table, []), "md").decode()
    kept = unpack_records(json.loads(pack_records(runs)))
    assert f"These runs are {told}" in rendered(compare(table, kept, published=True), "md").decode()


def test_figure_4_is_clean_along_each_protocol(street_run: Callable[..., Record]) -> None:
    table = get_table("figure4")
    runs = [street_run(recipe, 0.0, str(recipe.order)) for recipe in table.recipes if recipe.method_name != "dr"]
    figure = clean_figure(compare(table, runs))
    assert [panel.get_title() for panel in figure.axes] == ["P1: on Clean", "P2: on Clean", "P3: on Clean"]
    for panel, moments in zip(
        figure.axes, (("Foggy", "Cloudy"), ("Rainy", "Foggy"), ("Sunset", "Morning")), strict=True
    ):
        assert [tick.get_text() for tick in panel.get_xticklabels()] == ["Clean", *moments]
        lines = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
        under = panel.get_title()[:2]
        assert lines == {
            "Naive": [60.0, 60.0, 50.0],
            f"Naive + DR ({under}: missing)": [],
            "Meta-DR": [60.0, 60.0, 50.0],
        }
        assert panel.get_legend() is None
    (legend,) = figure.legends  # one for all panels, and what any of them lacks
    missing = [f"Naive + DR ({under}: missing)" for under in ("P1", "P2", "P3")]
    assert sorted(text.get_text() for text in legend.get_texts()) == sorted(["Naive", "Meta-DR", *missing])
