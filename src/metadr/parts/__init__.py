"""The ingredients of methods. A method is a sum of parts; the empty sum is naive fine-tuning."""

from collections.abc import Mapping
from typing import Any

from metadr.core import Part
from metadr.errors import UserError, unknown
from metadr.parts.ewc import EWC
from metadr.parts.gem import GEM
from metadr.parts.l2 import L2
from metadr.parts.meta_dr import MetaDR
from metadr.parts.randomize import Randomize
from metadr.parts.replay import Replay

PARTS: dict[str, type[Part]] = {part.name: part for part in (Randomize, L2, EWC, GEM, Replay, MetaDR)}

HINT = "List all with 'metadr list methods'."


def register(part: type[Part]) -> type[Part]:
    """Make a part known by its name; usable as a class decorator."""
    if part.name in PARTS and PARTS[part.name] is not part:
        raise UserError(f"A part named '{part.name}' exists already. Give the new one another name.")
    PARTS[part.name] = part
    return part


def parse_method(method: str, defaults: Mapping[str, Mapping[str, Any]] | None = None) -> tuple[Part, ...]:
    """The parts of a method written as a sum, such as `ewc+dr+er`; `naive` adds nothing."""
    names = [name.strip() for name in method.split("+")]
    if not all(names):
        raise UserError(f"Method '{method}' has an empty name in its sum. Write it like 'ewc+dr'. {HINT}")
    parts = []
    for name in names:
        if name == "naive":
            continue
        if name not in PARTS:
            raise unknown("part", name, [*PARTS, "naive"], within=f" in method '{method}'", hint=HINT)
        parts.append(PARTS[name](**(defaults or {}).get(name, {})))
    return tuple(parts)


__all__ = ["EWC", "GEM", "L2", "PARTS", "MetaDR", "Randomize", "Replay", "parse_method", "register"]
