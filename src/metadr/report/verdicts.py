"""Claims put to finished runs: each holds, does not hold, is not decided by so few runs, or has none."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table as TextTable

from metadr.recipes.digits import SYN
from metadr.recipes.first_read import NOT_RUN_AGAIN, first_read_with
from metadr.recipes.from_weights import started_with
from metadr.report.claims import CLAIMS, ORDERS, Claim, Gain, Printed, Runs, claim_with
from metadr.report.claims_beyond import BEYOND_CLAIMS
from metadr.report.claims_pacs import PACS_CLAIMS
from metadr.report.claims_vkitti2 import RENDERED_CLAIMS, VKITTI2_CLAIMS
from metadr.report.pairs import Shelf, as_printed, gains_of, name_of, pair
from metadr.report.records import Record
from metadr.report.statistics import LEVEL, Paired, compare, decidable, holm


def _from_weights(claim: Claim) -> Claim:
    started = claim_with(claim, started_with)
    return claim_with(started, first_read_with) if claim.source.lower().replace(" ", "") in NOT_RUN_AGAIN else started


# Each is a family of its own: what is asked of one says nothing of how often another was tried.
Family = Literal["digits", "digits-weights", "pacs", "vkitti2", "vkitti2-rendered", "beyond", "beyond-weights"]
FAMILIES: dict[Family, tuple[Claim, ...]] = {
    "digits": tuple(claim_with(claim, first_read_with) for claim in CLAIMS),
    "digits-weights": tuple(map(_from_weights, CLAIMS)),
    "pacs": PACS_CLAIMS,
    "vkitti2": VKITTI2_CLAIMS,
    "vkitti2-rendered": RENDERED_CLAIMS,
    "beyond": tuple(claim_with(claim, first_read_with) for claim in BEYOND_CLAIMS),
    "beyond-weights": tuple(claim_with(claim, started_with) for claim in BEYOND_CLAIMS),
}
Outcome = Literal["holds", "does not hold", "not decided", "no runs"]
HEAD = ("claim", "paper", "on", "verdict", "difference", "n", "p", "p, Holm")


class Verdict(NamedTuple):
    """What finished runs say of a claim."""

    claim: Claim
    outcome: Outcome
    found: Paired | None = None  # of several comparisons the one that decides: the weakest, or of `some` the strongest
    where: str = ""  # which one that is
    p: float | None = None
    corrected: float | None = None  # none where it is not of the family
    against: "Comparison | None" = None  # of several, one that points the other way: that with the most pairs
    note: str = ""


class Comparison(NamedTuple):
    """One score of a claim, over one rival."""

    found: Paired
    where: str


def judge(records: Iterable[Record], claims: Sequence[Claim] = CLAIMS, *, level: float = LEVEL) -> list[Verdict]:
    """Put each claim to the runs that it speaks of.

    A claim of a difference is tested one-sided and corrected among all claims whose number of pairs can decide them.
    Where too few pairs with one rival leave a claim over several open, another with enough of them can refute it. A
    claim of no difference holds where none is found: it is judged by its own p, since a corrected one would favour it.
    """
    shelf = Shelf(records)
    tested = [_test(claim, shelf) for claim in claims]
    least = [_least(verdict) for verdict in tested]
    family = [i for i, verdict in enumerate(tested) if verdict.found and verdict.claim.kind == "more"]
    able = decidable([least[i] for i in family], level)
    family = [i for i, kept in zip(family, able, strict=True) if kept]
    corrected = dict(zip(family, holm([_p(tested[i]) for i in family]), strict=True))
    enough = max((least[i] for i in family), default=level)  # what a p must be able to be
    verdicts = []
    for i, verdict in enumerate(tested):
        outcome: Outcome = "not decided"
        if verdict.found is None:
            outcome = "no runs"
        elif i in corrected:
            if corrected[i] <= level:
                outcome = "holds"
            elif verdict.found.mean <= verdict.claim.margin:  # what points the way claimed, if not surely, is open
                outcome = "does not hold"
        elif verdict.claim.kind == "no more" and least[i] <= level:
            outcome = "holds" if _p(verdict) > level else "does not hold"
        elif verdict.against and verdict.against.found.least_p <= enough:
            outcome = "does not hold"
            verdict = verdict._replace(
                found=verdict.against.found, where=verdict.against.where, p=verdict.against.found.p
            )
        verdicts.append(verdict._replace(outcome=outcome, corrected=corrected.get(i)))
    return verdicts


def markdown_claims(verdicts: Sequence[Verdict]) -> str:
    """A Markdown table, and below it what was left out of it."""
    rows = [HEAD, ("---",) * 4 + ("---:",) * 4, *map(_cells, verdicts)]
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    notes = "".join(f"- {_notes_name(verdict)}: {verdict.note}.\n" for verdict in verdicts if verdict.note)
    rendered = f"\n{SYN}\n" if any(_on_digits(verdict.claim.runs) for verdict in verdicts) else ""
    return table + f"\n{reading(verdicts)}\n" + rendered + (f"\n{notes}" if notes else "")


def text_claims(verdicts: Sequence[Verdict]) -> TextTable:
    """The same for a terminal; the notes are printed below it."""
    table = TextTable(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for index, name in enumerate(HEAD):
        table.add_column(name, justify="left" if index < 4 else "right", no_wrap=index > 4, overflow="fold")
    for verdict in verdicts:
        table.add_row(*_cells(verdict))
    return table


def reading(verdicts: Sequence[Verdict]) -> str:
    """How many came out how, and how to read it."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    tally = ", ".join(f"{counts[each]} {each}" for each in ("holds", "does not hold", "not decided", "no runs"))
    size = sum(verdict.corrected is not None for verdict in verdicts)
    return (
        f"{len(verdicts)} claims: {tally}. Difference: mean of paired differences in points ± their standard "
        "deviation; of several, the one that decides. p: exact sign-flip test, one-sided; Holm: corrected among the "
        f"{size} claims that their n can decide at {LEVEL}."
    )


