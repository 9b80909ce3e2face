"""Methods together with their settings: the recommended ones, by name, and what a search for better ones tries."""

from collections.abc import Mapping
from typing import Any, NamedTuple

CHOSEN_ON = "digits"
"""The benchmark on whose validation images configurations are chosen (`metadr sweep beyond`)."""


class Configuration(NamedTuple):
    """A method and what is set for it."""

    method: str
    fields: Mapping[str, Any] = {}
    """Of its parts, and of its tests: they hold on every benchmark."""
    training: Mapping[str, Any] = {}
    """Of the training: they hold on `CHOSEN_ON` alone, since other benchmarks have rates of their own."""
    about: str = ""

    def fields_on(self, benchmark: str) -> dict[str, Any]:
        return {**self.fields, **(self.training if benchmark == CHOSEN_ON else {})}

    @property
    def settings(self) -> str:
        """As `metadr run --set` takes them."""
        return " ".join(f"{name}={value}" for name, value in self.fields_on(CHOSEN_ON).items())


PER_IMAGE = {"dr.per": "image", "dr.pick": "operation"}

# The best that the search has tried so far; what `beyond-final` says of them is to come.
RECOMMENDED: Mapping[str, Configuration] = {
    "recommended": Configuration(
        "average+dr+lwf",
        {**PER_IMAGE, "lwf.strength": 0.25},
        {"later_lr": 1e-4},
        about="without memory: a transformation drawn for every image, outputs held near those of before, and a mean "
        "of the weights before and after. Best so far on held-out images of the digits, not tested on fresh seeds",
    ),
    "recommended-er": Configuration(
        "average+dr+er+lwf",
        {**PER_IMAGE, "lwf.new": 0.0},
        {"later_lr": 3e-4, "decay": "cosine"},
        about="the same with a memory, on whose images alone outputs are held. Best so far likewise",
    ),
}
