"""Tables of the digits again, with a network that has learnt other images before.

metadr sweep table1-weights --set precision=tf32
metadr report table1-weights

The paper does not say what its ResNet-18 starts from on the digits; docs/calibration.md tells what speaks for weights
of ImageNet. They are read from weights/resnet18.safetensors in the data root, or from --weights FILE.
"""

from collections.abc import Callable
from typing import Any

from metadr.benchmarks import with_settings
from metadr.models import FROM_A_FILE
from metadr.recipes.table import Table

Make = Callable[[bool], Table]

STARTED: dict[str, Any] = {"weights": FROM_A_FILE, "scaling": "imagenet"}
STRENGTHS: dict[str, Any] = {"ewc.strength": 1.0}  # by strengths-weights; that of L2 is the usual
NOTE = "The network starts from a file of weights (docs/calibration.md says which), and images are scaled as for these."


def started_with(method: str) -> dict[str, Any]:
    """What a method is run with: the weights, and strengths that were chosen with them."""
    parts = method.split("+")
    return STARTED | {name: value for name, value in STRENGTHS.items() if name.partition(".")[0] in parts}


def started(make: Make, *, own_strengths: bool = False) -> Make:
    """The same table, its networks started from a file of weights; a tiny one keeps its own.

    With `own_strengths` the table's stay as they are, and are not those that were chosen with weights.
    """

    def table(tiny: bool = False) -> Table:
        usual = make(tiny)
        named = usual._replace(
            name=f"{usual.name}-weights",
            about=f"{usual.about}; from a file of weights",
            beside=usual.beside or usual.name,
        )
        if tiny:
            return named
        settings = (lambda _: STARTED) if own_strengths else started_with
        changed = named.changed(lambda recipe: with_settings(recipe, **settings(recipe.method_name)))
        return changed._replace(notes=(*usual.notes, NOTE))

    return table
