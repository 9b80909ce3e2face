"""The ingredients of methods. A method is a sum of parts; the empty sum is naive fine-tuning."""

from collections.abc import Mapping
from typing import Any

from metadr.core import ORACLES, Part, Recipe, Training
from metadr.errors import UserError, unknown
from metadr.parts.average import Average
from metadr.parts.ewc import EWC
from metadr.parts.gem import GEM
from metadr.parts.l2 import L2
from metadr.parts.lwf import LwF
from metadr.parts.meta_dr import MetaDR
from metadr.parts.randomize import Randomize
from metadr.parts.recommended import RECOMMENDED, Configuration
from metadr.parts.replay import Replay
from metadr.settings import names

PARTS: dict[str, type[Part]] = {part.name: part for part in (Randomize, L2, EWC, LwF, Average, GEM, Replay, MetaDR)}

RESERVED = ("naive", *RECOMMENDED, *ORACLES, "outer", "memory", "shuffle", "init", "hidden", "clean", "loss")
HINT = "List all with 'metadr list methods'."


def register(part: type[Part]) -> type[Part]:
    """Make a part known by its name; usable as a class decorator.

    A part's name is also that of its random stream and of its term of the loss, so those that exist are taken.
    """
    if part.name in RESERVED or not part.name or set(part.name) & set("+./ "):
        raise UserError(
            f"A part cannot be named '{part.name}': {', '.join(RESERVED)} and names with '+', '.', '/' or a space are "
            "taken. Give it another name."
        )
    shadowed = sorted(set(names(part)) & {*names(Training), *names(Recipe)})
    if shadowed:
        raise UserError(f"Field '{shadowed[0]}' of part '{part.name}' has the name of a field of every run. Rename it.")
    if part.name in PARTS and PARTS[part.name] is not part:
        raise UserError(f"A part named '{part.name}' exists already. Give the new one another name.")
    PARTS[part.name] = part
    return part


def parse_method(method: str, defaults: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[Part, ...]:
    """The parts of a method written as a sum, such as `ewc+dr+er`; `naive` adds nothing."""
    summands = [name.strip() for name in method.split("+")]
    if not all(summands):
        raise UserError(f"Method '{method}' has an empty name in its sum. Write it like 'ewc+dr'. {HINT}")
    parts = []
    for name in summands:
        if name == "naive":
            continue
        if name in RECOMMENDED:
            whole = f"'{name}' is a whole method, {RECOMMENDED[name].method} with settings, and no part of a sum"
            raise UserError(f"{whole}. Got '{method}'. Name it alone, or write the sum and its settings. {HINT}")
        if name not in PARTS:
            raise unknown(
                "part", name, [*PARTS, *ORACLES, *RECOMMENDED, "naive"], within=f" in method '{method}'", hint=HINT
            )
        parts.append(PARTS[name](**(defaults or {}).get(name, {})))
    return tuple(parts)


__all__ = [
    "EWC",
    "GEM",
    "L2",
    "PARTS",
    "RECOMMENDED",
    "Configuration",
    "LwF",
    "MetaDR",
    "Randomize",
    "Replay",
    "parse_method",
    "register",
]
