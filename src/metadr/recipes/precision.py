"""What a precision does to final accuracy: Meta-DR on the paper's digits, first protocol.

metadr sweep precision       fp32, tf32 and bf16, three seeds each; a GPU and the digits are needed
"""

from metadr.benchmarks import make_recipe
from metadr.recipes.digits import SYN
from metadr.recipes.table import Row, Table

TERMS = "recall and adapt"  # the row of Table 3 that is Meta-DR as it is
PRECISIONS = ("fp32", "tf32", "bf16")


def table(tiny: bool = False) -> Table:
    rows = tuple(
        Row(each, (make_recipe("digits/p1", "meta-dr", tiny=tiny, precision=each),), 3, paper=TERMS)
        for each in PRECISIONS
    )
    return Table("precision", "Meta-DR on the digits in each precision", rows, (SYN,), beside="table3")
