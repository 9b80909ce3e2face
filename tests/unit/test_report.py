"""Tables of hand-made records, and what may enter them."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from metadr.listing import before_and_after
from metadr.report import Record, csv_table, group, markdown, read_records, sequence_figure, write_report
from metadr.report.classes import markdown_classes
from metadr.report.tables import cell, text_table

ORDER = ("a", "b")
ENVIRONMENT = {
    "gpu": None,
    "processor": "abacus",
    "threads": 2,
    "torch": "2.0",
    "metadr": "0.1",
    "commit": "c0ffee",
    "dirty": False,
}


def part(name: str, **fields: Any) -> dict[str, Any]:
    return {"part": name, "revision": 1, **fields}


FROM_A_FILE = {"steps": 10, "lr": 0.1, "batch_norm": "clean", "weights": "file"}


def record(*parts: dict[str, Any], seed: int = 0, scores: Any = None, **changes: Any) -> Record:
    """A finished run; `scores` is R, untrained first, and `changes` are made to its identity."""
    identity = {
        "format": 1,
        "benchmark": "toy",
        "data": "toy 1",
        "order": list(ORDER),
        "method": list(parts),
        "memory_per_domain": 0,
        "memory_choice": "random",
        "access": "current",
        "training": {"steps": 10, "lr": 0.1, "batch_norm": "clean"},
        "seed": seed,
    }
    scores = scores or [[10.0, 20.0], [90.0, 30.0], [70.0, 80.0]]
    rows = [
        {"after": after, "on": on, "metric": "accuracy", "value": scores[i][j], "images": 50}
        for i, after in enumerate(("untrained", *ORDER))
        for j, on in enumerate(ORDER)
    ]
    return Record({**identity, **changes}, ENVIRONMENT, 60.0, rows)


def masked(by_domain: list[list[float | None]], *parts: dict[str, Any], seed: int = 0, named: bool = True) -> Record:
    """A finished run on masks, whose classes end at these IoUs on each domain; before that all are at 1."""
    made = record(*parts, seed=seed)
    for row in made.rows:
        row["iou"] = by_domain[ORDER.index(row["on"])] if row["after"] == "b" else [1.0, 1.0, 1.0]
    return made._replace(environment={**ENVIRONMENT, **({"classes": ["Sky", "Road", "Car"]} if named else {})})


def table(*records: Record) -> list[list[str]]:
    """The Markdown table of records of one sequence, as cells."""
    (groups,) = group(records).values()
    lines = markdown(groups).splitlines()
    return [[text.strip() for text in line.strip("|").split("|")] for line in lines]


def titles(*records: Record) -> list[str]:
    return [row[0] for row in table(*records)[2:]]


def test_a_cell_is_mean_and_sample_deviation() -> None:
    assert cell([70.0, 80.0]) == "75.0 ± 7.1"  # 5 * sqrt(2), not 5
    assert cell([1.0, 2.0, 3.0]) == "2.0 ± 1.0"
    assert cell([5.0, 5.0]) == "5.0 ± 0.0"
    assert cell([71.24]) == "71.2"
    assert cell([70.0, 80.0], ddof=0) == "75.0 ± 5.0"
    assert cell([71.24], ddof=0) == "71.2"


def test_a_table_of_one_run_shows_no_spread() -> None:
    head, rule, row = table(record())
    assert head == ["method", "a", "b", "ACC", "kept", "BWT", "FWT", "forgetting", "n"]
    assert rule == ["---", *["---:"] * 8]
    # R = untrained (10, 20), after a (90, 30), after b (70, 80): BWT 70 - 90, FWT 30 - 20, forgetting 90 - 70.
    assert row == ["Naive", "70.0", "80.0", "75.0", "70.0", "-20.0", "10.0", "20.0", "1"]


def test_of_one_domain_there_is_nothing_kept_or_forgotten() -> None:
    one = record(order=["a"], tested=["b"], scores=[[10.0, 20.0], [90.0, 30.0], [0.0, 0.0]])
    assert table(one)[2] == ["Naive", "90.0", "30.0", "90.0", "-", "-", "-", "-", "1"]
    (shown,) = before_and_after(one, {})
    usual = [["a", "b"], ["10.0", "20.0"], ["90.0", "30.0"], ["+80.0", "+10.0"]]
    assert [[*column.cells] for column in shown.columns] == usual


def test_of_a_run_that_goes_on_all_domains_count() -> None:
    """As if one run had learnt c, which nothing tests here, b and a: 30 of b's 50 points are left."""
    one = record(order=["a"], tested=["b"], scores=[[10.0, 20.0], [90.0, 30.0], [0.0, 0.0]])
    shown, said = before_and_after(one, {"c": 70.0, "b": 50.0})
    assert [*next(column.cells for column in shown.columns if column.header == "when learnt")] == ["-", "50.0"]
    assert said == "With the domains before: ACC 60.0, kept 30.0, BWT -20.0."
    assert len(before_and_after(one, {"c": 70.0})) == 1


