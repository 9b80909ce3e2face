"""Claims put to finished runs: each holds, does not hold, is not decided by so few runs, or has none."""

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table as TextTable

from metadr.benchmarks import make_recipe
from metadr.core import Recipe
from metadr.report.claims import CLAIMS, STUDY, Claim, Printed, Runs
from metadr.report.claims_beyond import BEYOND_CLAIMS
from metadr.report.claims_pacs import PACS_CLAIMS
from metadr.report.comparison import title_of
from metadr.report.paper import PAPER, columns_of
from metadr.report.records import Record
from metadr.report.statistics import LEVEL, Paired, compare, decidable, holm
from metadr.store import ARITHMETIC, description, whole_training

# Each is a family of its own: what is asked of one says nothing of how often another was tried.
Family = Literal["digits", "pacs", "beyond"]
FAMILIES: dict[Family, tuple[Claim, ...]] = {"digits": CLAIMS, "pacs": PACS_CLAIMS, "beyond": BEYOND_CLAIMS}
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
    note: str = ""


class Comparison(NamedTuple):
    """One score of a claim, over one rival."""

    found: Paired
    where: str


def judge(records: Iterable[Record], claims: Sequence[Claim] = CLAIMS, *, level: float = LEVEL) -> list[Verdict]:
    """Put each claim to the runs that it speaks of.

    A claim of a difference is tested one-sided and corrected among all claims whose number of pairs can decide them. A
    claim of no difference holds where none is found: it is judged by its own p, since a corrected one would favour it.
    """
    shelf = _Shelf(records)
    tested = [_test(claim, shelf) for claim in claims]
    least = [_least(verdict) for verdict in tested]
    family = [i for i, verdict in enumerate(tested) if verdict.found and verdict.claim.kind == "more"]
    able = decidable([least[i] for i in family], level)
    family = [i for i, kept in zip(family, able, strict=True) if kept]
    corrected = dict(zip(family, holm([_p(tested[i]) for i in family]), strict=True))
    verdicts = []
    for i, verdict in enumerate(tested):
        outcome: Outcome = "not decided"
        if verdict.found is None:
            outcome = "no runs"
        elif i in corrected:
            outcome = "holds" if corrected[i] <= level else "does not hold"
        elif verdict.claim.kind == "no more" and least[i] <= level:
            outcome = "holds" if _p(verdict) > level else "does not hold"
        verdicts.append(verdict._replace(outcome=outcome, corrected=corrected.get(i)))
    return verdicts


def markdown_claims(verdicts: Sequence[Verdict]) -> str:
    """A Markdown table, and below it what was left out of it."""
    rows = [HEAD, ("---",) * 4 + ("---:",) * 4, *map(_cells, verdicts)]
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    notes = "".join(f"- {_notes_name(verdict)}: {verdict.note}.\n" for verdict in verdicts if verdict.note)
    return table + f"\n{reading(verdicts)}\n" + (f"\n{notes}" if notes else "")


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


class _Shelf:
    """Records by what they are runs of."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_recipe: dict[str, list[Record]] = defaultdict(list)
        self._by_method: dict[str, list[Record]] = defaultdict(list)  # whatever the order of the domains
        for record in records:
            content = _content_of(record.identity)
            self._by_recipe[_text(content)].append(record)
            self._by_method[_text({**content, "order": sorted(record.order)})].append(record)

    def get(self, wanted: Runs, *, any_order: bool) -> list[Record]:
        content = _content_of(description(recipe_of(wanted)))
        if any_order:
            return self._by_method.get(_text({**content, "order": sorted(content["order"])}), [])
        return self._by_recipe.get(_text(content), [])


def recipe_of(wanted: Runs) -> Recipe:
    """The recipe of some runs: the benchmark's defaults, what the study sets, and what the claim names."""
    parts = wanted.method.split("+")
    study = {name: value for name, value in STUDY.items() if "." not in name or name.split(".")[0] in parts}
    return make_recipe(wanted.recipe, wanted.method, **{**study, **dict(wanted.fields)})


def _content_of(identity: dict[str, Any]) -> dict[str, Any]:
    """What a claim wants of a run, but for its data and seed."""
    training = {name: value for name, value in whole_training(identity).items() if name not in ARITHMETIC}
    rest = ("benchmark", "method", "memory_per_domain", "memory_choice", "access")
    # Domains that are seen at any time have no order: such runs stand for every protocol.
    order = sorted(identity["order"]) if identity["access"] == "all" else identity["order"]
    read = {"order": order, "reading": identity.get("reading", {})}
    return {**{name: identity[name] for name in rest}, **read, "training": training}


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, sort_keys=True)


