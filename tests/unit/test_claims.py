"""The paper's claims on digits, and those on PACS, put to hand-made runs whose answer is known."""

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from metadr.benchmarks import get_benchmark
from metadr.core import Recipe
from metadr.recipes import TABLES, get_table
from metadr.report import Record, pairs, read_records, write_report
from metadr.report.claims import CLAIMS, DIGITS, ORDERS, Claim, Gain, Runs, claim_with, runs
from metadr.report.pairs import recipe_of, recipes_of, score_of
from metadr.report.statistics import decidable, least_p
from metadr.report.verdicts import FAMILIES, Verdict, judge, markdown_claims, text_claims
from metadr.store import description

ENVIRONMENT = {"gpu": "abacus", "torch": "2.0", "metadr": "0.1", "commit": None, "dirty": False}
DR_OVER_NAIVE = Claim("DR keeps more", "Table 1", runs("p1", "dr"), (runs("p1", "naive"),), ("kept",))


@functools.cache
def content_of(wanted: Runs) -> dict[str, Any]:
    return description(next(iter(recipes_of(wanted).values())))


def record(
    wanted: Runs, seed: int, scores: dict[str, float], *, order: Any = None, data: str = "pixels", **changes: Any
) -> Record:
    """A finished run with these final scores (the others are 50), 10 points lower after each earlier domain."""
    content = content_of(wanted)
    order = list(order or content["order"])
    training = {**content["training"], **changes.pop("training", {})}
    identity = {**content, "format": 1, "data": data, "order": order, "training": training, "seed": seed}
    rows = [
        {"after": after, "on": on, "metric": "accuracy", "value": scores.get(on, 50.0) - 10 * back, "images": 9}
        for back, after in enumerate(reversed(["untrained", *order]))
        for on in order
    ]
    return Record(identity, {**ENVIRONMENT, **changes}, 60.0, rows)


def seeds(wanted: Runs, *finals: float, first: int = 0, **changes: Any) -> list[Record]:
    """A run for each number: its score on every domain."""
    return [
        record(wanted, seed, dict.fromkeys(DIGITS, final), **changes) for seed, final in enumerate(finals, start=first)
    ]


def one(records: list[Record], claim: Claim = DR_OVER_NAIVE) -> Verdict:
    (verdict,) = judge(records, [claim])
    return verdict


NAIVE, DR = runs("p1", "naive"), runs("p1", "dr")


def test_a_claim_that_holds() -> None:
    verdict = one([*seeds(NAIVE, 60, 62, 61, 63, 60), *seeds(DR, 70, 73, 71, 75, 72)])
    assert verdict.outcome == "holds"
    assert verdict.found is not None
    assert (verdict.found.n, verdict.found.mean) == (5, pytest.approx(11.0))  # 10 11 10 12 12
    assert verdict.found.spread == pytest.approx(1.0)
    assert verdict.p == verdict.corrected == 1 / 32
    assert verdict.note == ""


def test_runs_are_known_by_what_their_directories_say_of_them() -> None:
    """There, fields that came later are left out at the value that older runs had; others are another experiment."""
    stored = {wanted: description(recipe_of(wanted))["training"] for wanted in (NAIVE, DR)}
    assert "mirror" not in stored[NAIVE]
    pairs = zip((NAIVE, DR), (range(60, 65), range(70, 75)), strict=True)
    found = [each for wanted, finals in pairs for each in seeds(wanted, *finals)]
    kept = [
        each._replace(identity={**each.identity, "training": stored[NAIVE if not each.identity["method"] else DR]})
        for each in found
    ]
    assert one(kept).outcome == "holds"
    mirrored = [
        each._replace(identity={**each.identity, "training": {**each.identity["training"], "mirror": True}})
        for each in kept
    ]
    assert one(mirrored).outcome == "no runs"


def test_runs_that_read_their_data_otherwise_are_others() -> None:
    found = [*seeds(NAIVE, *range(60, 65)), *seeds(DR, *range(70, 75))]
    read = [each._replace(identity={**each.identity, "reading": {"num_val": 9}}) for each in found]
    assert one(found).outcome == "holds" and one(read).outcome == "no runs"