def test_a_run_that_went_on_elsewhere_names_both_places() -> None:
    later = {**ENVIRONMENT, "torch": "9.9"}
    went_on = record()._replace(environment={**ENVIRONMENT, "resumed": [later, later]})
    assert went_on.made_with == f"{record().made_with}, then {record().made_with.replace(ENVIRONMENT['torch'], '9.9')}"


def test_a_table_of_three_seeds() -> None:
    finals = [[60.0, 80.0], [70.0, 81.0], [80.0, 85.0]]
    runs = [record(seed=seed, scores=[[10, 20], [90, 30], final]) for seed, final in enumerate(finals)]
    (row,) = table(*runs)[2:]
    assert row[:6] == ["Naive", "70.0 ± 10.0", "82.0 ± 2.6", "76.0 ± 6.3", "70.0 ± 10.0", "-20.0 ± 10.0"]
    assert row[-1] == "3"


def test_a_copy_of_a_run_is_no_second_measurement() -> None:
    (row,) = table(record(seed=0), record(seed=0))[2:]
    assert row[1] == "70.0"
    assert row[-1] == "1"
    assert len(list(csv.reader(io.StringIO(csv_table([record(), record()]))))) == 1 + 6


@pytest.mark.parametrize(
    ("title", "parts", "changes"),
    [
        ("Naive", [], {}),
        ("Naive + DR", ["dr"], {}),
        ("Meta-DR", ["meta-dr"], {}),
        ("EWC + DR", ["dr", "ewc"], {}),
        ("ER + Meta-DR", ["er", "meta-dr"], {"memory_per_domain": 100}),
        ("GEM + DR", ["dr", "gem"], {"memory_per_domain": 100}),
        (
            "GEM + ER + L2 + EWC + LwF + DR + Meta-DR",
            ["dr", "er", "ewc", "gem", "l2", "lwf", "meta-dr"],
            {"memory_per_domain": 1},
        ),
        ("shrink", ["shrink"], {}),
        ("Oracle (all)", [], {"access": "all"}),
        ("Oracle (cumul.)", [], {"access": "so_far"}),
        ("Oracle (all) + DR", ["dr"], {"access": "all"}),
    ],
)
def test_titles_are_the_paper_s(title: str, parts: list[str], changes: dict[str, Any]) -> None:
    made = record(*map(part, parts), **changes)
    assert made.title == title
    assert titles(made) == [title]


