"""Every kind of method in the paper's tables, on the embedded digits.

metadr sweep embedded       every row of the paper's Table 1, and GEM
"""

from metadr.benchmarks import make_recipe
from metadr.recipes.table import Table, plain

METHODS = (
    "naive",
    "dr",
    "l2",
    "ewc",
    "l2+dr",
    "ewc+dr",
    "meta-dr",
    "gem",
    "gem+dr",
    "er",
    "er+dr",
    "er+meta-dr",
    "oracle-all",
    "oracle-cumulative",
)


def table(tiny: bool = False) -> Table:
    recipes = (make_recipe("embedded/p1", method, tiny=tiny) for method in METHODS)
    return Table("embedded", "every method on the embedded digits, handwritten to street", plain(recipes))
