"""Table 2: every method on PACS, those with a memory by its size.

metadr sweep table2         five seeds
metadr report table2        ours beside the paper's
"""

from metadr.benchmarks import make_recipe
from metadr.recipes.pacs import NETWORK, ORACLES, PROTOCOL, SEEDS, WITH_MEMORY, WITHOUT_MEMORY
from metadr.recipes.table import Row, Table

SIZES = (100, 200, 300)


def table(tiny: bool = False) -> Table:
    rows = [Row(title, (make_recipe(PROTOCOL, method, tiny=tiny),), SEEDS) for title, method in WITHOUT_MEMORY.items()]
    for title, method in WITH_MEMORY.items():
        for size in SIZES:
            recipe = make_recipe(PROTOCOL, method, tiny=tiny, memory_per_domain=size)
            rows.append(Row(f"{title}, M = {size}", (recipe,), SEEDS))
    rows += [Row(title, (make_recipe(PROTOCOL, method, tiny=tiny),), SEEDS) for title, method in ORACLES.items()]
    return Table("table2", "PACS, every method, memories of 100 to 300", tuple(rows), (NETWORK,))
