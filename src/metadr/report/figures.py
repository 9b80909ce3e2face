"""Figures of finished runs."""

import statistics

from matplotlib.figure import Figure

from metadr.report.tables import Group, spread
from metadr.sequence import UNTRAINED

PAPER_COLOURS = {"Naive": "#e377c2", "Naive + DR": "#1f77b4", "Meta-DR": "#d62728"}  # pink, blue, red, as Figure 3
OTHER_COLOURS = ("#2ca02c", "#ff7f0e", "#9467bd", "#8c564b", "#17becf", "#7f7f7f", "#bcbd22")
MARKERS = "osD^vP*X<>"


def sequence_figure(groups: list[Group], *, ddof: int = 1) -> Figure:
    """The score on each domain along the sequence: one panel per domain, one line per method, a band of one spread."""
    order = groups[0].order
    moments = (UNTRAINED, *order)
    metric = groups[0].records[0].rows[0]["metric"]
    figure = Figure(figsize=(3.2 * len(order) + 0.6, 3.9), layout="constrained")
    panels = figure.subplots(1, len(order), sharey=True, squeeze=False)[0]
    spare = iter(OTHER_COLOURS * len(groups))
    looks = {
        each.title: (PAPER_COLOURS.get(each.title) or next(spare), MARKERS[i % len(MARKERS)])
        for i, each in enumerate(groups)
    }
    for j, (panel, domain) in enumerate(zip(panels, order, strict=True)):
        panel.axvspan(-0.3, j + 0.5, color="0.94", zorder=0)
        for each in groups:
            values = [[record.scores[i][j] for record in each.records] for i in range(len(moments))]
            means = [statistics.fmean(value) for value in values]
            colour, marker = looks[each.title]
            panel.plot(range(len(moments)), means, color=colour, marker=marker, markersize=4.5, label=each.title)
            if len(each.records) > 1:
                spreads = [spread(value, ddof=ddof) for value in values]
                panel.fill_between(
                    range(len(moments)),
                    [mean - half for mean, half in zip(means, spreads, strict=True)],
                    [mean + half for mean, half in zip(means, spreads, strict=True)],
                    color=colour,
                    alpha=0.15,
                    linewidth=0,
                )
        panel.set_title(f"on {domain}", fontsize=10)
        panel.set_xlim(-0.3, len(moments) - 0.7)
        panel.set_xticks(range(len(moments)), moments, rotation=35, ha="right", fontsize=8)
        panel.grid(axis="y", color="0.85", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("mean IoU (%)" if metric == "miou" else "test accuracy (%)")
    panels[0].set_ylim(0, 101)
    figure.supxlabel("after training on (grey: not yet met)", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 5), frameon=False)
    return figure