def test_rows_are_plain_methods_then_memories_then_oracles() -> None:
    memory = {"memory_per_domain": 100}
    runs = [
        record(access="all"),
        record(part("er"), part("meta-dr"), **memory),
        record(part("ewc")),
        record(part("dr"), part("ewc")),
        record(part("er"), **memory),
        record(part("meta-dr")),
        record(part("dr")),
        record(),
    ]
    wanted = ["Naive", "Naive + DR", "Meta-DR", "EWC", "EWC + DR", "ER", "ER + Meta-DR", "Oracle (all)"]
    assert titles(*runs) == wanted
    assert titles(*runs[::-1]) == wanted


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (
            record(part("ewc", strength=1.0)),
            record(part("ewc", strength=10.0)),
            ["EWC (strength 1.0)", "EWC (strength 10.0)"],
        ),
        (
            record(training={"steps": 10, "lr": 0.1, "batch_norm": "clean"}),
            record(training={"steps": 20, "lr": 0.1, "batch_norm": "clean"}),
            ["Naive (steps 10)", "Naive (steps 20)"],
        ),
        (
            record(part("er"), memory_per_domain=5),
            record(part("er"), memory_per_domain=50),
            ["ER (memory_per_domain 5)", "ER (memory_per_domain 50)"],
        ),
        (record(data="toy 1"), record(data="toy 2"), ["Naive (data toy 1)", "Naive (data toy 2)"]),
        (
            record(data="day 1, fog 2, rain 3"),
            record(data="day 1, fog 4, rain 3"),
            ["Naive (data fog 2)", "Naive (data fog 4)"],
        ),
        (
            record(data="day 1, fog 2"),
            record(data="day 1, fog 2, 300 held out"),
            ["Naive", "Naive (data 300 held out)"],
        ),
        (
            record(training=FROM_A_FILE, data="day 1, weights 12ab"),
            record(training=FROM_A_FILE, data="day 1, weights 34cd"),
            ["Naive (weights 12ab)", "Naive (weights 34cd)"],
        ),
        (
            record(data="day 1"),
            record(training=FROM_A_FILE, data="day 1, weights 34cd"),
            ["Naive (weights 34cd)", "Naive (weights None)"],
        ),
        (
            record(part("dr")),
            record({**part("dr"), "revision": 2}),
            ["Naive + DR (revision 1)", "Naive + DR (revision 2)"],
        ),
        (
            record(part("dr", transforms="psi1", set="2*(long@1)")),
            record(part("dr", transforms="psi3", set="2*(longer@1)")),
            ["Naive + DR (transforms psi1)", "Naive + DR (transforms psi3)"],
        ),
        (
            record(part("dr", transforms="psi1", set="2*(long@1)")),
            record(part("dr", transforms="psi1", set="2*(long@2)")),
            ["Naive + DR (set 2*(long@1))", "Naive + DR (set 2*(long@2))"],
        ),
    ],
    ids=[
        "part",
        "training",
        "memory",
        "data",
        "a domain",
        "held out",
        "weights",
        "no weights",
        "revision",
        "transforms",
        "set",
    ],
)
def test_methods_of_one_name_are_told_apart_by_what_differs(one: Record, other: Record, wanted: list[str]) -> None:
    bystander = record(part("l2", strength=1.0))
    assert [title for title in titles(other, bystander, one) if title != "L2"] == wanted
    rows = list(csv.DictReader(io.StringIO(csv_table([one, other]))))
    assert {row["method"] for row in rows} == set(wanted)
    assert len(rows) == 2 * 6


def test_a_long_title_cuts_no_number_on_a_terminal() -> None:
    groups = [each._replace(title="a method " * 20) for each in group([record()])["toy: a → b"]]
    text = io.StringIO()
    Console(file=text, width=80).print(text_table("toy", groups))
    assert "80.0" in text.getvalue() and "…" not in text.getvalue()


def test_sequences_have_tables_of_their_own() -> None:
    one, two = record(), record()._replace(identity={**record().identity, "order": ["b", "a"]})
    assert list(group([two, one])) == ["toy: a → b", "toy: b → a"]


def test_a_csv_holds_every_score_of_every_run() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table([record(seed=1), record(part("dr"), seed=0)]))))
    assert list(rows[0]) == ["benchmark", "order", "method", "seed", "after", "on", "metric", "value", "images"]
    mine = [row for row in rows if row["method"] == "Naive"]
    assert {row["seed"] for row in mine} == {"1"}
    assert [(row["after"], row["on"], float(row["value"])) for row in mine] == [
        ("untrained", "a", 10.0),
        ("untrained", "b", 20.0),
        ("a", "a", 90.0),
        ("a", "b", 30.0),
        ("b", "a", 70.0),
        ("b", "b", 80.0),
    ]
    assert {(row["benchmark"], row["order"], row["metric"], row["images"]) for row in rows} == {
        ("toy", "a>b", "accuracy", "50")
    }


