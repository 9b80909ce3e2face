"""The paper's claims on scenes, by permutation and over several protocols, put to hand-made runs."""

import re

import pytest

from metadr.recipes import get_table
from metadr.report import Record
from metadr.report.claims import Gain, Runs
from metadr.report.pairs import recipes_of, score_of
from metadr.report.paper import PAPER
from metadr.report.statistics import decidable, least_p
from metadr.report.verdicts import FAMILIES, judge, markdown_claims
from metadr.store import description

KITTI = [("vkitti2", "figure4"), ("vkitti2-rendered", "vkitti2-rendered")]


def of_scenes(
    side: Runs | Gain, kept: float, forgotten: float = 0.0, *, units: int = 11, seed: int = 0
) -> list[Record]:
    """A run of every permutation: what it keeps of its past domains, which were better by what it forgot.

    Of a gain, its rivals keep 40, and each permutation has a level of its own that only pairs take out.
    """
    if isinstance(side, Gain):
        rivals = of_scenes(side.over, 40, units=units, seed=seed)
        return [*of_scenes(side.runs, 40 + kept, units=units, seed=seed), *rivals]
    made = []
    for number, recipe in enumerate(list(recipes_of(side).values())[:units]):
        level = 3 * number + 2 * recipe.order[0].startswith("scene02")
        learnt = dict.fromkeys(recipe.order, level + kept + forgotten)
        final = {**learnt, **dict.fromkeys(recipe.order[:-1], level + kept)}
        rows = [
            {"after": after, "on": on, "metric": "miou", "value": scores[on], "images": 9}
            for after, scores in [
                *((name, learnt) for name in ("untrained", *recipe.order[:-1])),
                (recipe.order[-1], final),
            ]
            for on in recipe.order
        ]
        data = ", ".join([*(f"{on} {number}" for on in sorted(recipe.order)), "weights w"])
        made.append(Record({**description(recipe), "data": data, "seed": seed}, {"gpu": "abacus"}, 60.0, rows))
    return made


@pytest.mark.parametrize(("family", "table"), KITTI)
def test_the_claims_on_scenes_are_sound_and_can_hold_or_not(family: str, table: str) -> None:
    claims = FAMILIES[family]
    known = {str(description(recipe)) for recipe in get_table(table).recipes}
    permutations = 11 if family == "vkitti2" else 7  # the table's; claims take what there is
    assert len({claim.name for claim in claims}) == len(claims)
    assert sum(decidable([least_p(permutations)] * len(claims))) == len(claims)
    assert {claim.margin for claim in claims} == {0.0, -1.0}
    assert all(each.margin == claim.margin for claim in claims for each in claim.also)
    for claim in (each._replace(also=()) for whole in claims for each in (whole, *whole.also)):
        for side in (claim.runs, *claim.over):
            for wanted in side if isinstance(side, Gain) else (side,):
                recipes = list(recipes_of(wanted).values())
                assert len(recipes) == 11
                assert {str(description(recipe)) for recipe in recipes[:permutations]} <= known
        on_forgetting = claim.on == ("forgotten",)
        for better, outcome in ((1.0, "holds"), (-1.0, "does not hold")):
            more = better + claim.margin
            gained = {"kept": 50.0, "forgotten": 5 + more} if on_forgetting else {"kept": 50 + more}
            usual = {"kept": 50.0, "forgotten": 5.0} if on_forgetting else {"kept": 50.0}
            (verdict,) = judge([*of_scenes(claim.runs, **gained), *of_scenes(claim.over[0], **usual)], [claim])
            assert verdict.outcome == outcome, claim
            assert verdict.found is not None and verdict.found.n == 11
            assert verdict.found.mean == pytest.approx(more) and verdict.found.spread == pytest.approx(0, abs=1e-9)
            assert re.search(r"\| P[123]( and P3)?: (kept|ACC|forgotten) \|", markdown_claims([verdict]))


