"""The protocols of Virtual KITTI 2 on street scenes rendered here, beside the paper's numbers on the real set.

metadr data build vkitti2 --size 416x128
metadr sweep vkitti2-rendered --weights FILE      Figure 4's rows, ER, and a network from scratch
metadr sweep table9-rendered --weights FILE       three of Table 9's rows
metadr report vkitti2-rendered -o rendered.png

FILE holds ImageNet weights of a ResNet-50 in which a stage's stride is on its first 1x1 convolution, as in Keras.
"""

from typing import Any

from metadr.benchmarks import DEFAULT_MEMORY
from metadr.models import FROM_A_FILE
from metadr.recipes.table import Table
from metadr.recipes.vkitti2 import METHODS, PROTOCOLS, SPREAD, by_beta, over_scenes

BENCHMARK = "vkitti2-rendered"
PERMUTATIONS = 7  # as many as four claims need to be decided together
OF_EXTRAS = 5  # of rows that are in no claim
# Rendered frames say less than real ones: fewer passes over them than the paper's 20 and 10.
SCHEDULE: dict[str, Any] = {"epochs": 8, "later_epochs": 4, "precision": "tf32"}
NETWORK: dict[str, Any] = {"model": "unet_resnet50_v1", "weights": FROM_A_FILE, **SCHEDULE}
SCRATCH: dict[str, Any] = {"model": "unet_resnet34", "weights": None, **SCHEDULE}
SIZE = "416x128"  # of the frames; whatever is rendered is run, and a report says what it was
BETAS = (0.0, 1.0, 10.0)
NOTES = (
    "Rendered here: simple street scenes in the layout of Virtual KITTI 2, not its images. The paper's numbers are on "
    "the real set; a difference from them says nothing of the method.",
    f"Meant for frames of {SIZE}, as many as Virtual KITTI 2 has: 'metadr data build vkitti2 --size {SIZE}'.",
    "The encoder is an ImageNet ResNet-50 with its strides on the first convolution of a block; the paper's is a "
    f"ResNet-34. {SCHEDULE['epochs']} epochs on the first domain and {SCHEDULE['later_epochs']} on later ones, the "
    "paper's 20 and 10; in TF32.",
    SPREAD,
)
FIRST = f"The first {PERMUTATIONS} of the 11 permutations, {OF_EXTRAS} for ER and for the network from scratch."
MEMORY = f"ER, which the paper has no row of here, keeps {DEFAULT_MEMORY} frames of each domain."


def table(tiny: bool = False) -> Table:
    rows = {title: (method, NETWORK, PERMUTATIONS) for title, method in METHODS.items()}
    rows["ER"] = ("er", NETWORK, OF_EXTRAS)
    rows["Naive, ResNet-34 from scratch"] = ("naive", SCRATCH, OF_EXTRAS)
    made = tuple(
        over_scenes(
            title,
            method,
            protocol,
            tiny=tiny,
            under=protocol.upper(),
            benchmark=BENCHMARK,
            permutations=permutations,
            fields={} if tiny else network,
        )
        for protocol in PROTOCOLS
        for title, (method, network, permutations) in rows.items()
    )
    about = "street scenes rendered here in Virtual KITTI 2's protocols"
    return Table("vkitti2-rendered", about, made, (*NOTES, FIRST, MEMORY), "figure4")


def betas(tiny: bool = False) -> Table:
    rows = tuple(
        by_beta(beta, tiny=tiny, benchmark=BENCHMARK, permutations=OF_EXTRAS, fields={} if tiny else NETWORK)
        for beta in BETAS
    )
    about = "street scenes rendered here, P3, Meta-DR with recall alone, by its weight"
    return Table("table9-rendered", about, rows, (*NOTES, f"The first {OF_EXTRAS} of the 11 permutations."), "table9")
