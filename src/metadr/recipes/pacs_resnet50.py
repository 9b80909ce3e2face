"""Table 2 in short, with another network: where no ImageNet weights of ResNet-18 can be had, and time is.

metadr sweep pacs-resnet50 --weights FILE      two seeds; `--seeds 5` goes on from there
metadr report pacs-resnet50                    beside the paper's numbers

FILE holds ImageNet weights of a ResNet-50 in which a stage's stride is on its first 1x1 convolution, as in Keras.
"""

from typing import Any

from metadr.benchmarks import make_recipe
from metadr.models import FROM_A_FILE
from metadr.recipes.pacs import ORACLES, PROTOCOL
from metadr.recipes.table import Row, Table

SETTING: dict[str, Any] = {
    "model": "resnet50_v1",
    "weights": FROM_A_FILE,
    "steps": 600,
    "lr": 0.01,
    "batch_size": 32,
    "precision": "tf32",
}
SEEDS = 2
METHODS = {
    "Naive": "naive",
    "Naive + DR": "dr",
    "Meta-DR": "meta-dr",
    "ER, M = 100": "er",
    "ER + DR, M = 100": "dr+er",
    "ER + Meta-DR, M = 100": "er+meta-dr",
    "GEM + DR, M = 100": "dr+gem",
    **ORACLES,
}
NOTE = (
    f"Not the paper's setting: ResNet-50 (ImageNet weights from a file), {SETTING['steps']} steps of "
    f"{SETTING['batch_size']} images a domain, with an `lr` of {SETTING['lr']:g} on the first, in TF32. The paper's "
    "Table 2 stands beside it for what it claims, not to be met in number."
)


def table(tiny: bool = False) -> Table:
    fields = {} if tiny else SETTING
    rows = tuple(
        Row(title, (make_recipe(PROTOCOL, method, tiny=tiny, **fields),), SEEDS) for title, method in METHODS.items()
    )
    return Table("pacs-resnet50", "PACS with a ResNet-50, a short schedule", rows, (NOTE,), beside="table2")
