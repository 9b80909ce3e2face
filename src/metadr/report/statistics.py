"""Paired comparisons by exact sign-flip tests, and what several of them at once may be taken to show."""

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from metadr.errors import UserError

Alternative = Literal["greater", "less", "two-sided"]
LEVEL = 0.05
MOST_PAIRS = 40  # two halves of 2^20 sums each
# Sums that differ by less than this share of their size are equal but for rounding.
ROUNDING = 1e-9


class Paired(NamedTuple):
    """The mean of paired differences, how far it spreads, and how often a coin would do as well."""

    n: int
    mean: float
    spread: float | None  # the standard deviation of the differences, with n - 1; none of a single one
    p: float
    least_p: float  # the smallest that so many pairs can have


def compare(differences: Sequence[float], alternative: Alternative = "greater") -> Paired:
    """Test whether paired differences lie about 0."""
    n = len(differences)
    return Paired(
        n,
        statistics.fmean(differences),
        statistics.stdev(differences) if n > 1 else None,
        sign_flip_p(differences, alternative),
        least_p(n, alternative),
    )


def sign_flip_p(differences: Sequence[float], alternative: Alternative = "greater") -> float:
    """The exact p of the mean: the share of all 2^n ways to sign the differences that give one as extreme.

    Were there no effect, each difference could as well have had the other sign. Nothing is drawn: every pattern counts,
    the observed one among them, and those that tie with it, up to rounding, count as extreme. The sums of all patterns
    are those of the first half plus those of the second, so that 24 pairs take no longer than 12 and 12.
    """
    if not differences:
        raise ValueError("a test needs at least one pair")
    if len(differences) > MOST_PAIRS:
        raise UserError(f"An exact test takes at most {MOST_PAIRS} pairs. Got {len(differences)}. Give fewer seeds.")
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError(f"differences must be finite. Got {list(differences)}")
    observed = float(values.sum())
    towards = {"greater": observed, "less": -observed, "two-sided": abs(observed)}[alternative]
    bound = towards - ROUNDING * float(np.abs(values).sum())
    middle = len(values) // 2
    # Patterns come in pairs of opposite sums: as many lie at or below -bound as at or above bound.
    extreme = _at_least(_signed_sums(values[:middle]), np.sort(_signed_sums(values[middle:])), bound)
    share = math.ldexp(extreme, -len(values))
    if alternative != "two-sided":
        return share
    return 2 * share if bound > 0 else 1.0


def least_p(n: int, alternative: Alternative = "greater") -> float:
    """The smallest p that n pairs can have, whatever they are: all differences on one side."""
    return min(1.0, math.ldexp(2 if alternative == "two-sided" else 1, -n))


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: each p as it is to be read among the others, in the order given."""
    corrected = [0.0] * len(ps)
    reached = 0.0
    for place, index in enumerate(sorted(range(len(ps)), key=lambda index: ps[index])):
        reached = max(reached, min(1.0, (len(ps) - place) * ps[index]))
        corrected[index] = reached
    return corrected


def decidable(least_ps: Sequence[float], level: float = LEVEL) -> list[bool]:
    """Which tests of a family can come out, whatever the others do, given the smallest p that each can have.

    The largest family in which every test could pass even as Holm's first, with the factor of the whole family. The
    others are left out of it: they could not show anything, and would only make it harder for those that can. That is
    decided by numbers of pairs alone, before any result is looked at, so the correction stays valid.
    """
    for bound in sorted(set(least_ps), reverse=True):
        inside = [least <= bound for least in least_ps]
        if sum(inside) * bound <= level:
            return inside
    return [False] * len(least_ps)


def _signed_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of the values under each pattern of signs."""
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    return sums


def _at_least(first: NDArray[np.float64], ordered: NDArray[np.float64], bound: float) -> int:
    """How many pairs, one of each, add up to at least `bound`."""
    return int((len(ordered) - np.searchsorted(ordered, bound - first, side="left")).sum())