def _test(claim: Claim, shelf: Shelf) -> Verdict:
    """All comparisons of a claim as one: the weakest of those that must all hold, the strongest where one is enough."""
    everywhere = [_comparisons(each, shelf, claim) for each in (claim, *claim.also)]
    note = "; ".join(dict.fromkeys(note for _, notes in everywhere for note in notes))
    if any(found is None for found, _ in everywhere):
        instead = claim.instead and _test(claim.instead, shelf)
        return instead._replace(claim=claim) if instead and instead.found else Verdict(claim, "no runs", note=note)
    comparisons = [each for found, _ in everywhere for each in found or ()]
    weakest_first = sorted(comparisons, key=lambda each: (-each.found.p, each.found.mean))
    chosen = weakest_first[0 if claim.cells == "every" else -1]
    against = (
        [each for each in weakest_first if each.found.mean <= 0]
        if (claim.kind, claim.cells) == ("more", "every")
        else []
    )
    if claim.cells == "every":
        p, least = chosen.found.p, max(each.found.least_p for each in comparisons)
    else:  # the strongest of so many is not one that was named beforehand
        p = min(1.0, len(comparisons) * chosen.found.p)
        least = min(1.0, len(comparisons) * min(each.found.least_p for each in comparisons))
    most = min(against, key=lambda each: each.found.least_p, default=None)
    found = chosen.found._replace(mean=chosen.found.mean + claim.margin, least_p=least)
    against_it = most and most._replace(found=most.found._replace(mean=most.found.mean + claim.margin))
    return Verdict(claim, "not decided", found, chosen.where, p, against=against_it, note=note)


def _comparisons(claim: Claim, shelf: Shelf, whole: Claim) -> tuple[list[Comparison] | None, list[str]]:
    """Those of a claim in one place, less the margin, none if runs of some are missing; and what was left out."""
    ours, notes = shelf.get(claim.runs, claim.first_seed)
    comparisons: list[Comparison] = []
    for rival in claim.over:
        theirs, missing = as_printed(ours, rival) if isinstance(rival, Printed) else shelf.get(rival, claim.first_seed)
        notes += missing
        if not ours or not theirs:
            continue
        pairs, left_out = pair(ours, theirs)
        notes += left_out
        for score in claim.on if pairs else ():
            differences = [gain - whole.margin for gain in gains_of(pairs, score)]
            where = [_places(claim)] * bool(whole.also) + [score] * (len(claim.on) > 1)
            where += [f"over {name_of(rival)}"] * (len(claim.over) > 1)
            comparisons.append(Comparison(compare(differences), ", ".join(where)))
    return comparisons if len(comparisons) == len(claim.over) * len(claim.on) else None, notes


def _p(verdict: Verdict) -> float:
    return 1.0 if verdict.p is None else verdict.p


def _least(verdict: Verdict) -> float:
    return verdict.found.least_p if verdict.found else 1.0


def _cells(verdict: Verdict) -> tuple[str, ...]:
    found, claim = verdict.found, verdict.claim
    on = _on(claim)
    if found is None:
        return (claim.name, claim.source, on, verdict.outcome, "", "0", "", "")
    spread = "" if found.spread is None else f" ± {found.spread:.1f}"
    where = f" ({verdict.where})" if verdict.where else ""
    p = "" if verdict.p is None else f"{verdict.p:.2g}"
    corrected = "" if verdict.corrected is None else f"{verdict.corrected:.2g}"
    return (
        claim.name,
        claim.source,
        on,
        verdict.outcome,
        f"{found.mean:+.1f}{spread}{where}",
        str(found.n),
        p,
        corrected,
    )


def _on(claim: Claim) -> str:
    """Where a claim is tested, in words: 'P2: svhn'."""
    return "; ".join(f"{_places(each)}: {', '.join(each.on)}" for each in (claim, *claim.also))


def _places(claim: Claim) -> str:
    sides = (side.runs if isinstance(side, Gain) else side for side in (claim.runs, *claim.over))
    return " and ".join(dict.fromkeys(_where(side) for side in sides if isinstance(side, Runs)))


def _on_digits(side: Runs | Gain) -> bool:
    return (side.runs if isinstance(side, Gain) else side).recipe.startswith("digits")


def _where(wanted: Runs) -> str:
    benchmark, _, protocol = wanted.recipe.partition("/")
    if benchmark == "pacs":
        return "PACS"
    return "orders" if protocol == ORDERS else protocol.removesuffix("/*").upper()


def _notes_name(verdict: Verdict) -> str:
    return f"{verdict.claim.name} ({_on(verdict.claim)})"
