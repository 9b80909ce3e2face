"""Finished runs as pairs: of the same seed, or also of the same order or permutation of the domains."""

import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from metadr.benchmarks import get_benchmark, make_recipe
from metadr.core import Recipe
from metadr.report.claims import Gain, Printed, Runs
from metadr.report.comparison import title_of
from metadr.report.paper import PAPER, columns_of
from metadr.report.records import Record
from metadr.store import ARITHMETIC, description, whole_training


class Measured(NamedTuple):
    """One run, or of a gain a pair of them, under what the stars of its recipe stand for."""

    unit: tuple[str, ...]
    records: tuple[Record, ...]

    def score(self, name: str) -> float:
        first, *rest = (score_of(record, name) for record in self.records)
        return first - sum(rest)

    @property
    def seed(self) -> int:
        return self.records[0].seed

    @property
    def title(self) -> str:
        return " over ".join(record.title for record in self.records)


class Shelf:
    """Records by what they are runs of."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._by_recipe: dict[str, list[Record]] = defaultdict(list)
        for record in records:
            self._by_recipe[_text(_content_of(record.identity))].append(record)

    def get(self, side: Runs | Gain, first_seed: int = 0) -> tuple[list[Measured], list[str]]:
        """What there is of a side of a claim, and in words what is not; seeds before the first count nowhere."""
        if isinstance(side, Gain):
            (ours, missing), (theirs, also_missing) = (self.get(each, first_seed) for each in side)
            if not ours or not theirs:
                return [], missing + also_missing
            pairs, notes = pair(ours, theirs)
            return [Measured(one.unit, one.records + other.records) for one, other in pairs], notes
        found = [
            Measured(unit, (record,))
            for unit, recipe in recipes_of(side).items()
            for record in self._by_recipe.get(_text(_content_of(description(recipe))), ())
            if record.seed >= first_seed
        ]
        return found, [] if found else [f"no runs of {name_of(side)}"]


def recipes_of(wanted: Runs) -> dict[tuple[str, ...], Recipe]:
    """The recipes of some runs, by what the stars stand for: one without stars is one recipe."""
    if "*" not in wanted.recipe:
        return {(): recipe_of(wanted)}
    benchmark, _, pattern = wanted.recipe.partition("/")
    shape = re.compile(re.escape(pattern).replace(r"\*", "(.+)"))
    matches = ((name, shape.fullmatch(name)) for name in get_benchmark(benchmark).protocols)
    return {
        match.groups(): recipe_of(wanted._replace(recipe=f"{benchmark}/{name}")) for name, match in matches if match
    }


def recipe_of(wanted: Runs) -> Recipe:
    """The recipe of some runs: the benchmark's defaults, and what the claim names."""
    return make_recipe(wanted.recipe, wanted.method, **dict(wanted.fields))


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


class _Place(NamedTuple):
    """What two runs must have in common to be a pair."""

    ground: str
    unit: tuple[str, ...]
    data: str
    seed: int


def pair(ours: list[Measured], theirs: list[Measured]) -> tuple[list[tuple[Measured, Measured]], list[str]]:
    """Runs of the same unit and seed on the same data, and in words those that have no such partner."""
    read = [{each.unit: set(each.records[0].order) for each in side} for side in (ours, theirs)]
    here, there = (
        {_place_of(each, *(of[each.unit] for of in read if each.unit in of)): each for each in side}
        for side in (ours, theirs)
    )
    both = here.keys() & there.keys()
    if not both:
        one, other = (side[0].title for side in (ours, theirs))
        return [], [f"no run of {one} has a partner among those of {other}"]
    ground = _most(place.ground for place in both)
    units = {place.unit for place in both if place.ground == ground}
    data = {unit: _most(each.data for each in both if (each.ground, each.unit) == (ground, unit)) for unit in units}
    chosen = sorted(each for each in both if each.ground == ground and data[each.unit] == each.data)
    notes = []
    for side in (here, there):
        left = sorted(side.keys() - set(chosen))
        alone = [each for each in left if each.ground == ground and data.get(each.unit, each.data) == each.data]
        if not left:
            continue
        title = next(iter(side.values())).title
        if alone:
            names = [f"{'-'.join(each.unit)} (seed {each.seed})" if each.unit else f"{each.seed}" for each in alone]
            what = "" if alone[0].unit else "seed "
            notes.append(f"{title}: left out, having no partner: {what}{', '.join(dict.fromkeys(names))}")
        if others := len(left) - len(alone):
            notes.append(
                f"{title}: left out, on other data, from other weights, in another precision or on another device: "
                f"{others} run{'s' * (others > 1)}"
            )
    return [(here[place], there[place]) for place in chosen], notes


def _most(values: Iterable[str]) -> str:
    counts = Counter(values)
    return max(sorted(counts), key=lambda each: counts[each])


def _place_of(measured: Measured, *read: set[str]) -> _Place:
    """The place of a run among others: of its data, what all sides read decides, and what belongs to no domain."""
    record = measured.records[0]
    training = whole_training(record.identity)
    arithmetic = [training[name] for name in ARITHMETIC]  # both runs of a pair have the same
    ground = json.dumps([*arithmetic, "gpu" if record.environment["gpu"] else "cpu"])
    alone = {domain for domain in record.order if not all(domain in each for each in read)}
    data = [each for each in record.identity["data"].split(", ") if each.partition(" ")[0] not in alone]
    return _Place(ground, measured.unit, ", ".join(data), measured.seed)


def gains_of(pairs: list[tuple[Measured, Measured]], score: str) -> list[float]:
    """The difference of each pair; over units, the mean of those of one unit, which are no separate measurements."""
    by_unit: dict[Any, list[float]] = defaultdict(list)
    for ours, theirs in pairs:
        by_unit[ours.unit or ours.seed].append(ours.score(score) - theirs.score(score))
    return [sum(gains) / len(gains) for gains in by_unit.values()]


def score_of(record: Record, score: str) -> float:
    """A run's score by name: of a domain at the end, 'syn after mnist', 'mnist+svhn', 'kept', 'forgotten' or 'ACC'.

    A domain that is a scene under a condition is known by its condition.
    """
    if score in ("kept", "ACC"):
        value: float = getattr(record.summary, score.lower())
        return value
    if score == "forgotten":
        return -record.summary.bwt
    on, _, after = score.partition(" after ")
    known = {name: domain for domain in (*record.tested, *record.order) for name in (domain, domain.rpartition("-")[2])}
    moment = known[after] if after else record.order[-1]
    scores = {row["on"]: float(row["value"]) for row in record.rows if row["after"] == moment}
    return statistics.fmean(scores[known[domain]] for domain in on.split("+"))


def as_printed(ours: list[Measured], rival: Printed) -> tuple[list[Measured], list[str]]:
    """For every run a partner that ended with the numbers of the paper's row; before the end it has none."""
    known = columns_of(rival.table)

    def value(record: Record, row: dict[str, Any]) -> float:
        column = title_of(row["on"], known, rival.under)
        return PAPER[rival.table][rival.row, column].mean if row["after"] == record.order[-1] else math.nan

    def partner(record: Record) -> Record:
        return record._replace(rows=[{**row, "value": value(record, row)} for row in record.rows])

    return [Measured(each.unit, tuple(map(partner, each.records))) for each in ours], []


def name_of(side: Runs | Gain | Printed) -> str:
    """A side in words; where its recipe has stars, claims compare protocols too."""
    if isinstance(side, Gain):
        return f"{side.runs.method} over {name_of(side.over)}"
    if isinstance(side, Runs) and side.recipe.endswith("/*"):
        return f"{side.method} in {side.recipe}"
    return side.method
