"""What is published in results/ and in the README is what the stored records say."""

import itertools
import json
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
from metadr.report.paper import PAPER
from metadr.report.records import numbers_of_seeds
from metadr.report.regained import regained_rows, write_regained
from metadr.report.verdicts import FAMILIES, judge, markdown_claims
from metadr.rescore import OF_THE_RUN, Rescored

ROOT = Path(__file__).parents[2]


def shown_below(marker, page):
    lines = page.partition(f"<!-- {marker} -->\n")[2].splitlines()
    shown = [line.strip("|").split("|") for line in itertools.takewhile(lambda line: line.startswith("|"), lines)]
    return [[cell.strip() for cell in line] for line in shown[2:]]


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


def test_the_readme_shows_table_1_beside_the_paper_s():
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


def test_the_pages_show_what_starting_from_weights_does():
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


def test_the_page_says_what_is_kept_from_weights_by_either_kind_of_statistics():
    page = " ".join((ROOT / "docs" / "reproduce.md").read_text().split())
    running, batch = (comparison("table1-weights", tested_by=by) for by in ("running", "batch"))
    rows = {(row.title, row.under): row for row in running.table.rows}

    def kept(made, title, under, seeds):
        runs = [run for run in made.runs_of(rows[title, under], some=True) if run.seed in seeds]
        assert len(runs) == len(seeds)
        return f"{fmean(run.summary.kept for run in runs):.1f}"

    def either(title, under):
        seeds = {run.seed for run in batch.runs_of(rows[title, under], some=True)}
        return kept(batch, title, under, seeds), kept(running, title, under, seeds)

    titles = ("Naive", "Naive + DR", "Meta-DR", "L2 + DR")
    naive, dr, meta, l2 = ([either(title, under) for under in ("P1", "P2")] for title in titles)
    told = "Naive keep {} on P1 (by running ones {}) and {} on P2 ({})".format(*naive[0], *naive[1])
    for title, ((one, before), (other, then)) in (("DR", dr), ("Meta-DR", meta), ("L2 + DR", l2)):
        told += f", of {title} {one} ({before}) and {other} ({then})"
    assert told in page
    dr, l2 = ([kept(running, title, u, range(3)) for u in ("P1", "P2")] for title in ("Naive + DR", "L2 + DR"))
    assert f"{l2[0]} over the domains that are gone on P1 and {l2[1]} on P2, DR on the same three seeds" in page
    assert f"DR on the same three seeds {dr[0]} and {dr[1]}" in page


def test_the_page_shows_how_near_meta_dr_is_by_each_kind_of_statistics():
    found, table = rescored("rescored-weights"), []
    rows = [("recall", 1, 0, "P1"), ("adapt", 0, 1, "P1"), ("Meta-DR", 1, 1, "P1"), ("Meta-DR", 1, 1, "P2")]

    def distance(per, by, row, recall, adapt, under):
        wanted = [{"part": "meta-dr", "per": per, "recall": recall, "adapt": adapt}]
        runs = [
            each
            for each in found
            if [{name: part.get(name) for name in wanted[0]} for part in each.identity["method"]] == wanted
            and each.identity["training"]["batch_norm"] == "all"
            and each.order[0] == ("mnist" if under == "P1" else "svhn")
        ]
        assert len(runs) == (9 if (per, row) == ("batch", "Meta-DR") else 1)
        apart = []
        for domain, column in (("mnist", "MNIST"), ("mnist_m", "MNIST-M"), ("svhn", "SVHN")):
            ours = fmean(each.on(domain, {"running": OF_THE_RUN, "own": domain}.get(by, by)) for each in runs)
            printed = PAPER["table1" if row == "Meta-DR" else "table3"]
            apart.append(ours - printed[row, f"{under} {column}" if row == "Meta-DR" else column].mean)
        return f"{math.sqrt(fmean(each**2 for each in apart)):.1f}"

    for per, drawn in (("batch", "one a batch"), ("image", "one an image")):
        table += [[drawn, by, *(distance(per, by, *row) for row in rows)] for by in ("running", "own", "batch")]
    assert shown_below("distances", (ROOT / "docs" / "calibration.md").read_text()) == table


