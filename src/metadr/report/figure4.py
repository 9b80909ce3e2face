"""Figure 4 of the paper from finished runs: the score on the first domain, Clean, along each protocol."""

import statistics

from matplotlib.figure import Figure

from metadr.report.comparison import MISSING, Comparison, title_of
from metadr.report.figures import MARKERS, OTHER_COLOURS, PAPER_COLOURS
from metadr.report.tables import spread


def clean_figure(made: Comparison) -> Figure:
    """A panel for each protocol, a line for each method, a band of one spread over permutations of scenes."""
    protocols = list(dict.fromkeys(row.under for row in made.table.rows))
    titles = list(dict.fromkeys(row.title for row in made.table.rows))
    spare = iter(OTHER_COLOURS * len(titles))
    looks = {
        title: (PAPER_COLOURS.get(title) or next(spare), MARKERS[number % len(MARKERS)])
        for number, title in enumerate(titles)
    }
    figure = Figure(figsize=(3.6 * len(protocols) + 0.6, 4.2), layout="constrained")
    panels = figure.subplots(1, len(protocols), sharey=True, squeeze=False)[0]
    for panel, under in zip(panels, protocols, strict=True):
        rows = [row for row in made.table.rows if row.under == under]
        moments = [title_of(name) for name in rows[0].recipes[0].order]
        for row in rows:
            colour, marker = looks[row.title]
            along = [[record.scores[after + 1][0] for record in made.runs_of(row)] for after in range(len(moments))]
            if not along[0]:
                panel.plot([], [], color=colour, marker=marker, label=f"{row.title} ({under}: {MISSING})")
                continue
            means = [statistics.fmean(values) for values in along]
            panel.plot(range(len(moments)), means, color=colour, marker=marker, markersize=4.5, label=row.title)
            if len(along[0]) > 1:
                halves = [spread(values, ddof=1) for values in along]
                low, high = ([mean + sign * half for mean, half in zip(means, halves, strict=True)] for sign in (-1, 1))
                panel.fill_between(range(len(moments)), low, high, color=colour, alpha=0.15, linewidth=0)
        panel.set_title(f"{under}: on {moments[0]}", fontsize=10)
        panel.set_xticks(range(len(moments)), moments, fontsize=9)
        panel.set_xlabel("after training on", fontsize=9)
        panel.grid(axis="y", color="0.85", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    # Beside the panels, where it hides no curve, and once: what is missing of some protocol is said there.
    lines = {line.get_label(): line for panel in panels for line in panel.get_lines()}
    figure.legend(lines.values(), list(lines), loc="outside lower center", ncols=len(titles), fontsize=8, frameon=False)
    panels[0].set_ylabel("mean IoU (%)")
    panels[0].set_ylim(0, 101)
    figure.suptitle(made.table.about, fontsize=10)
    return figure
