"""Tables and figures: pure functions of finished runs."""

from metadr.report.figures import sequence_figure
from metadr.report.records import Record, read_records
from metadr.report.tables import Group, csv_table, group, markdown, text_table
from metadr.report.write import write_report

__all__ = [
    "Group",
    "Record",
    "csv_table",
    "group",
    "markdown",
    "read_records",
    "sequence_figure",
    "text_table",
    "write_report",
]
