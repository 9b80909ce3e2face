"""What is published in results/ and in the README is what the stored records say."""

import json
from pathlib import Path

from metadr.report import group, markdown, read_records

ROOT = Path(__file__).parents[2]


def test_dr_and_meta_dr_keep_at_least_8_points_more_than_naive_on_each_seed():
    kept = {(record.title, record.seed): record.summary.kept for record in read_records(ROOT / "results" / "demo.json")}
    assert len(kept) == 9
    for seed in range(3):
        assert kept["Naive + DR", seed] - kept["Naive", seed] >= 8
        assert kept["Meta-DR", seed] - kept["Naive", seed] >= 8


def test_a_demo_of_one_seed_takes_at_most_four_minutes_on_two_cores():
    records = read_records(ROOT / "results" / "demo.json")
    assert {record.environment["threads"] for record in records} == {2}
    for seed in range(3):
        assert sum(record.seconds for record in records if record.seed == seed) < 240


def test_published_tables_are_rendered_from_the_records():
    [groups] = group(read_records(ROOT / "results" / "demo.json")).values()
    table = markdown(groups)
    assert table in (ROOT / "results" / "demo.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for line in table.splitlines()[2:]:
        method, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert f"| {method} | " + " | ".join([*cells[:6], cells[-1]]) + " |" in readme


def test_transformations_are_no_slower_than_pillow_where_they_were_measured():
    measured = json.loads((ROOT / "results" / "bench" / "transforms.json").read_text())
    assert measured["environment"]["threads"] == 2
    assert measured["set"] == "psi3"
    assert all(row["ratio"] >= 1 and row["same_pixels"] for row in measured["rows"])
