"""Paired tests against scipy's, against counting by hand, and Holm's correction by hand."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import permutation_test

from metadr.errors import UserError
from metadr.report.statistics import MOST_PAIRS, Alternative, compare, decidable, holm, least_p, sign_flip_p

ALTERNATIVES: tuple[Alternative, ...] = ("greater", "less", "two-sided")
SAMPLES = [
    [1.0],
    [2.0, -1.0],
    [1.5, 2.5, 0.5],
    [3.0, -1.0, 2.0, 2.0, -0.5],
    [18.3, 17.1, 20.4, 15.9, 19.2, 18.8, 16.5, 17.7, 21.0, 18.1],
    [0.3, -0.2, 0.1, 0.0, -0.4, 0.6, 0.2, -0.1, 0.5, 0.2, -0.3],
    [0.0, 0.0, 0.0],
]


def by_counting(differences: list[float], alternative: Alternative) -> Fraction:
    """Every pattern of signs, one after another, in exact arithmetic: decimals as they are written."""
    exact = [Fraction(str(value)) for value in differences]
    sums = [
        sum((sign * value for sign, value in zip(signs, exact, strict=True)), Fraction(0))
        for signs in itertools.product((1, -1), repeat=len(exact))
    ]
    observed = sum(exact, Fraction(0))
    extreme = {
        "greater": sum(each >= observed for each in sums),
        "less": sum(each <= observed for each in sums),
        "two-sided": sum(abs(each) >= abs(observed) for each in sums),
    }
    return Fraction(extreme[alternative], len(sums))


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("differences", SAMPLES, ids=str)
def test_p_is_the_share_of_patterns_counted_one_by_one(differences: list[float], alternative: Alternative) -> None:
    assert Fraction(sign_flip_p(differences, alternative)) == by_counting(differences, alternative)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("differences", [sample for sample in SAMPLES if any(sample) and len(sample) > 1], ids=str)
def test_p_is_that_of_scipy(differences: list[float], alternative: Alternative) -> None:
    theirs = permutation_test(
        (np.array(differences),),
        np.mean,
        permutation_type="samples",
        alternative=alternative,
        n_resamples=np.inf,
        axis=0,
    )
    assert theirs.null_distribution.shape == (2 ** len(differences),)
    assert sign_flip_p(differences, alternative) == pytest.approx(theirs.pvalue, abs=1e-12)


def test_p_of_24_orders_is_exact() -> None:
    """All but one of 24 equal differences are positive: the patterns with at most one sign against are extreme."""
    differences = [1.0] * 23 + [-1.0]
    assert sign_flip_p(differences) == (1 + 24) / 2**24
    assert sign_flip_p(differences, "two-sided") == 2 * (1 + 24) / 2**24
    halves = [float(2**power) for power in range(24)]  # every pattern has a sum of its own
    assert sign_flip_p(halves) == 1 / 2**24
    assert sign_flip_p([-halves[0], *halves[1:]]) == 2 / 2**24


def test_every_p_of_a_symmetric_null_is_exact() -> None:
    """Over all signs of one set of differences, as many samples have p <= k / 2^n as there should be, never more."""
    sizes = [1.0, 2.0, 3.0, 4.0, 7.0]
    ps = [
        sign_flip_p([sign * size for sign, size in zip(signs, sizes, strict=True)])
        for signs in itertools.product((1, -1), repeat=len(sizes))
    ]
    for level in sorted(set(ps)):
        assert sum(p <= level for p in ps) / len(ps) == level  # ties raise all their p's together


def test_ties_count_against_the_claim() -> None:
    assert sign_flip_p([0.0, 0.0]) == sign_flip_p([0.0], "two-sided") == 1.0
    assert sign_flip_p([0.0, 1.0]) == 0.5  # the zero has either sign: two of four patterns
    # 0.1 + 0.2 is not 0.3 in binary: sums that are equal but for rounding tie.
    assert sign_flip_p([0.1, 0.2, -0.3]) == float(by_counting([0.1, 0.2, -0.3], "greater")) == 5 / 8


def test_opposite_differences_have_opposite_tests() -> None:
    for differences in SAMPLES:
        mirrored = [-value for value in differences]
        assert sign_flip_p(differences, "greater") == sign_flip_p(mirrored, "less")
        assert sign_flip_p(differences, "two-sided") == sign_flip_p(mirrored, "two-sided")
        scaled = [1e-3 * value for value in differences]
        assert sign_flip_p(scaled) == sign_flip_p(differences)


def test_least_p_is_attained_and_no_sample_is_below_it() -> None:
    assert [least_p(n) for n in (1, 3, 5, 10)] == [1 / 2, 1 / 8, 1 / 32, 1 / 1024]
    assert [least_p(n, "two-sided") for n in (1, 3, 5, 10)] == [1, 1 / 4, 1 / 16, 1 / 512]
    assert sign_flip_p([1.0, 2.0, 3.0]) == least_p(3)
    for differences, alternative in itertools.product(SAMPLES, ALTERNATIVES):
        assert sign_flip_p(differences, alternative) >= least_p(len(differences), alternative)


def test_an_effect_is_its_mean_spread_and_number() -> None:
    found = compare([1.0, 2.0, 3.0])
    assert (found.n, found.mean, found.spread) == (3, 2.0, 1.0)
    assert (found.p, found.least_p) == (1 / 8, 1 / 8)
    assert compare([4.0]) == (1, 4.0, None, 0.5, 0.5)


def test_what_cannot_be_tested_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one pair"):
        sign_flip_p([])
    with pytest.raises(ValueError, match="finite"):
        sign_flip_p([1.0, math.nan])
    with pytest.raises(UserError, match=f"at most {MOST_PAIRS} pairs. Got {MOST_PAIRS + 1}"):
        sign_flip_p([1.0] * (MOST_PAIRS + 1))


@pytest.mark.parametrize(
    ("ps", "corrected"),
    [
        ([], []),
        ([0.04], [0.04]),
        ([0.01, 0.04], [0.02, 0.04]),
        ([0.04, 0.01], [0.04, 0.02]),
        ([0.01, 0.01, 0.01], [0.03, 0.03, 0.03]),
        ([0.02, 0.021, 0.5], [0.06, 0.06, 0.5]),  # 2 * 0.021 = 0.042 may not fall below the one before it
        ([0.5, 0.7], [1.0, 1.0]),
        ([0.01, 0.02, 0.03, 0.005], [0.03, 0.04, 0.04, 0.02]),
    ],
)
def test_holm_by_hand(ps: list[float], corrected: list[float]) -> None:
    assert holm(ps) == pytest.approx(corrected)


def test_holm_never_lowers_a_p_and_keeps_their_order() -> None:
    ps = [k / 40 for k in (3, 1, 17, 2, 2, 40, 9)]
    corrected = holm(ps)
    assert all(after >= before for before, after in zip(ps, corrected, strict=True))
    for (before, after), (other, later) in itertools.product(zip(ps, corrected, strict=True), repeat=2):
        assert before > other or after <= later


def test_numbers_of_pairs_alone_say_what_can_be_decided() -> None:
    assert decidable([]) == []
    assert decidable([1 / 8, 1 / 16]) == [False, False]
    assert decidable([1 / 32, 1 / 8]) == [True, False]
    # Five pairs are enough alone, but not beside another test: 2 / 32 > 0.05. The stronger one stays.
    assert decidable([1 / 32, 1 / 1024]) == [False, True]
    assert decidable([1 / 32, 1 / 32]) == [False, False]
    assert decidable([1 / 1024] * 51) == [True] * 51
    assert decidable([1 / 1024] * 52) == [False] * 52
    assert decidable([*[1 / 1024] * 52, 2**-24]) == [*[False] * 52, True]
    assert decidable([1 / 16], level=0.1) == [True]


def test_what_is_decidable_could_pass_as_holms_first() -> None:
    least = [1 / 32, 1 / 64, 1 / 128, 1 / 1024, 1 / 1024]
    inside = [each for each, kept in zip(least, decidable(least), strict=True) if kept]
    assert inside == [1 / 128, 1 / 1024, 1 / 1024]
    assert max(holm(inside)) <= 0.05
    assert len(inside) * max(inside) <= 0.05