@pytest.mark.parametrize(
    ("gains", "outcome", "shown"),
    [
        ({"p1": 5.0, "p2": 3.0}, "holds", "+3.0 ± 0.0 (P2)"),
        ({"p1": 5.0, "p2": -3.0}, "does not hold", "-3.0 ± 0.0 (P2)"),
        ({"p1": -1.0, "p2": 3.0}, "does not hold", "-1.0 ± 0.0 (P1)"),
        ({"p1": 5.0}, "no runs", ""),
    ],
)
def test_a_claim_in_several_places_holds_where_it_does_in_each(
    gains: dict[str, float], outcome: str, shown: str
) -> None:
    claim = next(claim for claim in FAMILIES["vkitti2"] if claim.name.startswith("Meta-DR keeps more"))
    made: list[Record] = []
    for each in (claim, *claim.also):
        protocol = each.runs.recipe.split("/")[1]  # type: ignore[union-attr]
        if protocol in gains:
            made += [*of_scenes(each.runs, 50 + gains[protocol]), *of_scenes(each.over[0], 50)]
    (verdict,) = judge(made, [claim])
    row = markdown_claims([verdict]).splitlines()[2]
    assert verdict.outcome == outcome
    assert f"| P1: kept; P2: kept | {outcome} | {shown} |" in row
    if outcome == "no runs":
        assert verdict.note == "no runs of meta-dr in vkitti2/p2/*; no runs of naive in vkitti2/p2/*"


def test_the_papers_own_means_agree_with_the_claims_on_scenes() -> None:
    """Of Figure 4's cells: what it claims of means over permutations is what it prints."""
    titles = {"naive": "Naive", "dr": "Naive + DR", "meta-dr": "Meta-DR"}

    def mean(side: Runs | Gain, on: str) -> float:
        if isinstance(side, Gain):
            return mean(side.runs, on) - mean(side.over, on)
        protocol = side.recipe.split("/")[1].upper()
        cells = [
            value.mean
            for (row, column), value in PAPER["figure4"].items()
            if row == titles[side.method] and column.startswith(protocol)
        ]
        assert len(cells) == 3
        return sum(cells) / 3 if on == "ACC" else sum(cells[:2]) / 2

    every = [each for claim in FAMILIES["vkitti2"] for each in (claim, *claim.also)]
    told = [claim for claim in every if claim.on != ("forgotten",)]  # which no cell has
    for claim in told:
        assert mean(claim.runs, *claim.on) - mean(claim.over[0], *claim.on) > claim.margin, claim
    assert (len(told), len(every)) == (9, 11)


def test_pairs_by_permutation_share_it_the_seed_and_what_both_read() -> None:
    claim = next(claim for claim in FAMILIES["vkitti2"] if claim.on == ("forgotten",))._replace(also=())
    drastic, mild = of_scenes(claim.runs, 50, 9), of_scenes(claim.over[0], 50, 5)
    assert judge([*drastic, *mild], [claim])[0].found.n == 11  # type: ignore[union-attr]
    # A second seed of a permutation is averaged in; a permutation without a partner is left out and said so.
    more = [*of_scenes(claim.runs, 50, 13, units=1, seed=1), *of_scenes(claim.over[0], 50, 5, units=1, seed=1)]
    (verdict,) = judge([*drastic, *mild[:-2], *more], [claim])
    assert verdict.found is not None
    assert (verdict.found.n, verdict.found.mean) == (9, pytest.approx((8 * 4 + 6) / 9))
    assert verdict.note == "Naive: left out, having no partner: 10 (seed 0), 11 (seed 0)"
    # They share the first domain, and weights: what differs there is no pair; what only one of them reads, is.
    for name, n in (("clone", 10), ("fog", 11), ("weights", 10)):
        item = next(part for part in drastic[3].identity["data"].split(", ") if name in part.split(" ")[0])
        data = drastic[3].identity["data"].replace(item, f"{item}-other")
        changed = drastic[3]._replace(identity={**drastic[3].identity, "data": data})
        (verdict,) = judge([*drastic[:3], changed, *drastic[4:], *mild], [claim])
        assert verdict.found is not None and verdict.found.n == n, name


def test_missing_scenes_are_named_with_their_protocol() -> None:
    claims = FAMILIES["vkitti2"]
    gain = next(each for claim in claims for each in claim.also if isinstance(each.runs, Gain))
    assert isinstance(gain.runs, Gain)
    made = of_scenes(gain.runs, 5)
    assert judge(made, [gain])[0].note == "no runs of dr in vkitti2/p3/*; no runs of naive in vkitti2/p3/*"
    assert judge(made[:11], [gain])[0].note.startswith(
        "no runs of naive in vkitti2/p1/*; no runs of dr in vkitti2/p3/*"
    )


def test_scores_on_scenes_are_known_by_their_condition() -> None:
    (made,) = of_scenes(Runs("vkitti2/p1/1", "naive"), 50, 7)
    assert score_of(made, "clone") == score_of(made, "scene02-clone") == 52
    assert score_of(made, "fog after clone") == 59
    assert score_of(made, "forgotten") == 7
