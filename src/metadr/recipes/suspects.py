"""What could explain that the digits' baselines differ from the paper's: one thing changed at a time, on P1.

metadr sweep suspects
metadr report suspects       every point by its distance from the paper's Table 1

It explains, and chooses nothing: the study is judged by Table 1, so no default may follow from it.
"""

from typing import Any

from metadr.recipes.digits import SYN, p1
from metadr.recipes.table import Row, Table

METHODS = {"Naive": "naive", "Naive + DR": "dr", "Oracle (all)": "oracle-all"}
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "first layers for small images": {"model": "resnet18_small_images"},
    "three times the steps": {"steps": 9000},
    "the first rate on every domain": {"later_lr": 3e-4},
    "ImageNet's mean and deviation": {"scaling": "imagenet"},
}


def table(tiny: bool = False) -> Table:
    rows = []
    for title, method in METHODS.items():
        for what, fields in CHANGES.items():
            recipe = p1(method, tiny=tiny, **{name: value for name, value in fields.items() if not tiny})
            point = (("changed", what),)
            rows.append(Row(f"{title}, {what}", (recipe,), under="P1", paper=title, point=point))
    about = "digits P1, baselines: one thing changed at a time"
    note = "These points explain; nothing is chosen by them."
    return Table("suspects", about, tuple(rows), (SYN, note), beside="table1")