def _test(claim: Claim, shelf: _Shelf) -> Verdict:
    """All comparisons of a claim as one: the weakest of those that must all hold, the strongest where one is enough."""
    found_runs = shelf.get(claim.runs, any_order=claim.pairs == "order")
    ours = [each for each in found_runs if each.seed >= claim.first_seed]
    comparisons: list[Comparison] = []
    notes: list[str] = []
    for rival in claim.over:
        if isinstance(rival, Printed):
            theirs = [_as_printed(each, rival) for each in ours]
        else:
            theirs = shelf.get(rival, any_order=claim.pairs == "order")
        both = ((claim.runs, ours), (rival, theirs))
        missing = [each.method for each, found in both if not found and isinstance(each, Runs)]
        if missing:
            notes += [f"no runs of {method}" for method in missing]
            continue
        pairs, left_out = _pair(ours, theirs, claim.pairs)
        notes += left_out
        if not pairs:
            notes.append(f"no run of {claim.runs.method} has a partner among those of {rival.method}")
            continue
        for score in claim.on:
            differences = [gain - claim.margin for gain in _gains(pairs, score, claim.pairs)]
            where = [score] * (len(claim.on) > 1) + [f"over {rival.method}"] * (len(claim.over) > 1)
            comparisons.append(Comparison(compare(differences), ", ".join(where)))
    note = "; ".join(dict.fromkeys(notes))
    if len(comparisons) < len(claim.over) * len(claim.on):
        return Verdict(claim, "no runs", note=note)
    weakest_first = sorted(comparisons, key=lambda each: (-each.found.p, each.found.mean))
    chosen = weakest_first[0 if claim.cells == "every" else -1]
    found = chosen.found
    if claim.cells == "every":
        p, least = found.p, max(each.found.least_p for each in comparisons)
    else:  # the strongest of so many is not one that was named beforehand
        p = min(1.0, len(comparisons) * found.p)
        least = min(1.0, len(comparisons) * min(each.found.least_p for each in comparisons))
    found = found._replace(mean=found.mean + claim.margin, least_p=least)
    return Verdict(claim, "not decided", found, chosen.where, p, note=note)


def _as_printed(record: Record, rival: Printed) -> Record:
    """A run like another that ended with the numbers of the paper's row; before the end it has none."""
    known = columns_of(rival.table)
    last = record.order[-1]

    def value(row: dict[str, Any]) -> float:
        column = title_of(row["on"], known, rival.under)
        return PAPER[rival.table][rival.row, column].mean if row["after"] == last else math.nan

    return record._replace(rows=[{**row, "value": value(row)} for row in record.rows])


def _pair(ours: list[Record], theirs: list[Record], unit: str) -> tuple[list[tuple[Record, Record]], list[str]]:
    """Runs of the same seed (and order, where pairs are these) on the same data; in words those without a partner."""

    def place(each: Record) -> tuple[str, tuple[str, ...], int]:
        return _ground(each), each.order if unit == "order" else (), each.seed

    here, there = ({place(each): each for each in side} for side in (ours, theirs))
    both = here.keys() & there.keys()
    if not both:
        return [], []
    grounds = Counter(ground for ground, *_ in both)
    ground = max(sorted(grounds), key=lambda each: grounds[each])
    chosen = sorted(place for place in both if place[0] == ground)
    notes = []
    for side in (here, there):
        left = sorted(side.keys() - set(chosen))
        if not left:
            continue
        title = next(iter(side.values())).title
        alone = [f"{seed}" for found, _, seed in left if found == ground]
        elsewhere = len(left) - len(alone)
        if alone:
            notes.append(f"{title}: left out, having no partner: seed {', '.join(dict.fromkeys(alone))}")
        if elsewhere:
            notes.append(
                f"{title}: left out, on other data, in another precision or on another device: {elsewhere} runs"
            )
    return [(here[place], there[place]) for place in chosen], notes


def _ground(record: Record) -> str:
    """What must be the same for two runs of a seed to have drawn the same: data, arithmetic, kind of device."""
    training = whole_training(record.identity)
    arithmetic = [training[name] for name in ARITHMETIC]
    return json.dumps([record.identity["data"], *arithmetic, "gpu" if record.environment["gpu"] else "cpu"])


def _gains(pairs: list[tuple[Record, Record]], score: str, unit: str) -> list[float]:
    """The difference of each pair; over orders, the mean of those of one order, which are no separate measurements."""
    by_unit: dict[Any, list[float]] = defaultdict(list)
    for ours, theirs in pairs:
        key = ours.seed if unit == "seed" else ours.order
        by_unit[key].append(score_of(ours, score) - score_of(theirs, score))
    return [sum(gains) / len(gains) for gains in by_unit.values()]


def score_of(record: Record, score: str) -> float:
    """A run's score by name: of a domain at the end, 'syn after mnist', 'mnist+svhn', 'kept' or 'ACC'."""
    if score in ("kept", "ACC"):
        value: float = getattr(record.summary, score.lower())
        return value
    on, _, after = score.partition(" after ")
    scores = record.scores[record.order.index(after) + 1 if after else -1]
    return statistics.fmean(scores[record.order.index(domain)] for domain in on.split("+"))


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
    benchmark, _, protocol = claim.runs.recipe.partition("/")
    place = "orders" if claim.pairs == "order" else protocol.upper() if benchmark == "digits" else benchmark.upper()
    return f"{place}: {', '.join(claim.on)}"


def _notes_name(verdict: Verdict) -> str:
    return f"{verdict.claim.name} ({_on(verdict.claim)})"