def test_a_figure_has_a_panel_per_domain_and_a_line_per_method() -> None:
    runs = [record(seed=0), record(seed=1, scores=[[10, 20], [80, 30], [60, 90]]), record(part("dr"))]
    (groups,) = group(runs).values()
    panels = sequence_figure(groups).axes
    assert [panel.get_title() for panel in panels] == ["on a", "on b"]
    for j, panel in enumerate(panels):
        lines: dict[object, Any] = {line.get_label(): line.get_ydata() for line in panel.get_lines()}
        assert lines.keys() == {"Naive", "Naive + DR"}
        assert list(lines["Naive + DR"]) == [runs[2].scores[i][j] for i in range(3)]
        assert list(lines["Naive"]) == [(runs[0].scores[i][j] + runs[1].scores[i][j]) / 2 for i in range(3)]
        assert len(panel.collections) == 1  # a band where there is a spread, and only there


def test_a_report_of_two_sequences_has_two_figures(tmp_path: Path) -> None:
    two = record()._replace(identity={**record().identity, "benchmark": "toy2"})
    written = write_report([record(), two], tmp_path / "new" / "made")
    names = ["made.md", "made.csv", "made.json", "made.png", "made-1.png"]
    assert [path.name for path in written] == names
    assert all(path.stat().st_size for path in written)
    text = written[0].read_text()
    assert text.count("| Naive |") == 2
    assert "(made.png)" in text
    assert "(made-1.png)" in text
    assert "2 runs, 2.0 minutes in all, on abacus (2 threads), torch 2.0, metadr 0.1 at c0ffee." in text


def store_run(folder: Path, made: Record, *, finished: bool) -> None:
    folder.mkdir(parents=True)
    files = {"recipe": made.identity, "environment": made.environment, "rows": made.rows}
    for name, content in {**files, **({"done": {"seconds": made.seconds}} if finished else {})}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def test_unfinished_runs_never_enter(tmp_path: Path) -> None:
    """Nor do failed ones, however complete their rows look."""
    whole, going, failed = record(seed=0), record(seed=1), record(seed=2)
    store_run(tmp_path / "toy" / "0", whole, finished=True)
    store_run(tmp_path / "toy" / "1", going, finished=False)
    store_run(tmp_path / "toy" / "2", failed, finished=False)
    (tmp_path / "toy" / "2" / "failed.json").write_text('{"reason": "", "traceback": ""}')
    assert read_records(tmp_path) == [whole]
    assert table(*read_records(tmp_path))[2][-1] == "1"


def test_records_survive_their_file(tmp_path: Path) -> None:
    before = [record(seed=0), record(part("ewc", strength=0.1 + 0.2), seed=1, scores=[[1 / 3, 0], [1, 2], [3, 2 / 3]])]
    write_report(before, tmp_path / "made")
    assert read_records(tmp_path / "made.json") == before
    assert len((tmp_path / "made.json").read_text().splitlines()) == 2 + len(before)


# Classes.


def class_lines(*records: Record) -> list[str]:
    (groups,) = group(records).values()
    return [line for line in markdown_classes(groups).splitlines() if line.startswith("|")]


def test_classes_are_means_over_the_domains_that_have_them_then_over_seeds() -> None:
    first, second = masked([[10.0, None, 4.0], [30.0, None, None]]), masked([[50.0, None, 8.0]] * 2, seed=1)
    assert class_lines(first, second) == [
        "| method | Sky | Car |",  # no domain has a Road
        "| --- | ---: | ---: |",
        "| Naive | 35.0 ± 21.2 | 6.0 ± 2.8 |",
    ]
    assert class_lines(masked([[10.0, 20.0, None], [30.0, 20.0, 7.0]], named=False))[0] == "| method | 0 | 1 | 2 |"


def test_classes_of_runs_that_keep_none_are_missing_and_of_labels_there_is_no_table(tmp_path: Path) -> None:
    labels, masks = record(part("dr")), masked([[10.0, 20.0, 30.0]] * 2)
    assert class_lines(labels, masks)[2:] == ["| Naive | 10.0 | 20.0 | 30.0 |", f"| Naive + DR |{' missing |' * 3}"]
    assert class_lines(labels) == []
    for each, told in (([labels], 0), ([masks], 1)):
        text = write_report(each, tmp_path / "made")[0].read_text()
        assert text.count("IoU by class at the end") == told
        assert text.index("| Naive") < text.index("![score along") and "\n\n\n" not in text.split("\nScore on each")[0]
    again = read_records(tmp_path / "made.json")  # which keeps rows as they are
    assert class_lines(*again)[2] == "| Naive | 10.0 | 20.0 | 30.0 |"
