"""How strongly L2 and EWC pull, which the paper does not say: a grid on validation images of P1.

metadr sweep strengths       the last 1,000 of each domain's training images are held out, and tested on
metadr report strengths      by the mean over all domains: the best with DR is the default

The paper's rows are those with DR, and a part has one default, so the rows without it go by the same strength.
"""

from metadr.recipes.digits import SYN, p1
from metadr.recipes.table import Row, Table

GRIDS = {"l2": (0.001, 0.01, 0.1, 1.0, 10.0), "ewc": (0.1, 1.0, 10.0, 100.0, 1000.0)}


def table(tiny: bool = False) -> Table:
    rows = []
    for name, strengths in GRIDS.items():
        for title, method in ((name.upper(), name), (f"{name.upper()} + DR", f"dr+{name}")):
            for strength in strengths:
                held_out = {"num_val": 16, "num_train": 80} if tiny else {"num_val": 1000}
                recipe = p1(method, tiny=tiny, strength=strength, test_on="val", **held_out)
                point = (("strength", f"{strength:g}"),)
                rows.append(Row(f"{title}, {strength:g}", (recipe,), point=point, part=title))
    about = "digits P1, validation images: the strengths of L2 and EWC"
    return Table("strengths", about, tuple(rows), (SYN,), judged="mean")
