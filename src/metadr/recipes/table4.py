"""Table 4: trained on MNIST alone, tested on the others, with and without DR.

metadr sweep table4
"""

from metadr.benchmarks import make_recipe
from metadr.recipes.digits import SYN
from metadr.recipes.table import Row, Table

OTHERS = ("mnist_m", "syn", "svhn")


def table(tiny: bool = False) -> Table:
    alone = make_recipe("digits", "naive", tiny=tiny, order=("mnist",), tested=OTHERS)
    randomised = make_recipe("digits", "dr", tiny=tiny, order=("mnist",), tested=OTHERS, transforms="psi2")
    rows = (Row("without DR", (alone,), 3), Row("with DR", (randomised,), 3))
    return Table("table4", "digits, from MNIST to the others, with and without DR", rows, (SYN,))
