"""What a precision does to final accuracy: Meta-DR on the paper's digits, first protocol.

metadr sweep precision       fp32, tf32 and bf16, three seeds each; a GPU and the digits are needed
metadr report precision

A third of the paper's steps, T drawn as in the code that its sets come from, batch norm moved by the clean pass alone:
what is asked is what precision does.
"""

from typing import Any

from metadr.recipes.digits import SYN, p1
from metadr.recipes.table import Row, Table

PRECISIONS = ("fp32", "tf32", "bf16")
SETTING: dict[str, Any] = {"steps": 1000, "per": "batch", "pick": "operation", "batch_norm": "clean"}


def table(tiny: bool = False) -> Table:
    setting = SETTING if not tiny else {name: value for name, value in SETTING.items() if name != "steps"}
    rows = tuple(Row(each, (p1("meta-dr", tiny=tiny, precision=each, **setting),), 3) for each in PRECISIONS)
    return Table("precision", "Meta-DR on the digits in each precision", rows, (SYN,))
