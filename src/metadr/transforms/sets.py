"""Transformation sets: which transformations may be drawn, each on which grid of levels."""

import math
from dataclasses import dataclass

import numpy as np

from metadr.errors import UserError, unknown
from metadr.transforms.registry import LIST_HINT, TRANSFORMS, get_transform


@dataclass(frozen=True)
class Choice:
    """One transformation of a set and its grid: `levels` numbers from `low` to `high`, both included."""

    name: str
    low: float
    high: float
    levels: int

    def __post_init__(self) -> None:
        ranged = get_transform(self.name).ranged
        try:
            # Adding zero turns -0.0 into 0.0, so that equal grids have one spelling.
            low, high, levels = float(self.low) + 0.0, float(self.high) + 0.0, int(self.levels)
        except (TypeError, ValueError, OverflowError):
            low, high, levels = math.nan, math.nan, 0
        if not (math.isfinite(low) and math.isfinite(high)) or levels < 1 or levels != float(self.levels):
            raise self._error("two finite numbers and a whole number of levels >= 1, as in 'rotate:-30:30:7'")
        if not ranged and (low, high, levels) != (0.0, 0.0, 1):
            raise self._error("left out: it has no levels")
        if levels == 1 and low != high:
            raise self._error("a single number twice if it has one level, as in 'rotate:30:30:1'")
        for field, value in (("low", low), ("high", high), ("levels", levels)):
            object.__setattr__(self, field, value)

    @classmethod
    def of(cls, name: str, *, within: str = "") -> "Choice":
        """A transformation on the grid of the paper."""
        default = get_transform(name, within=within)
        return cls(name, default.low, default.high, default.levels)

    @property
    def spec(self) -> str:
        """The text `get_set` reads."""
        grid = f":{self.low!r}:{self.high!r}:{self.levels}" if get_transform(self.name).ranged else ""
        return self.name + grid

    def grid(self) -> tuple[float, ...]:
        """The levels, in float64; whole numbers, cut as int() does, where the transformation asks for them."""
        levels: list[float] = np.linspace(self.low, self.high, self.levels).tolist()
        return tuple(float(int(level)) for level in levels) if get_transform(self.name).whole else tuple(levels)

    def _error(self, allowed: str) -> UserError:
        got = f"{self.low}:{self.high}:{self.levels}"
        return UserError(f"The grid of '{self.name}' must be {allowed}. Got '{got}' instead.")


@dataclass(frozen=True)
class TransformSet:
    """The transformations T is drawn from; T is `compositions` of them, one after the other."""

    name: str
    choices: tuple[Choice, ...]
    compositions: int = 2

    def __post_init__(self) -> None:
        if not self.choices:
            raise UserError(f"The transformation set '{self.name}' must have at least one transformation. Got none.")
        if self.compositions < 1:
            raise UserError(
                f"The 'compositions' of transformation set '{self.name}' must be a whole number >= 1. "
                f"Got {self.compositions} instead."
            )

    @property
    def spec(self) -> str:
        """All that decides what this set does, revisions of its transformations included: the text to hash."""
        parts = (
            choice.spec.replace(choice.name, f"{choice.name}@{get_transform(choice.name).revision}", 1)
            for choice in self.choices
        )
        return f"{self.compositions}*({'+'.join(parts)})"


SETS: dict[str, TransformSet] = {}


def register_set(new: TransformSet) -> TransformSet:
    """Make a set available under its name, on the command line too if the module that calls this is imported."""
    if new.name in TRANSFORMS or not new.name or set(new.name) & set("+:"):
        raise UserError(
            f"The name of a transformation set must have no '+' or ':' and must not be a transformation's. "
            f"Got '{new.name}' instead."
        )
    if SETS.setdefault(new.name, new) != new:
        raise UserError(f"Another transformation set '{new.name}' exists already: give the new one another name.")
    return new


def get_set(spec: str) -> TransformSet:
    """Find a set by name, or read one from text.

    Args:
        spec: the name of a registered set, or names of transformations joined by '+', each on the paper's grid or,
            as name:low:high:levels, on its own. For example 'brightness+rotate:-30:30:7+invert'.
    """
    if spec in SETS:
        return SETS[spec]
    names = spec.split("+")
    if len(names) == 1 and ":" not in spec and spec not in TRANSFORMS:
        raise unknown("transformation set", spec, [*SETS, *TRANSFORMS], hint=LIST_HINT)
    return TransformSet(spec, tuple(_read_choice(name, spec) for name in names))


def _read_choice(text: str, spec: str) -> Choice:
    name, *grid = text.split(":")
    default = Choice.of(name, within=f" in transformation set '{spec}'")
    if not grid:
        return default
    try:
        low, high, levels = grid
        return Choice(name, float(low), float(high), int(levels))
    except ValueError:
        raise UserError(
            f"The grid of '{name}' must be name:low:high:levels in numbers, as in 'rotate:-30:30:7'. "
            f"Got '{text}' instead."
        ) from None
