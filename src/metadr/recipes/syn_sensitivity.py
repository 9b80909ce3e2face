"""How far scores move with the rendering of SYN: the first protocol with an easier and a harder one.

metadr data build syn --variant easy
metadr data build syn --variant hard
metadr sweep syn-sensitivity
metadr report syn-sensitivity

The paper's SYN is not ours. Where the scores of the other domains hardly move between renderings this far apart, they
can be held against the paper's.
"""

from metadr.recipes.digits import SYN, p1
from metadr.recipes.table import Row, Table
from metadr.recipes.table1 import COMPARED, METHODS

RENDERINGS = {"standard": "as usual", "easy": "easier to read", "hard": "harder to read"}
NOTE = (
    "One seed. Runs of one method share their weights and all draws, and are the same until SYN comes; how far a seed "
    "alone moves a score is the spread in Table 1."
)


def table(tiny: bool = False) -> Table:
    rows = []
    for title in (title for title, method in METHODS.items() if method in COMPARED):
        for name, words in RENDERINGS.items():
            recipe = p1(METHODS[title], tiny=tiny, syn=name)
            rows.append(Row(f"{title}, SYN {words}", (recipe,), point=(("SYN", words),), part=title))
    about = "digits P1, with SYN easier and harder to read"
    return Table("syn-sensitivity", about, tuple(rows), (SYN, NOTE), judged="first")
