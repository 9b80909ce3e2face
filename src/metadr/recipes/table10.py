"""Table 10: methods with a memory, by its size, trained by SGD.

metadr sweep table10
"""

from metadr.recipes.digits import MEMORY_METHODS, SGD, SYN, p1_rows
from metadr.recipes.table import Table

SIZES = (200, 300, 400)


def table(tiny: bool = False) -> Table:
    methods = {
        f"{title}, M = {size}": (method, {"memory_per_domain": size, **SGD})
        for title, method in MEMORY_METHODS.items()
        for size in SIZES
    }
    return Table("table10", "digits P1, memories of 200 to 400, by SGD", p1_rows(methods, tiny=tiny, seeds=1), (SYN,))
