"""Figure 4: Naive, Naive + DR and Meta-DR on Virtual KITTI 2, in all three protocols, and Clean along the sequence.

metadr sweep figure4
metadr report figure4 -o figure4.png
"""

from metadr.recipes.table import Table
from metadr.recipes.vkitti2 import METHODS, PROTOCOLS, SPREAD, over_scenes


def table(tiny: bool = False) -> Table:
    rows = tuple(
        over_scenes(title, method, protocol, tiny=tiny, under=protocol.upper())
        for protocol in PROTOCOLS
        for title, method in METHODS.items()
    )
    return Table("figure4", "Virtual KITTI 2, all three protocols, 11 permutations of scenes", rows, (SPREAD,))