def test_a_claim_that_does_not_hold() -> None:
    turned = one([*seeds(NAIVE, 70, 73, 71, 75, 72), *seeds(DR, 60, 62, 61, 63, 60)])
    assert turned.outcome == "does not hold"
    assert turned.p == 1.0
    mixed = one([*seeds(NAIVE, 70, 70, 70, 70, 70, 70), *seeds(DR, 71, 69, 72, 68, 71, 70)])
    assert mixed.outcome == "not decided"  # it points the way claimed, and not surely
    assert mixed.corrected is not None and mixed.corrected > 0.05
    too_little = one([*seeds(NAIVE, *[70] * 6), *seeds(DR, *[75] * 6)], DR_OVER_NAIVE._replace(margin=6.0))
    assert (too_little.outcome, too_little.p) == ("does not hold", 1.0)
    assert one([*seeds(NAIVE, *[70] * 6), *seeds(DR, *[75] * 6)], DR_OVER_NAIVE._replace(margin=4.0)).outcome == "holds"


def test_too_few_seeds_decide_nothing() -> None:
    verdict = one([*seeds(NAIVE, 60, 60, 60), *seeds(DR, 90, 90, 90)])
    assert verdict.outcome == "not decided"
    assert verdict.found is not None
    assert (verdict.found.n, verdict.found.mean, verdict.p, verdict.corrected) == (3, 30.0, 1 / 8, None)


def test_missing_runs_are_said_to_be_missing() -> None:
    nothing = one([])
    assert (nothing.outcome, nothing.found) == ("no runs", None)
    assert nothing.note == "no runs of dr; no runs of naive"
    assert one(seeds(DR, 70, 71)).note == "no runs of naive"
    apart = one([*seeds(NAIVE, 60, 61), *seeds(DR, 70, 71, first=5)])
    assert apart.outcome == "no runs"
    assert apart.note == "no run of Naive + DR has a partner among those of Naive"


def test_seeds_without_a_partner_are_left_out_and_said_so() -> None:
    verdict = one([*seeds(NAIVE, *[60] * 8), *seeds(DR, *[70] * 6, first=3)])
    assert verdict.found is not None and verdict.found.n == 5
    assert verdict.outcome == "holds"
    assert verdict.note == (
        "Naive + DR: left out, having no partner: seed 8; Naive: left out, having no partner: seed 0, 1, 2"
    )


def test_a_copy_of_a_run_is_no_second_measurement() -> None:
    once = [*seeds(NAIVE, 60, 61, 60), *seeds(DR, 70, 70, 70)]
    assert one(once + once) == one(once)


def test_pairs_are_of_the_same_data_arithmetic_and_device() -> None:
    pairs = [*seeds(NAIVE, 60, 60), *seeds(DR, 70, 70)]
    for changes in ({"data": "other"}, {"training": {"precision": "bf16"}}, {"gpu": None}):
        other = [*seeds(NAIVE, 10, first=2, **changes), *seeds(DR, 90, first=2, **changes)]
        verdict = one([*pairs, *other])
        assert verdict.found is not None and (verdict.found.n, verdict.found.mean) == (2, 10.0)
        assert "on other data, from other weights, in another precision or on another device: 1 run" in verdict.note
        assert one([*pairs, *seeds(DR, 90, first=2, **changes)]).found == verdict.found


def test_runs_with_other_settings_are_other_runs() -> None:
    twins = (
        runs("p2", "dr"),
        runs("p1", "dr", transforms="psi2"),
        runs("p1", "dr", per="batch"),
        runs("p1", "dr", steps=7),
        runs("p1", "dr+l2"),
    )
    for twin in twins:
        assert one([*seeds(NAIVE, 60), *seeds(twin, 70)]).note == "no runs of dr"


def test_a_claim_can_be_put_to_runs_with_further_settings() -> None:
    scaled = {"scaling": "imagenet"}
    records = [*seeds(runs("p1", "naive", **scaled), 60), *seeds(runs("p1", "dr", **scaled), 70)]
    assert one(records).outcome == "no runs"
    verdict = one(records, claim_with(DR_OVER_NAIVE, lambda method: scaled))
    assert verdict.found is not None and (verdict.found.mean, verdict.found.n) == (10.0, 1)
    gained = Claim("x", "y", Gain(DR, NAIVE), (Gain(NAIVE, DR),), ("kept",))
    found = claim_with(gained, lambda method: scaled)
    sides = (*found.runs, *found.over[0])
    assert [side.fields for side in sides] == [tuple(scaled.items())] * 4


def wanted_of(recipe: Recipe) -> str:
    """What a claim wants of a run of this recipe."""
    return pairs._text(pairs._content_of(description(recipe)))


