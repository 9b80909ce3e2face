"""Table 5: trained on Sketches alone, tested on the others, with and without DR.

metadr sweep table5
"""

from metadr.benchmarks import make_recipe
from metadr.recipes.pacs import NETWORK, SEEDS
from metadr.recipes.table import Row, Table

OTHERS = ("cartoon", "art_painting", "photo")


def table(tiny: bool = False) -> Table:
    alone = make_recipe("pacs", "naive", tiny=tiny, order=("sketch",), tested=OTHERS)
    randomised = make_recipe("pacs", "dr", tiny=tiny, order=("sketch",), tested=OTHERS, transforms="psi2")
    rows = (Row("without DR", (alone,), SEEDS), Row("with DR", (randomised,), SEEDS))
    return Table("table5", "PACS, from Sketches to the others, with and without DR", rows, (NETWORK,))
