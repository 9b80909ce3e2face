"""Table 3: Meta-DR without its recall term, without its adapt term, and without both, which is Naive.

metadr sweep table3
"""

from metadr.recipes.digits import SYN, p1_rows
from metadr.recipes.table import Table


def table(tiny: bool = False) -> Table:
    rows = p1_rows(
        {
            "neither": ("naive", {}),
            "recall": ("meta-dr", {"adapt": 0.0}),
            "adapt": ("meta-dr", {"recall": 0.0}),
            "recall and adapt": ("meta-dr", {}),
        },
        tiny=tiny,
    )
    return Table("table3", "digits P1, the terms of Meta-DR one by one", rows, (SYN,))
