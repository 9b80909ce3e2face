"""The demonstrations: forgetting and its cure on the embedded digits, and on rendered streets.

metadr demo                               one seed
metadr demo --seeds 3                     the published result, results/demo.md
metadr demo --segmentation                one seed, on streets
metadr demo --segmentation --seeds 3      the published result, results/demo-segmentation.md
"""

from metadr.benchmarks import make_recipe
from metadr.recipes.table import Table, plain

METHODS = ("naive", "dr", "meta-dr")


def table(tiny: bool = False) -> Table:
    recipes = (make_recipe("embedded/p1", method, tiny=tiny) for method in METHODS)
    return Table("demo", "naive, dr and meta-dr on the embedded digits", plain(recipes))


def segmentation(tiny: bool = False) -> Table:
    recipes = (make_recipe("streets/p1", method, tiny=tiny) for method in METHODS)
    return Table("demo-segmentation", "naive, dr and meta-dr on rendered streets", plain(recipes))
