"""What the paper leaves open, tried on what it prints elsewhere: every point of two grids.

metadr sweep calibration4     from MNIST to the others: how transformations are drawn, how images are read
metadr sweep calibration3     one term of Meta-DR at a time: how its transformation is drawn, which passes count for
                              batch norm
metadr report calibration4    every point beside the paper's numbers

Table 1, P2, PACS and the orders of domains are no part of either: the study is judged by them.
"""

import itertools

from metadr.benchmarks import make_recipe
from metadr.recipes.digits import SYN, p1
from metadr.recipes.table import Row, Table
from metadr.recipes.table4 import OTHERS

SCALINGS = ("unit", "imagenet")
FIRST = (0, 5000)
RESIZES = ("lanczos", "bilinear", "pad")
PER = ("batch", "image")
PICKS = ("operation", "pair")
POLICIES = ("clean", "clean+recall+adapt", "all")
TERMS = {"recall": {"adapt": 0.0}, "adapt": {"recall": 0.0}}


def from_mnist(tiny: bool = False) -> Table:
    rows = []
    for scaling, first, resize in itertools.product(SCALINGS, FIRST, RESIZES):
        read = f"{scaling}, from {first}, {resize}"
        fields = {"order": ("mnist",), "tested": OTHERS, "scaling": scaling, "first": first, "resize": resize}
        naive = make_recipe("digits", "naive", tiny=tiny, **fields)
        rows.append(Row(f"without DR, {read}", (naive,), paper=("table4", "without DR")))
        for per, pick in itertools.product(PER, PICKS):
            dr = make_recipe("digits", "dr", tiny=tiny, transforms="psi2", per=per, pick=pick, **fields)
            rows.append(Row(f"with DR, a {per}, {pick}, {read}", (dr,), paper=("table4", "with DR")))
    return Table(
        "calibration4", "digits, from MNIST to the others: every reading of the data and of DR", tuple(rows), (SYN,)
    )


def one_term(tiny: bool = False) -> Table:
    rows = [
        Row(
            f"{term}, a {per}, {policy}",
            (p1("meta-dr", tiny=tiny, per=per, batch_norm=policy, **without),),
            paper=("table3", term),
        )
        for (term, without), per, policy in itertools.product(TERMS.items(), PER, POLICIES)
    ]
    return Table(
        "calibration3", "digits P1, one term of Meta-DR: how T is drawn, batch norm's passes", tuple(rows), (SYN,)
    )
