"""IoU by class: which things a network on masks still knows at the end of a sequence."""

import statistics
from collections.abc import Iterable, Sequence

from metadr.report.comparison import MISSING
from metadr.report.records import Record
from metadr.report.tables import Group, cell, in_markdown

NOT_THERE = "-"


def markdown_classes(groups: Sequence[Group], *, ddof: int = 1) -> str:
    """A Markdown table, method by class; nothing where no run keeps it.

    Runs on labels have no IoU, and the records that the report of a table keeps have none either.
    """
    kept = [each for each in groups if all(map(ious_of, each.records))]
    if not kept:
        return ""
    names = _names(kept[0].records[0])
    lines = [["method", *names], *([each.title, *_cells(each, len(names), ddof)] for each in groups)]
    told = "IoU by class at the end, in percent: the mean over the domains in whose test images it occurs."
    return f"{told}\n\n{in_markdown(_occurring(lines))}"


def _cells(each: Group, count: int, ddof: int) -> list[str]:
    runs = [ious_of(record) for record in each.records]
    if not all(runs):
        return [MISSING] * count
    over_seeds = [_known(values) for values in zip(*runs, strict=True)]
    return [cell(values, ddof=ddof) if values else NOT_THERE for values in over_seeds]


def ious_of(record: Record) -> list[float | None]:
    """The IoU of every class at the end, on average over the domains that have it; nothing where rows keep none."""
    last = [row for row in record.rows if row["after"] == record.order[-1] and row["on"] in record.order]
    if not all("iou" in row for row in last):
        return []
    over_domains = [_known(values) for values in zip(*(row["iou"] for row in last), strict=True)]
    return [statistics.fmean(values) if values else None for values in over_domains]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _names(record: Record) -> list[str]:
    """Of the classes, or their numbers where they have no names."""
    return list(record.environment.get("classes", ())) or [str(label) for label in range(len(ious_of(record)))]


def _occurring(lines: list[list[str]]) -> list[list[str]]:
    """Without the columns of classes that occur nowhere."""
    columns = [column for column in zip(*lines, strict=True) if not {NOT_THERE, MISSING}.issuperset(column[1:])]
    return [list(line) for line in zip(*columns, strict=True)]
