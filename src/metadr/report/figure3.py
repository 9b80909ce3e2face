"""Figure 3 of the paper from finished runs: bars along both protocols, and at their ends by transformation set."""

import statistics
from typing import Any

from matplotlib.figure import Figure

from metadr.recipes.figure3 import SETS, USUAL
from metadr.report.comparison import DOMAIN_TITLES, MISSING, Comparison
from metadr.report.figures import PAPER_COLOURS
from metadr.report.records import Record
from metadr.report.tables import spread

WIDTH = 0.27  # of a bar; three of them and a gap make a group
NOTE = "SYN is rendered here, not Ganin's. Lines: one standard deviation."


def digits_figure(made: Comparison) -> Figure:
    """Top: the score on each domain after each domain. Bottom: at the end, by transformation set. P1 left, P2 right."""
    rows = {(row.title, row.under): row for row in made.table.rows}
    protocols = list(dict.fromkeys(row.under for row in made.table.rows))
    orders = {under: rows["Naive", under].recipes[0].order for under in protocols}
    figure = Figure(figsize=(19, 6.2), layout="constrained")
    halves = figure.subfigures(1, len(protocols), squeeze=False)[0]

    def runs(title: str, transforms: str, under: str) -> list[Record]:
        return made.runs_of(rows[title if title == "Naive" else f"{title}, {transforms}", under], some=True)

    for half, under in zip(halves, protocols, strict=True):
        order = orders[under]
        half.suptitle(f"{under}: {' → '.join(DOMAIN_TITLES[name] for name in order)}", fontsize=11)
        panels = half.subplots(2, len(order), sharey=True)
        for j, domain in enumerate(order):
            top, bottom = panels[0][j], panels[1][j]
            along = {title: runs(title, USUAL, under) for title in PAPER_COLOURS}
            at_end = {title: [runs(title, each, under) for each in SETS] for title in PAPER_COLOURS}
            _bars(
                top,
                {
                    title: [[record.scores[i + 1][j] for record in records] for i in range(len(order))]
                    for title, records in along.items()
                },
                [DOMAIN_TITLES[name] for name in order],
                made.table.seeds,
            )
            _bars(
                bottom,
                {
                    title: [[record.final(domain) for record in records] for records in groups]
                    for title, groups in at_end.items()
                },
                list(SETS),
                made.table.seeds,
            )
            top.set_title(f"on {DOMAIN_TITLES[domain]}", fontsize=10)
            top.set_xlabel("after training on", fontsize=8)
            bottom.set_xlabel("at the end, by set", fontsize=8)
        for panel in panels[:, 0]:
            panel.set_ylabel("test accuracy (%)")
            panel.set_ylim(0, 101)
    handles, labels = halves[0].axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False)
    figure.supxlabel(NOTE, fontsize=9)
    return figure


def _bars(panel: Any, groups: dict[str, list[list[float]]], labels: list[str], seeds: int) -> None:
    """A group of bars for each label, a bar for each method; what is missing, or of fewer seeds, says so."""
    for number, (title, places) in enumerate(groups.items()):
        at = [place + (number - 1) * WIDTH for place in range(len(labels))]
        means = [statistics.fmean(values) if values else 0.0 for values in places]
        halves = [spread(values, ddof=1) if len(values) > 1 else 0.0 for values in places]
        lines = {"elinewidth": 0.8, "ecolor": "0.25"}
        panel.bar(at, means, WIDTH, yerr=halves, color=PAPER_COLOURS[title], label=title, error_kw=lines)
        for x, values in zip(at, places, strict=True):
            if len(values) < seeds:
                told, colour = (f"{len(values)} of {seeds} seeds", "white") if values else (MISSING, "0.4")
                panel.text(x, 2, told, rotation=90, ha="center", va="bottom", fontsize=7, color=colour)
    panel.set_xticks(range(len(labels)), labels, rotation=25, ha="right", fontsize=8)
    panel.grid(axis="y", color="0.85", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