@pytest.mark.parametrize("family", ["digits", "beyond"])
def test_the_claims_on_networks_from_weights_are_those_on_the_digits(family: Any) -> None:
    """Each is put to recipes of a table with weights from a file."""
    claims, usual = FAMILIES[f"{family}-weights"], FAMILIES[family]  # type: ignore[index]
    assert [claim.name for claim in claims] == [claim.name for claim in usual]
    tables = [get_table(name) for name in TABLES if name.endswith("-weights")]
    there = {wanted_of(recipe) for table in tables for recipe in table.recipes}

    def recipes(claim: Claim) -> list[str]:
        sides = [side for side in (claim.runs, *claim.over) if isinstance(side, Runs)]
        return [wanted_of(each) for side in sides for each in recipes_of(side).values()]

    assert all(recipe in there for claim in claims for recipe in recipes(claim))
    assert not any(recipe in there for claim in usual for recipe in recipes(claim))


def test_every_score_has_to_hold_and_the_weakest_decides() -> None:
    claim = DR_OVER_NAIVE._replace(on=("syn", "svhn"))
    better = [record(DR, seed, {"syn": 80, "svhn": 55 + seed}) for seed in range(5)]
    verdict = one([*seeds(NAIVE, *[50] * 5), *better], claim)
    assert (verdict.outcome, verdict.where, verdict.p) == ("holds", "svhn", 1 / 32)
    assert verdict.found is not None and verdict.found.mean == 7.0
    worse = [record(DR, seed, {"syn": 80, "svhn": 49}) for seed in range(5)]
    verdict = one([*seeds(NAIVE, *[50] * 5), *worse], claim)
    assert (verdict.outcome, verdict.where, verdict.p) == ("does not hold", "svhn", 1.0)


def test_over_every_rival() -> None:
    rivals = (NAIVE, runs("p1", "l2+dr"))
    claim = DR_OVER_NAIVE._replace(over=rivals)
    found = [*seeds(DR, *[70] * 5), *seeds(rivals[0], *[60] * 5), *seeds(rivals[1], *[69] * 5)]
    verdict = one(found, claim)
    assert (verdict.outcome, verdict.where) == ("holds", "over l2+dr")
    assert one(found[:10], claim).note == "no runs of l2+dr"
    assert one(found[:-2], claim).outcome == "not decided"  # 3 pairs with one of them


def test_one_rival_with_enough_pairs_refutes_a_claim_over_several() -> None:
    rivals = (NAIVE, runs("p1", "l2+dr"))
    claim = DR_OVER_NAIVE._replace(over=rivals)
    few_worse = seeds(rivals[1], *[90] * 3)
    verdict = one([*seeds(DR, *[50] * 5), *seeds(NAIVE, 60, 61, 62, 63, 64), *few_worse], claim)
    assert (verdict.outcome, verdict.where) == ("does not hold", "over naive")
    assert verdict.found is not None and (verdict.found.n, verdict.found.mean) == (5, -12.0)
    # Three pairs alone refute nothing, whichever way they point, nor do five that point the way claimed.
    verdict = one([*seeds(DR, *[70] * 5), *seeds(NAIVE, *[60] * 5), *few_worse], claim)
    assert (verdict.outcome, verdict.where) == ("not decided", "over l2+dr")


def test_runs_that_end_earlier_stand_in_where_there_are_no_others() -> None:
    """Table 4's own runs see MNIST alone, and are tested on the others."""
    (claim,) = [claim for claim in CLAIMS if claim.source == "Table 4"]
    assert claim.instead is not None
    sides = {"dr": claim.instead.runs, "naive": claim.instead.over[0]}
    found = []
    for method, score in (("dr", 60.0), ("naive", 40.0)):
        content = content_of(sides[method])
        identity = {**content, "format": 1, "data": "pixels", "order": ["mnist"], "tested": list(DIGITS[1:])}
        for seed in range(5):
            rows = [
                {"after": after, "on": on, "metric": "accuracy", "value": score + seed, "images": 9}
                for after in ("untrained", "mnist")
                for on in DIGITS
            ]
            found.append(Record({**identity, "seed": seed}, ENVIRONMENT, 60.0, rows))
    verdict = one(found, claim)
    assert (verdict.outcome, verdict.p) == ("holds", 1 / 32)
    assert verdict.found is not None and verdict.found.mean == 20.0
    assert one(found[:5], claim).outcome == "no runs"


