"""Figure 5 of the paper: one class of PACS in its four styles, from the images that are here."""

from matplotlib.figure import Figure

from metadr.data.pacs import load
from metadr.data.pacs_scan import CLASSES, DOMAINS
from metadr.report.comparison import DOMAIN_TITLES

CLASS = "dog"  # the paper's
COLUMNS = 6


def styles_figure() -> Figure:
    """PACS, one class in four styles: a row of training images for each domain, in the order of learning."""
    figure = Figure(figsize=(1.5 * COLUMNS, 1.6 * len(DOMAINS)), layout="constrained")
    panels = figure.subplots(len(DOMAINS), COLUMNS, squeeze=False)
    for row, domain in zip(panels, DOMAINS, strict=True):
        train = load(domain).train
        images = train.x[train.y == CLASSES.index(CLASS)][:COLUMNS]
        for panel in row:
            panel.set_axis_off()
        for panel, image in zip(row, images, strict=False):  # a partial copy may have fewer
            panel.imshow(image.permute(1, 2, 0).numpy())
        row[0].set_title(DOMAIN_TITLES[domain], fontsize=10, loc="left")
    return figure