def test_the_page_shows_how_far_each_reading_of_meta_dr_is_from_the_paper():
    """Of the whole grid, by four policies of batch norm and by the statistics of tested batches, which none moves."""
    running, batch = (comparison("calibration3n-weights", tested_by=by) for by in ("running", "batch"))

    def distance(made, row):
        cells = [made.cells[row.title, column] for column in ("MNIST", "MNIST-M", "SVHN")]
        assert all(len(cell.values) == 3 for cell in cells)
        return f"{math.sqrt(fmean((cell.mean - cell.paper.mean) ** 2 for cell in cells)):.1f}"

    table = {}
    for row in running.table.rows:
        drawn, policy = (dict(row.point)[name] for name in ("T", "batch norm moved by"))
        table.setdefault((drawn, policy), []).append(distance(running, row))
        if policy == "inner":  # that of the run itself
            table.setdefault((drawn, "tested batches"), []).append(distance(batch, row))
    shown = shown_below("again", (ROOT / "docs" / "calibration.md").read_text())
    assert {(drawn, policy): cells for drawn, policy, *cells in shown} == table


FIRST_READ = "ResNet-18 from a file of weights, one T a batch, all passes"


def test_the_pages_compare_readings_and_methods_on_shared_seeds():
    """What Meta-DR has as first read and as now, and how far it is from DR, seed by seed."""
    reproduce, calibration = (
        " ".join((ROOT / "docs" / f"{name}.md").read_text().split()) for name in ("reproduce", "calibration")
    )
    figure, first = comparison("figure3-weights"), {"P1": comparison("suspects"), "P2": comparison("suspects-p2")}

    def of(made, title, under):
        (row,) = [row for row in made.table.rows if (row.title, row.under) == (title, under)]
        return {run.seed: run for run in made.runs_of(row, some=True)}

    def in_words(numbers, form=".1f"):
        *most, last = (format(number, form) for number in numbers)
        return f"{', '.join(most)} and {last}"

    for under, made in first.items():
        now, before = of(figure, "Meta-DR, psi3", under), of(made, f"Meta-DR, {FIRST_READ}", under)
        assert (sorted(now), sorted(before)) == ([0, 1, 2], [*range(10)])
        now, then = ([fmean(runs[s].scores[-1][n] for s in now) for n in range(4)] for runs in (now, before))
        if under == "P1":
            assert f"{in_words(now)} instead of {in_words(then)}" in calibration
            assert f"On the same three seeds it then had {in_words(then)} on P1" in reproduce
            ten = fmean(run.scores[-1][0] for run in before.values())
            assert f"ten of the first reading have {ten:.1f} of MNIST" in calibration
        else:
            assert f"{now[0]:.1f} of SVHN instead of {then[0]:.1f}" in calibration
            assert f"on P1 and {then[0]:.1f} of SVHN on P2" in reproduce
    for psi, told in (("psi3", "with psi3 it has {} ACC"), ("psi2", "with psi2 {}"), ("psi1", "with psi1 {}")):
        now, dr = (of(figure, f"{method}, {psi}", "P1") for method in ("Meta-DR", "Naive + DR"))
        gains = [now[seed].summary.acc - dr[seed].summary.acc for seed in range(3)]
        assert told.format(in_words(gains, "+.1f")) in reproduce
    alpha = {size: of(comparison("table8-weights"), f"alpha = {size}", "") for size in (0.001, 0.01, 0.1)}
    steps = [
        in_words([alpha[to][s].summary.acc - alpha[size][s].summary.acc for s in range(3)], "+.1f")
        for size, to in ((0.001, 0.01), (0.01, 0.1))
    ]
    assert "0.01 has {} ACC over 0.001, and 0.1 has {} over 0.01".format(*steps) in reproduce

    def ahead(psi):
        now, dr = (of(figure, f"{method}, {psi}", "P2") for method in ("Meta-DR", "Naive + DR"))
        return [now[seed].summary.acc - dr[seed].summary.acc for seed in range(3)]

    by_psi = [in_words(ahead(psi), "+.1f") for psi in ("psi2", "psi1")]
    assert "With psi2 it has {} ACC, with psi1 {}:".format(*by_psi) in reproduce
    behind = ahead("psi3")
    assert max(behind) < 0 and f"less ACC on each seed, {-fmean(behind):.1f} points on the mean" in reproduce


