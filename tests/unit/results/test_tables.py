"""What is published in results/ and in the README is what the stored records say."""

import itertools
import math
import re
from collections import Counter
from pathlib import Path
from statistics import fmean, median

import pytest

from metadr.cli_report import comparison
from metadr.parts import L2, RECOMMENDED
from metadr.recipes import COMPARED
from metadr.recipes.from_weights import STRENGTHS
from metadr.report import group, markdown, read_records, rendered
from metadr.report.records import numbers_of_seeds
from metadr.report.verdicts import FAMILIES, judge, markdown_claims

ROOT = Path(__file__).parents[3]


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


def test_on_streets_naive_loses_most_and_meta_dr_keeps_most_on_each_seed():
    records = read_records(ROOT / "results" / "demo-segmentation.json")
    kept = {(record.title, record.seed): record.summary.kept for record in records}
    assert len(kept) == 9
    for seed in range(3):
        assert kept["Naive", seed] + 14 <= kept["Naive + DR", seed] < kept["Meta-DR", seed]
        assert sum(record.seconds for record in records if record.seed == seed) < 240
    [groups] = group(records).values()
    assert markdown(groups) in (ROOT / "results" / "demo-segmentation.md").read_text()


def test_published_tables_are_rendered_from_the_records():
    [groups] = group(read_records(ROOT / "results" / "demo.json")).values()
    table = markdown(groups)
    assert table in (ROOT / "results" / "demo.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for line in table.splitlines()[2:]:
        method, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        assert f"| {method} | " + " | ".join([*cells[:6], cells[-1]]) + " |" in readme


def test_the_readme_shows_table_1_beside_the_paper_s(shown_below):
    """The methods of the paper's table, with the seeds they have; a cell is ours / the paper's."""
    made = comparison("table1-weights")
    shown = shown_below("table1", (ROOT / "README.md").read_text())
    rows = list(dict.fromkeys(row.title for row in made.table.rows))
    cells = {title: [made.cells[title, column] for column in made.columns] for title in rows}
    wanted = {title: those for title, those in cells.items() if all(cell.paper for cell in those)}
    assert len(wanted) == 10
    assert [
        [
            title,
            "-".join(dict.fromkeys(str(len(cell.values)) for cell in those)),
            *(f"{'-' if cell.mean is None else f'{cell.mean:.1f}'} / {cell.paper.mean}" for cell in those),
        ]
        for title, those in wanted.items()
    ] == shown
    minutes = sum(record.seconds for record in made.records) / 60
    readme = (ROOT / "README.md").read_text()
    wanted = sum(map(len, made.table.seeds_of.values()))
    told = f"one H200: {minutes:.0f} minutes for these {len(made.records)} of its {wanted} runs"
    assert f"metadr sweep table1-weights --set precision=tf32    # {told}" in readme
    assert {record.environment["gpu"] for record in made.records} == {"NVIDIA H200"}


def test_the_pages_show_what_starting_from_weights_does(shown_below):
    """Rows of Table 1 as they are, from a file of weights, and the paper's."""
    shown = shown_below("begun", (ROOT / "docs" / "calibration.md").read_text())
    tables = [comparison("table1"), comparison("table1-weights")]
    readme, apart = " ".join((ROOT / "README.md").read_text().split()), []
    for titled, *cells in shown:
        under, title = titled.split(" ", 1)
        columns = [column for column in tables[0].columns if column.startswith(under)]
        usual, begun = ([made.cells[title, column] for column in columns] for made in tables)
        scores = [", ".join(f"{cell.mean:.1f}" for cell in row) for row in (usual, begun)]
        assert cells == [*scores, str(len(begun[0].values)), ", ".join(f"{cell.paper.mean:.1f}" for cell in usual)]
        assert titled not in ("P1 Naive", "P1 Oracle (all)") or cells[0] in readme
        real = [number for number, column in enumerate(columns) if "SYN" not in column]
        misses = [[row[n].mean - row[n].paper.mean for n in real] for row in (usual, begun)]
        apart.append([math.sqrt(fmean(miss**2 for miss in each)) for each in misses])
    nearer = [titled for (titled, *_), (before, after) in zip(shown, apart, strict=True) if after < before]
    page = " ".join((ROOT / "docs" / "calibration.md").read_text().split())
    assert f"{len(nearer)} of {len(shown)} rows of Table 1" in page
    assert {titled for titled, *_ in shown} - {*nearer} == {"P1 L2 + DR", "P1 ER + DR", "P1 ER + Meta-DR"}
    before, after = (median(each) for each in zip(*apart, strict=True))
    assert f"The median of these distances is {after:.1f}, from random weights {before:.1f}" in page


def seeds_of(names):
    """The fewest and the most seeds of a recipe in some files of results/, in words."""
    found = [n for name in names for n in numbers_of_seeds(read_records(ROOT / "results" / f"{name}.json"))]
    return " to ".join(map(str, sorted({min(found), max(found)})))


def rows_below(head, page):
    lines = (ROOT / "docs" / page).read_text().partition(f"{head}\n")[2].splitlines()
    return [line.split("|")[1:-1] for line in itertools.takewhile(lambda line: line.startswith("|"), lines[1:])]


def test_the_pages_say_how_many_seeds_every_row_has():
    rows = rows_below("| | published | seeds a row | what is missing |", "reproduce.md")
    published = {published: seeds.strip() for _, published, seeds, _ in rows if published.strip()}
    assert len(published) == 12
    for cell, seeds in published.items():
        assert seeds_of(re.findall(r"results/([\w-]+)\.md", cell)) == seeds, cell
    rows = rows_below("| what is chosen | by | tried by | seeds |", "calibration.md")
    assert len(rows) == 10
    for _, _, tried, seeds in rows:
        assert seeds_of(re.findall(r"metadr sweep ([\w-]+)", tried)) == seeds.strip(), tried


@pytest.mark.parametrize(
    ("family", "option", "name", "num_decided"),
    [("digits", "", "claims", 10), ("digits-weights", " --of digits-weights", "claims-weights", 4)],
)
def test_published_claims_are_those_of_the_published_tables(family, option, name, num_decided):
    """Of the files in the command that docs/reproduce.md gives."""
    page = (ROOT / "docs" / "reproduce.md").read_text()
    (files,) = re.findall(
        rf"^metadr claims (results/[^ ]+(?: results/[^ ]+)*){option} -o results/{name}.md$", page, re.M
    )
    verdicts = judge([record for file in files.split() for record in read_records(ROOT / file)], FAMILIES[family])
    assert markdown_claims(verdicts) == (ROOT / "results" / f"{name}.md").read_text()
    decided = Counter(verdict.outcome for verdict in verdicts)
    assert decided["holds"] + decided["does not hold"] == num_decided  # as the page says


def test_strengths_from_weights_are_the_best_of_those_that_were_tried():
    made = comparison("strengths-weights")
    for name, chosen in ({"l2.strength": L2().strength} | STRENGTHS).items():
        rows = [row for row in made.table.rows if row.part == f"{name.partition('.')[0].upper()} + DR"]
        means = {float(dict(row.point)["strength"]): fmean(made.runs_of(row)[0].scores[-1]) for row in rows}
        assert len(means) == 5
        assert means[chosen] == max(means.values())


def test_the_pages_say_how_near_er_is_with_one_rate_on_every_domain():
    told_of, page = (
        " ".join((ROOT / "docs" / f"{name}.md").read_text().split()) for name in ("reproduce", "calibration")
    )
    made, apart, farthest = comparison("calibration10-weights"), {}, 0.0
    for row in made.table.rows:
        if row.paper.startswith("ER, ") and "GEM" not in row.paper:
            cells = [made.cells[row.title, column] for column in ("MNIST", "MNIST-M", "SVHN")]
            misses = [cell.mean - cell.paper.mean for cell in cells]
            apart.setdefault(dict(row.point)["later rate"], []).append(math.sqrt(fmean(miss**2 for miss in misses)))
            farthest = max(farthest, *map(abs, misses)) if dict(row.point)["later rate"] == "0.01" else farthest
    nearest, others = ([f"{each:.1f}" for each in apart[rate]] for rate in ("0.01", "0.001"))
    told = "distances of {}, {} and {} at 0.01 with M = 200, 300 and 400, and {}, {} and {} at 0.001"
    assert told.format(*nearest, *others) in page
    assert f"ER is within {math.ceil(10 * farthest) / 10} points of the paper's" in told_of
    for name in ("suspects", "suspects-p2"):
        made = comparison(name)
        title = "ER, ResNet-18 from a file of weights, the first rate on every domain"
        assert ", ".join(f"{made.cells[title, column].mean:.1f}" for column in made.columns) in page


def test_the_page_says_what_the_search_found():
    page = " ".join((ROOT / "docs" / "reproduce.md").read_text().split())
    made = comparison("beyond-weights")
    found = {row.title: made.runs_of(row)[0].scores[-1] for row in made.table.rows if made.runs_of(row)}
    tried = {tuple(scores) for scores in found.values()}  # two of its rows are one run
    assert f"The search has tried {len(tried)} of its configurations" in page
    without = {title: scores for title, scores in found.items() if "er" not in title.split(" ")[0].split("+")}
    best = max(without, key=lambda title: fmean(without[title]))
    kept = max(found.keys() - without.keys(), key=lambda title: fmean(found[title]))
    assert [best, kept] == [f"{each.method} {each.settings}" for each in RECOMMENDED.values()]
    first, *rest = [f"{score:.1f}" for score in without[best]]
    assert f"has {first}, {', '.join(rest[:2])} and {rest[2]}, a mean of {fmean(without[best]):.1f}" in page
    means = {title: f"{fmean(scores):.1f}" for title, scores in found.items()}
    assert f"DR alone {means['dr dr.per=image dr.pick=operation']}" in page
    assert f"Naive {means['naive']}" in page
    of = "dr.per=image dr.pick=operation"
    said = [
        f"`average+dr` has {means[f'average+dr {of} average.past=0.5 later_lr=0.0001']} with a share of a half",
        f"`dr+lwf` has {means[f'dr+lwf {of} lwf.strength=0.5 later_lr=0.0001']} at a strength of 0.5",
        f"at 0.25 ({means[f'dr+lwf {of} lwf.strength=0.25 later_lr=0.0001']}) and 1 "
        f"({means[f'dr+lwf {of} lwf.strength=1.0 later_lr=0.0001']})",
        f"without `average` {means[f'dr+er+lwf {of} lwf.new=0.0 lwf.strength=4.0 later_lr=0.0003']} at a strength of 4",
        f"Without DR it has {means['average average.past=0.5 later_lr=0.0003']}",
    ]
    assert [each for each in said if each not in page] == []
    beside = means["dr+lwf dr.per=image dr.pick=operation lwf.strength=1.0"]
    assert f"(`lwf` {means['lwf']}; with DR {beside})" in page
    of_new = max(fmean(found[title]) for title in found if "dr+er+lwf " in title and "lwf.new" not in title)
    dr_er = max(fmean(found[title]) for title in found if title.startswith("dr+er "))
    assert f"new images as well it has {of_new:.1f} at best, `dr+er` {dr_er:.1f}, ER {means['er']}" in page


@pytest.mark.parametrize("name", [name for name in COMPARED if (ROOT / "results" / f"{name}.json").exists()])
def test_published_tables_of_the_paper_are_rendered_from_the_records(name):
    made = comparison(name)
    for kind in ("md", "csv", "tex"):
        kept = ROOT / "results" / f"{name}.{kind}"
        assert not kept.exists() or kept.read_text() == rendered(made, kind).decode()
    assert (ROOT / "results" / f"{name}.md").exists()
