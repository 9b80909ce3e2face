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
from metadr.recipes.from_weights import STARTED
from metadr.recipes.table import Row, Table, by_policy

Changes = dict[str, dict[str, Any]]

NOTHING: Changes = {"nothing": {}}
CLEAN: Changes = {"batch norm moved by the clean pass alone": {"batch_norm": "clean"}}
RATE: Changes = {"the first rate on every domain": {"later_lr": 3e-4}}
TRAINING: Changes = {
    **NOTHING,
    "three times the steps": {"steps": 9000},
    **RATE,
    "ImageNet's mean and deviation": {"scaling": "imagenet"},
    **OTHER_NETWORKS,
}
META: Changes = {
    **NOTHING,
    **RATE,
    **CLEAN,
    "T for every image": {"per": "image"},
    "T by operation": {"pick": "operation"},
    "T for every image, by operation": {"per": "image", "pick": "operation"},
    "T for every image, the first rate on every domain": {"per": "image", "later_lr": 3e-4},
    "the second derivative left out": {"first_order": True},
    "a simulated step of a hundredth": {"inner_lr": 0.001},
}
FASTER = {**NOTHING, **RATE}
# Whether the paper's network may have begun with weights that had learnt other images.
OTHERWISE: Changes = {"ResNet-50": OTHER_NETWORKS["ResNet-50"], **FROM_WEIGHTS}
OF_META: Changes = {
    "T for every image": {"per": "image"},
    "the clean pass alone": {"batch_norm": "clean"},
    "the simulated step's pass alone": {"batch_norm": "inner"},
    "statistics over ten times as many passes": {"norm_momentum": 0.01},
    "T for every image, the clean pass alone": {"per": "image", "batch_norm": "clean"},
    "T for every image, the simulated step's pass alone": {"per": "image", "batch_norm": "inner"},
    "T for every image, the passes before the simulated step": {"per": "image", "batch_norm": "inner+clean"},
}
OTHERWISE_META: Changes = {
    **OTHERWISE,
    **{f"{what}, {how}": {**fields, **meta} for how, meta in OF_META.items() for what, fields in FROM_WEIGHTS.items()},
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
    f"{A_FILE}, T for every image, the first rate on every domain": {**STARTED, "per": "image", "later_lr": 3e-4},
}
ER: Changes = {**FASTER_FROM_A_FILE, f"{A_FILE}, 16 replayed images a step": {**STARTED, "replay_batch": 16}}
DR: Changes = {f"{A_FILE}, one T a batch": {**STARTED, "per": "batch"}}
P1 = {
    "Naive": ("naive", {**TRAINING, **FASTER_FROM_A_FILE}),
    "Naive + DR": ("dr", {**TRAINING, **FASTER_FROM_A_FILE, **DR}),
    "Meta-DR": ("meta-dr", {**META, **OTHERWISE_META, **FASTER_META}),
    "ER": ("er", ER),
    "ER + DR": ("dr+er", FROM_A_FILE),
    "ER + Meta-DR": ("er+meta-dr", {**CLEAN, **FROM_A_FILE}),
    "Oracle (all)": ("oracle-all", TRAINING),
    "Oracle (cumul.)": ("oracle-cumulative", FASTER_FROM_A_FILE),
}
P2 = {
    "Naive": ("naive", {**FASTER_FROM_A_FILE, **OTHERWISE}),
    "Naive + DR": ("dr", {**FASTER_FROM_A_FILE, **OTHERWISE, **DR}),
    "Meta-DR": ("meta-dr", {**META, **OTHERWISE_META, **FASTER_META}),
    "ER": ("er", ER),
    "ER + DR": ("dr+er", FROM_A_FILE),
    "ER + Meta-DR": ("er+meta-dr", {**CLEAN, **FROM_A_FILE}),
    "Oracle (cumul.)": ("oracle-cumulative", FASTER_FROM_A_FILE),
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
            by, fields = by_policy(fields)
            recipe = make_recipe(PROTOCOLS[under], method, tiny=tiny, **({} if tiny else fields))
            point = (("changed", what),)
            seeds = 3 if what in CLEAN else 1  # a reading that was open for long, and decides much
            rows.append(Row(f"{title}, {what}", (recipe,), seeds, under, paper=title, point=point, by=by))
    about = f"digits {under}: one thing changed at a time"
    return Table(name, about, tuple(rows), (SYN, NOTE), beside="table1")
