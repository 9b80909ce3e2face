"""What the paper says of the digits, as data: which runs are compared, on which scores, in which direction.

metadr claims runs               every claim with its verdict
metadr claims runs -o FILE.md    the same as Markdown, for docs/reproduce.md
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

SGD = {"optimizer": "sgd", "lr": 0.01, "later_lr": 0.01}  # of Tables 10 and 11
DIGITS = ("mnist", "mnist_m", "syn", "svhn")
ORDERS = "*-*"  # all 24, by what they are


class Runs(NamedTuple):
    """The runs of a recipe over seeds, in the words of `metadr run RECIPE --method METHOD --set FIELD=VALUE`.

    A recipe with stars is that of all protocols of such names: 'digits/*-*' is every order of the domains.
    """

    recipe: str
    method: str
    fields: tuple[tuple[str, Any], ...] = ()


class Printed(NamedTuple):
    """A row of a table of the paper as a rival: numbers that are taken as they are, for every run that meets them."""

    table: str
    row: str
    under: str  # the head of its columns, such as 'P1'

    @property
    def method(self) -> str:
        return f"the paper's {self.row}"


class Gain(NamedTuple):
    """What some runs score more than others, pair by pair."""

    runs: Runs
    over: Runs


class Claim(NamedTuple):
    """That some runs score more than others, or gain more.

    A score is that on a domain at the end ('syn') or at another moment ('syn after mnist'), the mean of several
    ('mnist+svhn'), 'kept', 'forgotten' or 'ACC'. Pairs share a seed, and all that it draws. Where recipes have stars,
    pairs also share what these stand for, an order of the domains or a permutation of scenes, and that is what counts:
    its seeds are averaged.
    """

    name: str
    source: str  # the table or figure of the paper
    runs: Runs | Gain
    over: tuple[Runs | Gain | Printed, ...]  # each of them
    on: tuple[str, ...]
    kind: Literal["more", "no more"] = "more"
    cells: Literal["every", "some"] = "every"  # must it be so on every score and over every rival, or on one of them
    margin: float = 0.0  # by at least so many points; below zero, at most so many points less
    also: "tuple[Claim, ...]" = ()  # what must be so too for it to hold, elsewhere, by the same margin
    first_seed: int = 0  # those before it have had a part in what was chosen
    instead: "Claim | None" = None  # the same of other runs, where these are not there


def runs(protocol: str, method: str, **fields: Any) -> Runs:
    return Runs(f"digits/{protocol}", method, tuple(fields.items()))


def claim_with(claim: Claim, fields_of: Callable[[str], Mapping[str, Any]]) -> Claim:
    """The same claim on runs that have other settings too, both sides of it: those of their method."""

    def changed(side: Any) -> Any:
        if isinstance(side, Gain):
            return Gain(changed(side.runs), changed(side.over))
        if isinstance(side, Printed):
            return side
        return side._replace(fields=(*fields_of(side.method).items(), *side.fields))

    instead = claim.instead and claim_with(claim.instead, fields_of)
    also = tuple(claim_with(each, fields_of) for each in claim.also)
    return claim._replace(runs=changed(claim.runs), over=tuple(map(changed, claim.over)), also=also, instead=instead)


def _both_protocols(name: str, source: str, method: str, rival: str, *on: str, **rest: Any) -> tuple[Claim, ...]:
    return tuple(Claim(name, source, runs(each, method), (runs(each, rival),), on, **rest) for each in ("p1", "p2"))


def _dr() -> tuple[Claim, ...]:
    p2 = runs("p2", "dr"), (runs("p2", "naive"),), ("svhn",)
    mnist = "mnist_m after mnist", "syn after mnist", "svhn after mnist"
    psi2 = runs("p1", "dr", transforms="psi2")
    generalises = Claim(
        "DR generalises from MNIST alone to each other domain", "Table 4", psi2, (runs("p1", "naive"),), mnist
    )
    alone = (("order", DIGITS[:1]), ("tested", DIGITS[1:]))  # Table 4's own runs end after MNIST
    dr, naive = Runs("digits", "dr", (("transforms", "psi2"), *alone)), Runs("digits", "naive", alone)
    return (
        *_both_protocols("DR keeps more than Naive", "Table 1", "dr", "naive", "kept"),
        Claim("DR keeps more of SVHN than Naive", "Table 1", *p2),
        Claim("DR keeps at least 18 points more of SVHN, from 54 to 72", "Table 1", *p2, margin=18.0),
        generalises._replace(instead=generalises._replace(runs=dr, over=(naive,))),
    )


def _regularisers() -> tuple[Claim, ...]:
    claims: tuple[Claim, ...] = ()
    for method in ("l2", "ewc"):
        name, some = method.upper(), {"cells": "some"}
        nothing = f"{name} without DR gives nothing over Naive, on any domain"
        claims += _both_protocols(nothing, "Section 5.3", method, "naive", *DIGITS, kind="no more", **some)
        helps = f"{name} helps DR on some domain"
        claims += _both_protocols(helps, "Table 1", f"{method}+dr", "dr", *DIGITS, **some)
    return claims


def _meta_dr() -> tuple[Claim, ...]:
    def without_memory(protocol: str) -> tuple[Runs, ...]:
        return tuple(runs(protocol, rival) for rival in ("naive", "dr", "l2+dr", "ewc+dr"))

    kept, best = "Meta-DR keeps most of all methods without memory", "Meta-DR is best without memory"
    claims = [
        *(Claim(kept, "Table 1", runs(each, "meta-dr"), without_memory(each), ("kept",)) for each in ("p1", "p2")),
        Claim(f"{best}, on every domain", "Table 1", runs("p1", "meta-dr"), without_memory("p1"), DIGITS),
        Claim(f"{best}, on all but SVHN", "Table 1", runs("p2", "meta-dr"), without_memory("p2"), DIGITS[:3]),
        Claim("L2 + DR beats Meta-DR on SVHN", "Table 1", runs("p2", "l2+dr"), (runs("p2", "meta-dr"),), ("svhn",)),
    ]
    for protocol in ("p1", "p2"):
        for psi in ("psi1", "psi2", "psi3"):
            ours, theirs = (runs(protocol, method, transforms=psi) for method in ("meta-dr", "dr"))
            claims.append(Claim(f"Meta-DR beats DR with {psi}", "Figure 3", ours, (theirs,), ("ACC",)))
    return tuple(claims)


def _ablation() -> tuple[Claim, ...]:
    def meta_dr(**fields: Any) -> Runs:
        return runs("p1", "meta-dr", **fields)

    whole, naive, late = meta_dr(), runs("p1", "naive"), ("syn", "svhn")
    recall, adapt = meta_dr(adapt=0.0), meta_dr(recall=0.0)
    small, middle = meta_dr(inner_lr=0.001), meta_dr(inner_lr=0.01)
    return (
        Claim("Recall alone keeps more of MNIST than Naive", "Table 3", recall, (naive,), ("mnist",)),
        Claim("Recall keeps more of MNIST beside adapt", "Table 3", whole, (adapt,), ("mnist",)),
        Claim("Without adapt SYN and SVHN suffer", "Table 3", whole, (recall,), late),
        Claim("A larger alpha helps: 0.01 over 0.001", "Table 8", middle, (small,), ("ACC",)),
        Claim("A larger alpha helps: 0.1 over 0.01", "Table 8", whole, (middle,), ("ACC",)),
    )


def _memory() -> tuple[Claim, ...]:
    sizes = [
        Claim(name.format(size), "Table 10", *_with_memory("p1", size, ours, theirs), ("ACC",))
        for size in (200, 300, 400)
        for name, ours, theirs in (
            ("ER beats GEM, M = {}", "er", "gem"),
            ("DR adds to ER, M = {}", "er+dr", "er"),
            ("Meta-DR adds to ER, M = {}", "er+meta-dr", "er"),
        )
    ]
    orders = [
        Claim(name, "Table 11", *_with_memory(ORDERS, 100, ours, theirs), ("ACC",))
        for name, ours, theirs in (
            ("ER beats GEM", "er", "gem"),
            ("ER beats GEM with DR", "er+dr", "gem+dr"),
            ("DR adds to ER", "er+dr", "er"),
            ("Meta-DR adds to ER", "er+meta-dr", "er"),
            ("Meta-DR adds more to ER than DR", "er+meta-dr", "er+dr"),
        )
    ]
    return (
        *_both_protocols("A memory helps: ER keeps more than Naive", "Table 1", "er", "naive", "kept"),
        *_both_protocols("DR adds to ER", "Table 1", "er+dr", "er", "ACC"),
        *_both_protocols("Meta-DR adds to ER", "Table 1", "er+meta-dr", "er", "ACC"),
        *sizes,
        *orders,
    )


def _with_memory(protocol: str, size: int, ours: str, theirs: str) -> tuple[Runs, tuple[Runs, ...]]:
    fields = {"memory_per_domain": size, **SGD}
    return runs(protocol, ours, **fields), (runs(protocol, theirs, **fields),)


def _oracles() -> tuple[Claim, ...]:
    name = "An oracle is no upper bound: Meta-DR beats {} on some domain"
    return (
        *_both_protocols(name.format("all"), "Table 1", "meta-dr", "oracle-all", *DIGITS, cells="some"),
        *_both_protocols(name.format("cumulative"), "Table 1", "meta-dr", "oracle-cumulative", *DIGITS, cells="some"),
    )


CLAIMS: tuple[Claim, ...] = (*_dr(), *_regularisers(), *_meta_dr(), *_ablation(), *_memory(), *_oracles())
