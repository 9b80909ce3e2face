"""How much depends on the statistics that batch norm is tested by, where hard domains come first and easy ones last.

metadr sweep statistics       the embedded digits in their second order, three seeds, on a CPU
metadr report statistics
"""

from typing import Any

from metadr.benchmarks import make_recipe
from metadr.recipes.table import Row, Table

NOTE = "DR and Meta-DR draw one T a batch here, which makes the statistics matter most. Their default is one an image."
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "Naive": ("naive", {}),
    "Naive + DR": ("dr", {"per": "batch"}),
    "Meta-DR": ("meta-dr", {"per": "batch", "batch_norm": "all"}),
}
TESTED_BY: dict[str, dict[str, Any]] = {
    "those of the last domain, moved by the clean pass alone": {"batch_norm": "clean"},  # only Meta-DR has others
    "those of the last domain, moved by all passes": {},
    "those of the last domain, over ten times as many passes": {"norm_momentum": 0.01},
    "the mean over all domains": {"tested_by": "domains"},
    "those of the first domain, which training goes by too": {"later_norm": "fixed"},
}


def table(tiny: bool = False) -> Table:
    rows = []
    for title, (method, usual) in METHODS.items():
        for statistics, fields in TESTED_BY.items():
            if method == "meta-dr" or "batch_norm" not in fields:
                recipe = make_recipe("embedded/p2", method, tiny=tiny, **{**usual, **fields})
                rows.append(
                    Row(f"{title}, {statistics}", (recipe,), 3, point=(("statistics", statistics),), part=title)
                )
    about = "embedded digits P2: by which statistics of batch norm tests go"
    return Table("statistics", about, tuple(rows), (NOTE,), judged="mean")