def test_some_score_is_paid_for() -> None:
    """The best of four scores is held against four times its p."""
    claim = DR_OVER_NAIVE._replace(on=DIGITS, cells="some")
    five, seven = ([record(DR, seed, {"syn": 80, "svhn": 20}) for seed in range(n)] for n in (5, 7))
    verdict = one([*seeds(NAIVE, *[50] * 5), *five], claim)
    assert (verdict.outcome, verdict.where, verdict.p) == ("not decided", "syn", 4 / 32)
    verdict = one([*seeds(NAIVE, *[50] * 7), *seven], claim)
    assert (verdict.outcome, verdict.where, verdict.p) == ("holds", "syn", 4 / 128)


def test_a_claim_of_no_gain_holds_where_none_is_found() -> None:
    claim = DR_OVER_NAIVE._replace(kind="no more")
    naive = seeds(NAIVE, *[60] * 5)
    assert one([*naive, *seeds(DR, 61, 59, 60, 61, 59)], claim).outcome == "holds"
    assert one([*naive, *seeds(DR, 40, 40, 40, 40, 40)], claim).outcome == "holds"
    assert one([*naive, *seeds(DR, 61, 61, 61, 61, 61)], claim).outcome == "does not hold"
    assert one([*naive[:4], *seeds(DR, 61, 61, 61, 61)], claim).outcome == "not decided"


def test_no_gain_is_judged_by_its_own_p_and_stays_out_of_the_family() -> None:
    records = [*seeds(NAIVE, *[60] * 5), *seeds(DR, *[61] * 5)]
    gain, none = judge(records, [DR_OVER_NAIVE, DR_OVER_NAIVE._replace(kind="no more")])
    assert (gain.outcome, gain.corrected) == ("holds", 1 / 32)
    assert (none.outcome, none.corrected) == ("does not hold", None)


def test_a_margin_has_to_be_exceeded() -> None:
    claim = DR_OVER_NAIVE._replace(margin=18.0)
    naive = seeds(NAIVE, *[54] * 5)
    above, below = one([*naive, *seeds(DR, 73, 74, 75, 73, 74)], claim), one([*naive, *seeds(DR, *[71] * 5)], claim)
    assert (above.outcome, below.outcome) == ("holds", "does not hold")
    assert above.found is not None and above.found.mean == pytest.approx(19.8)  # as it is, not above the margin
    assert one([*naive, *seeds(DR, *[72] * 5)], claim).outcome == "does not hold"  # a tie counts against it


def test_pairs_by_order() -> None:
    claim = Claim("DR adds", "", runs(ORDERS, "dr"), (runs(ORDERS, "naive"),), ("ACC",))
    orders = list(itertools.permutations(DIGITS))
    records = [
        record(side, 0, dict.fromkeys(DIGITS, score), order=order)
        for order in orders
        for side, score in ((NAIVE, 60.0), (DR, 61.0))
    ]
    verdict = one(records, claim)
    assert verdict.found is not None
    assert (verdict.outcome, verdict.found.n, verdict.p) == ("holds", 24, 2.0**-24)
    # A second seed of an order is no further measurement of orders: it is averaged in.
    again = [
        record(side, 1, dict.fromkeys(DIGITS, score), order=orders[0]) for side, score in ((NAIVE, 60.0), (DR, 63.0))
    ]
    verdict = one([*records, *again], claim)
    assert verdict.found is not None
    assert (verdict.found.n, verdict.found.mean) == (24, pytest.approx((23 * 1 + 2) / 24))
    assert one(records).found is not None  # by seed, p1 alone
    assert one(records).found.n == 1  # type: ignore[union-attr]


def test_holm_is_over_the_claims_that_can_be_decided() -> None:
    claims = [DR_OVER_NAIVE._replace(on=(on,)) for on in ("mnist", "syn")]
    few = Claim("few", "", runs("p2", "dr"), (runs("p2", "naive"),), ("kept",))
    records = [*seeds(NAIVE, *[60] * 6), *seeds(DR, *[61] * 6)]
    records += [*seeds(runs("p2", "naive"), 60, 60), *seeds(runs("p2", "dr"), 61, 61)]
    first, second, third = judge(records, [*claims, few])
    assert (first.p, first.corrected, second.corrected) == (1 / 64, 2 / 64, 2 / 64)
    assert [first.outcome, second.outcome, third.outcome] == ["holds", "holds", "not decided"]
    # Five pairs each could not pass beside one another.
    assert {each.outcome for each in judge([*records[:5], *records[6:11]], claims)} == {"not decided"}


