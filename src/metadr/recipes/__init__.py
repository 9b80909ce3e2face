"""Tables: named lists of recipes. One module per table or figure."""

from collections.abc import Callable

from metadr.core import Recipe
from metadr.errors import UserError, unknown
from metadr.recipes import (
    beyond,
    beyond_final,
    calibration,
    demo,
    embedded,
    figure3,
    figure4,
    first_read,
    from_weights,
    pacs_resnet50,
    pacs_schedule,
    precision,
    statistics,
    strengths,
    suspects,
    syn_sensitivity,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    table7,
    table8,
    table9,
    table10,
    table11,
    vkitti2_rendered,
)
from metadr.recipes.table import Row, Table, only

# The paper's, by its numbers.
_AS_READ: dict[str, Callable[[bool], Table]] = {
    "table1": table1.table,
    "table2": table2.table,
    "table3": table3.table,
    "table4": table4.table,
    "table5": table5.table,
    "table6": table6.table,
    "table7": table7.table,
    "table8": table8.table,
    "table9": table9.table,
    "table10": table10.table,
    "table11": table11.table,
    "figure3": figure3.table,
    "figure4": figure4.table,
}
OF_THE_PAPER = {name: first_read.first_read(make) for name, make in _AS_READ.items()}
# Those of the digits whose network is ResNet-18, what is chosen before them, and what goes beyond.
OF_THE_DIGITS: dict[str, Callable[[bool], Table]] = {
    **{name: _AS_READ[name] for name in ("table1", "table3", "table4", "table6", "table7", "table8")},
    **{name: _AS_READ[name] for name in ("table10", "table11", "figure3")},
    "calibration3n": calibration.one_term_with_seeds,
    "calibration4n": calibration.with_seeds,
    "calibration10": calibration.memories,
    "strengths": strengths.table,
    "syn-sensitivity": syn_sensitivity.table,
    "beyond": beyond.table,
    "beyond-final": beyond_final.table,
}
OWN_STRENGTHS = ("strengths", "beyond", "beyond-final")  # of L2 and EWC: what is tried, or what such a search named


def _from_weights(name: str, make: Callable[[bool], Table]) -> Callable[[bool], Table]:
    read = first_read.first_read(make) if name in first_read.NOT_RUN_AGAIN else make
    return from_weights.started(read, own_strengths=name in OWN_STRENGTHS)


# What a report shows beside the paper's numbers: its tables, and studies in the manner of one of them.
COMPARED: dict[str, Callable[[bool], Table]] = {
    **OF_THE_PAPER,
    "calibration3": calibration.one_term,
    "calibration3n": calibration.one_term_with_seeds,
    "calibration4": calibration.from_mnist,
    "calibration4m": calibration.networks,
    "calibration4n": calibration.with_seeds,
    "calibration10": calibration.memories,
    "precision": precision.table,
    "statistics": statistics.table,
    "strengths": strengths.table,
    "suspects": suspects.table,
    "suspects-p2": suspects.second,
    "beyond": beyond.table,
    "beyond-final": first_read.first_read(beyond_final.table),
    "syn-sensitivity": first_read.first_read(syn_sensitivity.table),
    "pacs-resnet50": pacs_resnet50.table,
    "pacs-schedule": pacs_schedule.table,
    "vkitti2-rendered": vkitti2_rendered.table,
    "table9-rendered": vkitti2_rendered.betas,
    **{f"{name}-weights": _from_weights(name, make) for name, make in OF_THE_DIGITS.items()},
}
TABLES: dict[str, Callable[[bool], Table]] = {
    "demo": demo.table,
    "demo-segmentation": demo.segmentation,
    "embedded": embedded.table,
    **COMPARED,
}


def get_table(name: str, *, tiny: bool = False) -> Table:
    if name == "figure5":
        raise UserError("'figure5' shows data and needs no run: 'metadr report figure5 -o figure5.png' makes it.")
    if name not in TABLES:
        raise unknown("table", name, TABLES, hint="List all with 'metadr list tables'.")
    return TABLES[name](tiny)


def all_recipes() -> list[Recipe]:
    return [recipe for name in TABLES for recipe in get_table(name).recipes]


__all__ = ["COMPARED", "OF_THE_PAPER", "TABLES", "Row", "Table", "all_recipes", "get_table", "only"]
