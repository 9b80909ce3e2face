"""Tables and figures: pure functions of finished runs."""

from metadr.report.comparison import Cell, Comparison, compare
from metadr.report.figures import sequence_figure
from metadr.report.paper import PAPER, Published
from metadr.report.records import Record, read_records
from metadr.report.tables import Group, csv_table, group, markdown, text_table
from metadr.report.write import rendered, write_comparison, write_report

__all__ = [
    "PAPER",
    "Cell",
    "Comparison",
    "Group",
    "Published",
    "Record",
    "compare",
    "csv_table",
    "group",
    "markdown",
    "read_records",
    "rendered",
    "sequence_figure",
    "text_table",
    "write_comparison",
    "write_report",
]
