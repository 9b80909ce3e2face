"""Table 1: every method on the digits, in both protocols.

metadr sweep table1         Naive, Naive + DR and Meta-DR with ten seeds, the others with three
metadr report table1        ours beside the paper's
"""

from metadr.benchmarks import make_recipe
from metadr.recipes.digits import PROTOCOLS, SYN
from metadr.recipes.table import Row, Table

METHODS = {
    "Naive": "naive",
    "Naive + DR": "dr",
    "L2": "l2",  # without DR the paper speaks of L2 and EWC, and prints no numbers
    "L2 + DR": "dr+l2",
    "EWC": "ewc",
    "EWC + DR": "dr+ewc",
    "Meta-DR": "meta-dr",
    "ER": "er",
    "ER + DR": "dr+er",
    "ER + Meta-DR": "er+meta-dr",
    "Oracle (all)": "oracle-all",
    "Oracle (cumul.)": "oracle-cumulative",
}
COMPARED = ("naive", "dr", "meta-dr")  # what the tests of the claims compare: more seeds
NOTES = (
    SYN,
    "Oracle (all) sees all domains at any time, in no order: the runs of P1 stand under P2 too.",
    "L2 and EWC without DR are not in the paper's table.",
)


def table(tiny: bool = False) -> Table:
    rows = []
    for title, method in METHODS.items():
        for under in PROTOCOLS:
            recipe = make_recipe(place_of(method, under), method, tiny=tiny)
            rows.append(Row(title, (recipe,), 10 if method in COMPARED else 3, under))
    return Table("table1", "digits, both protocols, every method", tuple(rows), NOTES)


def place_of(method: str, under: str) -> str:
    """The protocol that a method is run in for the columns of one: seen at any time, domains have no order."""
    return PROTOCOLS["P1" if method == "oracle-all" else under]
