"""Table 6: Meta-DR with recall alone, by its weight beta; beta = 0 is Naive.

metadr sweep table6
"""

from metadr.recipes.digits import SYN, p1_rows
from metadr.recipes.table import Table


def table(tiny: bool = False) -> Table:
    rows = p1_rows(
        {
            "beta = 0.0": ("naive", {}),
            "beta = 0.1": ("meta-dr", {"recall": 0.1, "adapt": 0.0}),
            "beta = 1.0": ("meta-dr", {"recall": 1.0, "adapt": 0.0}),
        },
        tiny=tiny,
    )
    return Table("table6", "digits P1, Meta-DR with recall alone, by its weight", rows, (SYN,))
