"""Table 9: Meta-DR with recall alone on Virtual KITTI 2, protocol P3, by its weight beta; beta = 0 is Naive.

metadr sweep table9
"""

from metadr.recipes.table import Table
from metadr.recipes.vkitti2 import SPREAD, by_beta

BETAS = (0.0, 0.001, 0.01, 0.1, 1.0, 10.0)


def table(tiny: bool = False) -> Table:
    rows = tuple(by_beta(beta, tiny=tiny) for beta in BETAS)
    return Table("table9", "Virtual KITTI 2 P3, Meta-DR with recall alone, by its weight", rows, (SPREAD,))
