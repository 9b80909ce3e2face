"""What could explain that the digits' numbers differ from the paper's: one thing changed at a time, once two.

metadr sweep suspects                       P1
metadr sweep suspects-p2                    P2
metadr report suspects                      every point by its distance from the paper's Table 1

Weights are read from the data root (weights/resnet50_v1.safetensors, weights/resnet18.safetensors), or from --weights
FILE, with `--row` for those of one network; `--row "Naive, ResNet-18, *"` runs what needs none. docs/calibration.md
says which files the published rows are of. What tests by other statistics of batch norm would say of the same weights,
`metadr rescore` tells.
They explain, and choose nothing: the study is judged by Table 1, so no default may follow from them.
"""

from typing import Any

from metadr.benchmarks import make_recipe
from metadr.recipes.calibration import FROM_WEIGHTS, OTHER_NETWORKS
from metadr.recipes.digits import PROTOCOLS, SYN
from metadr.recipes.first_read import READING
from metadr.recipes.from_weights import STARTED
from metadr.recipes.table import Row, Table, read_by

Changes = dict[str, dict[str, Any]]

NOTHING: Changes = {"nothing": {}}
RATE: Changes = {"the first rate on every domain": {"later_lr": 3e-4}}
TRAINING: Changes = {
    **NOTHING,
    "three times the steps": {"steps": 9000},
    **RATE,
    "ImageNet's mean and deviation": {"scaling": "imagenet"},
    **OTHER_NETWORKS,
}
# What Meta-DR was first read as: its other rows from random weights are changes of that.
AS_FIRST_READ = "one T a batch, all passes"
OF_META: Changes = {
    AS_FIRST_READ: READING,
    "one T a batch, the clean pass alone": {"per": "batch", "batch_norm": "clean"},
    "all passes": {"batch_norm": "all"},
    "the clean pass alone": {"batch_norm": "clean"},
    "the passes before the simulated step": {"batch_norm": "inner+clean"},
}
META: Changes = {
    **NOTHING,
    **OF_META,
    "all passes, T by operation": {"batch_norm": "all", "pick": "operation"},
    "all passes, the first rate on every domain": {"batch_norm": "all", "later_lr": 3e-4},
    f"{AS_FIRST_READ}, the first rate on every domain": {**READING, "later_lr": 3e-4},
    f"{AS_FIRST_READ}, T by operation": {**READING, "pick": "operation"},
    f"{AS_FIRST_READ}, the second derivative left out": {**READING, "first_order": True},
    f"{AS_FIRST_READ}, a simulated step of a hundredth": {**READING, "inner_lr": 0.001},
}
FASTER = {**NOTHING, **RATE}
# Whether the paper's network may have begun with weights that had learnt other images.
OTHERWISE: Changes = {"ResNet-50": OTHER_NETWORKS["ResNet-50"], **FROM_WEIGHTS}
SLOW_STATISTICS: Changes = {
    f"{AS_FIRST_READ}, statistics over ten times as many passes": {**READING, "norm_momentum": 0.01}
}
OTHERWISE_META: Changes = {
    **OTHERWISE,
    **{
        f"{what}, {how}": {**fields, **meta}
        for how, meta in {**OF_META, **SLOW_STATISTICS}.items()
        for what, fields in FROM_WEIGHTS.items()
    },
}
# Where ours differs from the paper though it starts from weights: DR keeps more, a memory keeps more and learns less.
A_FILE = "ResNet-18 from a file of weights"
FROM_A_FILE: Changes = {
    A_FILE: STARTED,
    **{f"{A_FILE}, {what}": {**STARTED, **fields} for what, fields in RATE.items()},
}
FASTER_FROM_A_FILE = {**FASTER, **FROM_A_FILE}
FASTER_META: Changes = {
    **FROM_A_FILE,
    f"{A_FILE}, {AS_FIRST_READ}, the first rate on every domain": {**STARTED, **READING, "later_lr": 3e-4},
}
ER_META: Changes = {
    "one T a batch, the clean pass alone": OF_META["one T a batch, the clean pass alone"],
    **FROM_A_FILE,
    f"{A_FILE}, {AS_FIRST_READ}": {**STARTED, **READING},
}
ER: Changes = {**FASTER_FROM_A_FILE, f"{A_FILE}, 16 replayed images a step": {**STARTED, "replay_batch": 16}}
DR: Changes = {f"{A_FILE}, one T a batch": {**STARTED, "per": "batch"}}
P1 = {
    "Naive": ("naive", {**TRAINING, **FASTER_FROM_A_FILE}),
    "Naive + DR": ("dr", {**TRAINING, **FASTER_FROM_A_FILE, **DR}),
    "Meta-DR": ("meta-dr", {**META, **OTHERWISE_META, **FASTER_META}),
    "ER": ("er", ER),
    "ER + DR": ("dr+er", FROM_A_FILE),
    "ER + Meta-DR": ("er+meta-dr", ER_META),
    "Oracle (all)": ("oracle-all", TRAINING),
    "Oracle (cumul.)": ("oracle-cumulative", FASTER_FROM_A_FILE),
}
P2 = {
    "Naive": ("naive", {**FASTER_FROM_A_FILE, **OTHERWISE}),
    "Naive + DR": ("dr", {**FASTER_FROM_A_FILE, **OTHERWISE, **DR}),
    "Meta-DR": ("meta-dr", {**META, **OTHERWISE_META, **FASTER_META}),
    "ER": ("er", ER),
    "ER + DR": ("dr+er", FROM_A_FILE),
    "ER + Meta-DR": ("er+meta-dr", ER_META),
    "Oracle (cumul.)": ("oracle-cumulative", FASTER_FROM_A_FILE),
}
# What has more seeds than one: a reading that was open for long and decides much, and rows of Table 1 as first read.
SEEDS = {
    ("Meta-DR", "one T a batch, the clean pass alone"): 3,
    ("ER + Meta-DR", "one T a batch, the clean pass alone"): 3,
    ("Meta-DR", f"{A_FILE}, {AS_FIRST_READ}"): 10,
    ("ER + Meta-DR", f"{A_FILE}, {AS_FIRST_READ}"): 3,
}
NOTE = "These points explain; nothing is chosen by them."


def table(tiny: bool = False) -> Table:
    return _table("suspects", "P1", P1, tiny=tiny)


def second(tiny: bool = False) -> Table:
    return _table("suspects-p2", "P2", P2, tiny=tiny)


def _table(name: str, under: str, methods: dict[str, tuple[str, Changes]], *, tiny: bool) -> Table:
    rows = []
    for title, (method, changes) in methods.items():
        for what, fields in changes.items():
            by, recipe = read_by(make_recipe(PROTOCOLS[under], method, tiny=tiny, **({} if tiny else fields)))
            point = (("changed", what),)
            seeds = SEEDS.get((title, what), 1)
            rows.append(Row(f"{title}, {what}", (recipe,), seeds, under, paper=title, point=point, by=by))
    about = f"digits {under}: one thing changed at a time"
    return Table(name, about, tuple(rows), (SYN, NOTE), beside="table1")
