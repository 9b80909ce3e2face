"""Table 7: Meta-DR with adapt alone, by its weight gamma; gamma = 0 is Naive.

metadr sweep table7
"""

from metadr.recipes.digits import SYN, p1_rows
from metadr.recipes.table import Table


def table(tiny: bool = False) -> Table:
    rows = p1_rows(
        {
            "gamma = 0.0": ("naive", {}),
            "gamma = 0.1": ("meta-dr", {"recall": 0.0, "adapt": 0.1}),
            "gamma = 1.0": ("meta-dr", {"recall": 0.0, "adapt": 1.0}),
        },
        tiny=tiny,
    )
    return Table("table7", "digits P1, Meta-DR with adapt alone, by its weight", rows, (SYN,))