def test_the_page_compares_the_terms_of_meta_dr():
    page, made = " ".join((ROOT / "docs" / "reproduce.md").read_text().split()), comparison("table3-weights")
    rows = {row.title: [run.summary.acc for run in made.runs_of(row)] for row in made.table.rows}
    both, adapt, recall = (rows[title] for title in ("recall and adapt", "adapt", "recall"))
    means = [fmean(each) for each in (both, adapt, recall)]
    assert "{:.1f} ACC, adapt alone {:.1f}, recall alone {:.1f}. Together".format(*means) in page
    assert all(one > other for one, other in zip(both, adapt, strict=True))
    assert f"recall alone is above both on one ({recall[0]:.1f}) and last on the two others" in page
    assert recall[0] > max(both[0], adapt[0]) and all(recall[n] < min(both[n], adapt[n]) for n in (1, 2))


def test_the_page_compares_weights_of_one_term():
    page = " ".join((ROOT / "docs" / "reproduce.md").read_text().split())
    for name, told in (("table7-weights", "adapt {} ACC and {} ("), ("table6-weights", "recall {} and {} (")):
        made = comparison(name)
        weak, strong = made.table.rows[1:]
        ours = [fmean(run.summary.acc for run in made.runs_of(row)) for row in (weak, strong)]
        paper = [fmean(made.cells[row.title, column].paper.mean for column in made.columns) for row in (weak, strong)]
        assert told.format(*(f"{each:.1f}" for each in ours)) in page
        assert "the paper {:.1f} and {:.1f})".format(*paper) in page
        assert max(abs(made.cells[weak.title, column].difference) for column in made.columns) < 3
    made = comparison("table6-weights", tested_by="batch")
    weak, strong = (
        fmean(made.cells[title, column].mean for column in made.columns) for title in ("beta = 0.1", "beta = 1.0")
    )
    assert f"it has {strong:.1f} and recall at 0.1 {weak:.1f} (`" in page


def test_the_page_says_where_svhn_is_lost_on_p2():
    """On the seeds that Naive, DR and Meta-DR share, after the third domain and after the fourth."""
    records = [each for each in read_records(ROOT / "results" / "table1.json") if each.order[0] == "svhn"]
    seeds = {each.seed for each in records if each.title == "Meta-DR"}

    def svhn(title, num_domains):
        scores = [each.scores[num_domains][0] for each in records if each.title == title and each.seed in seeds]
        assert len(scores) == len(seeds) == 10
        return f"{sum(scores) / len(scores):.1f}"

    before, after = ([svhn(title, count) for title in ("Meta-DR", "Naive + DR", "Naive")] for count in (3, 4))
    page = " ".join((ROOT / "docs" / "reproduce.md").read_text().split())
    assert f"has {before[0]} after MNIST-M (DR {before[1]}, Naive {before[2]})" in page
    assert f"and {after[0]} after MNIST ({after[1]}, {after[2]})" in page


def rescored(name):
    path = ROOT / "results" / f"{name}.json"
    return [Rescored(path, each["identity"], each["before"], each["rows"]) for each in json.loads(path.read_text())]


@pytest.mark.parametrize("name", ["rescored", "rescored-weights"])
def test_runs_tested_by_other_statistics_are_shown_as_they_were_found(tmp_path, name):
    for written in write_regained(rescored(name), tmp_path / name):
        assert written.read_bytes() == (ROOT / "results" / written.name).read_bytes()


def test_the_page_shows_what_each_method_keeps_by_other_statistics():
    found = rescored("rescored")
    rows = {(sequence[:9], title): cells for sequence, each in regained_rows(found).items() for title, *cells in each}
    titles = dict.fromkeys(("Naive", "Naive + DR"), ("(later_lr 3e-05)", "(later_lr 3e-05)"))
    titles["Meta-DR"] = ("(adapt 1.0, per batch, recall 1.0, later_lr 3e-05)", "(per batch, later_lr 3e-05)")
    shown = [
        [method, *rows["digits: m", f"{method} {on_p1}"][:2], *rows["digits: s", f"{method} {on_p2}"][:2]]
        for method, (on_p1, on_p2) in titles.items()
    ]
    assert shown_below("rescored", (ROOT / "docs" / "reproduce.md").read_text()) == shown


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
