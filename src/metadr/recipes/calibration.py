"""What the paper leaves open, tried on what it prints elsewhere: every point of three grids.

metadr sweep calibration4     from MNIST to the others: how transformations are drawn, how images are read
metadr sweep calibration4n    the same with the data as read by default, three seeds, and by which statistics tests go
metadr sweep calibration4m    the same with T as chosen, by the network's first layers and what it starts from
metadr sweep calibration3     one term of Meta-DR at a time: how its transformation is drawn, which passes count for
                              batch norm
metadr sweep calibration3n    the nearest of these, three seeds
metadr sweep calibration10    memories by SGD: the rate on later domains, whether GEM's count for batch norm, how
                              Meta-DR's transformation is drawn beside one
metadr report calibration4    every point, by how far it is from the paper's numbers

Table 1, P2, PACS and the orders of domains are no part of any: the study is judged by them.
"""

import itertools
from typing import Any

from metadr.benchmarks import make_recipe
from metadr.core import Recipe
from metadr.recipes.digits import MEMORY_METHODS, SGD, SYN, p1
from metadr.recipes.from_weights import STARTED
from metadr.recipes.table import Row, Table, read_by
from metadr.recipes.table4 import OTHERS
from metadr.recipes.table10 import SIZES

SCALINGS = ("unit", "imagenet")
FIRST = (0, 5000)
RESIZES = ("lanczos", "bilinear", "pad")
PER = ("batch", "image")
PICKS = ("operation", "pair")
OTHER_STEMS: dict[str, dict[str, Any]] = {
    "ResNet-18, first 7x7 by 2": {"model": "resnet18_no_pooling"},
    "ResNet-18, first 3x3": {"model": "resnet18_small_images"},
    "ResNet-18, first 3x3, of 20 channels": {"model": "resnet18_narrow"},
}
FROM_WEIGHTS: dict[str, dict[str, Any]] = {
    "ResNet-50 with ImageNet weights": {"model": "resnet50_v1", **STARTED},
    "ResNet-18 from a file of weights": STARTED,
}
OTHER_NETWORKS = {**OTHER_STEMS, "ResNet-50": {"model": "resnet50_v1"}, **FROM_WEIGHTS}
NETWORKS = {"ResNet-18, first 7x7 by 2 and pooling": {}, **OTHER_NETWORKS}
POLICIES = ("clean", "clean+recall+adapt", "all")
OF_ER = ({"later_lr": 0.001}, {"later_lr": 0.01})
OF_GEM = ({"batch_norm": "clean"}, {"batch_norm": "memory+clean"})
OF_META = (
    {"later_lr": 0.001, "per": "batch", "inner_replay": True, "batch_norm": "all"},
    {"later_lr": 0.01, "per": "batch", "inner_replay": True, "batch_norm": "all"},
    {"later_lr": 0.01, "per": "image", "inner_replay": True, "batch_norm": "all"},
    {"later_lr": 0.01, "per": "image", "inner_replay": False, "batch_norm": "all"},
    {"later_lr": 0.01, "per": "image", "inner_replay": True, "batch_norm": "inner"},
)
IN_WORDS = {
    "later_lr": "later rate",
    "batch_norm": "batch norm moved by",
    "per": "one T for every",
    "inner_replay": "memory in the simulated step",
}
TERMS: dict[str, dict[str, Any]] = {"recall": {"adapt": 0.0}, "adapt": {"recall": 0.0}}


def from_mnist(tiny: bool = False) -> Table:
    rows = []
    for scaling, first, resize in itertools.product(SCALINGS, FIRST, RESIZES):
        fields = {"order": ("mnist",), "tested": OTHERS, "scaling": scaling, "first": first, "resize": resize}
        read = {"scaling": scaling, "first image": str(first), "28x28 to 32x32": resize}
        rows.append(_row("without DR", make_recipe("digits", "naive", tiny=tiny, **fields), **read))
        for per, pick in itertools.product(PER, PICKS):
            dr = make_recipe("digits", "dr", tiny=tiny, transforms="psi2", per=per, pick=pick, **fields)
            rows.append(_row("with DR", dr, T=_drawn(per, pick), **read))
    about = "digits, from MNIST to the others: every reading of the data and of DR"
    return Table("calibration4", about, tuple(rows), (SYN,), beside="table4")


