"""Figure 3: Naive, Naive + DR and Meta-DR along both protocols, and at their ends by transformation set.

metadr sweep figure3
metadr report figure3 -o figure3.png
"""

from metadr.benchmarks import make_recipe
from metadr.recipes.digits import PROTOCOLS, SYN
from metadr.recipes.table import Row, Table

SETS = ("psi1", "psi2", "psi3")
USUAL = "psi3"  # along the sequence


def table(tiny: bool = False) -> Table:
    rows = []
    for under, protocol in PROTOCOLS.items():
        rows.append(Row("Naive", (make_recipe(protocol, "naive", tiny=tiny),), 3, under))
        for title, method in (("Naive + DR", "dr"), ("Meta-DR", "meta-dr")):
            for each in SETS:
                recipe = make_recipe(protocol, method, tiny=tiny, transforms=each)
                rows.append(Row(f"{title}, {each}", (recipe,), 3, under))
    return Table("figure3", "digits, both protocols, by transformation set", tuple(rows), (SYN,))
