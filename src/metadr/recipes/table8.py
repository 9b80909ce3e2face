"""Table 8: Meta-DR by the size alpha of its simulated step.

metadr sweep table8
"""

from metadr.recipes.digits import SYN, p1_rows
from metadr.recipes.table import Table


def table(tiny: bool = False) -> Table:
    sizes = {f"alpha = {size}": ("meta-dr", {"inner_lr": size}) for size in (0.001, 0.01, 0.1)}
    return Table("table8", "digits P1, Meta-DR by its inner learning rate", p1_rows(sizes, tiny=tiny), (SYN,))
