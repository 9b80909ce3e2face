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

# Candidates: what the search will name takes their place, and `about` then says what was measured.
RECOMMENDED: Mapping[str, Configuration] = {
    "recommended": Configuration(
        "dr", PER_IMAGE, about="without memory: DR, a transformation drawn for every image. A candidate, not measured"
    ),
    "recommended-er": Configuration(
        "dr+er",
        PER_IMAGE,
        {"later_lr": 1e-4},
        about="with a memory: the same on new and replayed images, learning faster. A candidate, not measured",
    ),
}
