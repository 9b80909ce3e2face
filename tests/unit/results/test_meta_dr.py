"""What the pages say of Meta-DR, its readings and batch norm's statistics is what the stored records say."""

import math
from pathlib import Path
from statistics import fmean

import pytest

from metadr.cli_report import comparison
from metadr.report import read_records
from metadr.report.paper import PAPER
from metadr.report.regained import regained_rows, write_regained
from metadr.rescore import OF_THE_RUN

ROOT = Path(__file__).parents[3]


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


def test_the_page_shows_how_near_meta_dr_is_by_each_kind_of_statistics(shown_below, rescored):
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


def test_the_page_shows_how_far_each_reading_of_meta_dr_is_from_the_paper(shown_below):
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


@pytest.mark.parametrize("name", ["rescored", "rescored-weights"])
def test_runs_tested_by_other_statistics_are_shown_as_they_were_found(tmp_path, name, rescored):
    for written in write_regained(rescored(name), tmp_path / name):
        assert written.read_bytes() == (ROOT / "results" / written.name).read_bytes()


def test_the_page_shows_what_each_method_keeps_by_other_statistics(shown_below, rescored):
    found = rescored("rescored")
    rows = {(sequence[:9], title): cells for sequence, each in regained_rows(found).items() for title, *cells in each}
    titles = dict.fromkeys(("Naive", "Naive + DR"), ("(later_lr 3e-05)", "(later_lr 3e-05)"))
    titles["Meta-DR"] = ("(adapt 1.0, per batch, recall 1.0, later_lr 3e-05)", "(per batch, later_lr 3e-05)")
    shown = [
        [method, *rows["digits: m", f"{method} {on_p1}"][:2], *rows["digits: s", f"{method} {on_p2}"][:2]]
        for method, (on_p1, on_p2) in titles.items()
    ]
    assert shown_below("rescored", (ROOT / "docs" / "reproduce.md").read_text()) == shown