def with_seeds(tiny: bool = False) -> Table:
    rows = []
    for tested_by in ("running", "batch"):
        fields = {"order": ("mnist",), "tested": OTHERS, "tested_by": tested_by}
        by = {"tested by": f"{tested_by} statistics"}
        rows.append(_row("without DR", make_recipe("digits", "naive", tiny=tiny, **fields), 3, **by))
        for per, pick in itertools.product(PER, PICKS):
            dr = make_recipe("digits", "dr", tiny=tiny, transforms="psi2", per=per, pick=pick, **fields)
            rows.append(_row("with DR", dr, 3, T=_drawn(per, pick), **by))
    about = "digits, from MNIST to the others: how T is drawn, by which statistics tests go"
    return Table("calibration4n", about, tuple(rows), (SYN,), beside="table4")


def networks(tiny: bool = False) -> Table:
    rows = []
    for network, changes in NETWORKS.items():
        fields = {"order": ("mnist",), "tested": OTHERS, **({} if tiny else changes)}
        rows.append(_row("without DR", make_recipe("digits", "naive", tiny=tiny, **fields), 3, network=network))
        dr = make_recipe("digits", "dr", tiny=tiny, transforms="psi2", **fields)
        rows.append(_row("with DR", dr, 3, network=network))
    about = "digits, from MNIST to the others: the network, and what it starts from"
    return Table("calibration4m", about, tuple(rows), (SYN,), beside="table4")


def one_term(tiny: bool = False) -> Table:
    about = "digits P1, one term of Meta-DR: how T is drawn, batch norm's passes"
    return _one_term("calibration3", about, POLICIES, 1, tiny=tiny)


def one_term_with_seeds(tiny: bool = False) -> Table:
    about = "digits P1, one term of Meta-DR, three seeds: how T is drawn, batch norm's passes"
    return _one_term("calibration3n", about, ("all", "clean", "inner+clean", "inner"), 3, tiny=tiny)


def _one_term(name: str, about: str, policies: tuple[str, ...], seeds: int, *, tiny: bool) -> Table:
    rows = []
    for (term, without), per, policy in itertools.product(TERMS.items(), PER, policies):
        by, recipe = read_by(p1("meta-dr", tiny=tiny, per=per, batch_norm=policy, **without))
        made = _row(term, recipe, seeds, T=_drawn(per), **{"batch norm moved by": policy})
        rows.append(made._replace(by=by))
    return Table(name, about, tuple(rows), (SYN,), beside="table3")


def memories(tiny: bool = False) -> Table:
    rows = []
    for (title, method), size in itertools.product(MEMORY_METHODS.items(), SIZES):
        for point in OF_GEM if "gem" in method else OF_META if "meta-dr" in method else OF_ER:
            by, recipe = read_by(p1(method, tiny=tiny, memory_per_domain=size, **{**SGD, **point}))
            told = {IN_WORDS[name]: str(value) for name, value in point.items()}
            rows.append(_row(f"{title}, M = {size}", recipe, **told)._replace(by=by))
    about = "digits P1, memories by SGD: the rate on later domains, batch norm's passes, how T is drawn"
    return Table("calibration10", about, tuple(rows), (SYN,), beside="table10")


def _row(title: str, recipe: Recipe, seeds: int = 1, /, **point: str) -> Row:
    """A point of a grid that stands for a row of the paper's table."""
    return Row(", ".join([title, *point.values()]), (recipe,), seeds, paper=title, point=tuple(point.items()))


def _drawn(per: str, pick: str = "") -> str:
    return f"one {'an' if per == 'image' else 'a'} {per}" + (pick and f", by {pick}")
