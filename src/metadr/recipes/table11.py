"""Table 11: methods with a memory over all 24 orders of the digits, trained by SGD.

metadr sweep table11        one seed; the spread is over the orders
"""

import itertools

from metadr.benchmarks import BENCHMARKS, make_recipe
from metadr.recipes.digits import MEMORY_METHODS, SGD, SYN
from metadr.recipes.table import Row, Table


def table(tiny: bool = False) -> Table:
    orders = tuple(itertools.permutations(BENCHMARKS["digits"].domains))
    rows = tuple(
        Row(title, tuple(make_recipe("digits", method, tiny=tiny, order=order, **SGD) for order in orders))
        for title, method in MEMORY_METHODS.items()
    )
    notes = (SYN, "The spread is over the 24 orders of the domains.")
    return Table("table11", "digits in all 24 orders, memories of 100, by SGD", rows, notes)