def test_scores_by_name() -> None:
    made = record(NAIVE, 0, {"mnist": 90, "mnist_m": 60, "syn": 75, "svhn": 95})
    assert score_of(made, "syn") == 75
    assert score_of(made, "ACC") == 80
    assert score_of(made, "kept") == 75
    assert score_of(made, "svhn after mnist") == 95 - 30


def test_tables_show_every_claim_and_what_was_left_out() -> None:
    records = [*seeds(NAIVE, 60, 61, 60, 62), *seeds(DR, 70, 71, 71)]
    verdicts = judge(records)
    text = markdown_claims(verdicts)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(CLAIMS) == text_claims(verdicts).row_count + 2
    assert len({row.count("|") for row in rows}) == 1
    row = next(row for row in rows if row.startswith("| DR keeps more than Naive | Table 1 | P1"))
    assert row == "| DR keeps more than Naive | Table 1 | P1: kept | not decided | +10.3 ± 0.6 | 3 | 0.12 |  |"
    assert "- DR keeps more than Naive (P1: kept): Naive: left out, having no partner: seed 3." in text
    assert f"{len(CLAIMS)} claims: 0 holds, 0 does not hold, 1 not decided, {len(CLAIMS) - 1} no runs." in text


def test_the_papers_claims_are_sound() -> None:
    assert len({(claim.name, claim.runs) for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        ours = recipes_of(claim.runs)
        assert claim.over and claim.on
        for rival in map(recipes_of, claim.over):
            assert rival.keys() == ours.keys()
            for unit, recipe in rival.items():
                assert recipe != ours[unit]
                assert (recipe.order, dict(recipe.overrides)) == (ours[unit].order, dict(ours[unit].overrides))
        known = {*DIGITS, "kept", "ACC"}
        assert all(set(on.split(" after ")) <= known for on in claim.on)
        assert re.fullmatch(r"(Table|Figure|Section) [\d.]+", claim.source)


def test_every_claim_can_hold_or_not() -> None:
    """Runs in which the compared side is a little, or a little less, of everything: claims come out as they should."""
    for better, gain, none in ((1.0, "holds", "does not hold"), (-1.0, "does not hold", "holds")):
        for claim in CLAIMS:
            orders = list(itertools.permutations(DIGITS)) if claim.runs.recipe == f"digits/{ORDERS}" else [None]
            sides = [(claim.runs, 60 + better + claim.margin), *((rival, 60.0) for rival in claim.over)]
            made = [
                record(side, seed, dict.fromkeys(DIGITS, score), order=order)
                for side, score in sides
                for order in orders
                for seed in range(1 if order else 10)
            ]
            assert one(made, claim).outcome == (gain if claim.kind == "more" else none), claim.name


def test_the_claims_on_pacs_are_sound_and_can_hold_or_not() -> None:
    claims = FAMILIES["pacs"]
    assert len({claim.name for claim in claims}) == len(claims)
    table = {str(description(recipe)["method"]) for recipe in get_table("pacs-resnet50").recipes}
    domains = get_benchmark("pacs").domains
    for claim in claims:
        assert {str(content_of(each)["method"]) for each in (claim.runs, *claim.over)} <= table
        for better, outcome in ((1.0, "holds"), (-1.0, "does not hold")):
            sides = [(claim.runs, 60 + better + claim.margin), *((rival, 60.0) for rival in claim.over)]
            made = [record(side, n, dict.fromkeys(domains, score)) for side, score in sides for n in range(5)]
            verdict = one(made, claim)
            assert verdict.outcome == outcome, claim.name
            assert f"| PACS: {claim.on[0]} |" in markdown_claims([verdict])


@pytest.mark.parametrize(("seeds", "others", "decided"), [(5, 2, 0), (6, 2, 3), (7, 7, 0), (8, 8, 7)])
def test_so_many_seeds_of_pacs_decide_so_many_claims(seeds: int, others: int, decided: int) -> None:
    """Of three rows, and of the others: the pages name these numbers."""
    three = {"naive", "dr", "meta-dr"}
    needed = [{each.method for each in (claim.runs, *claim.over)} for claim in FAMILIES["pacs"]]
    assert sum(decidable([least_p(seeds if methods <= three else others) for methods in needed])) == decided


def test_records_are_those_of_reports(tmp_path: Path) -> None:
    made = [*seeds(NAIVE, 60, 61), *seeds(DR, 70, 72)]
    write_report(made, tmp_path / "made")
    assert one(read_records(tmp_path / "made.json")) == one(made)
