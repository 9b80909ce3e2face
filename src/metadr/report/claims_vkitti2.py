"""What the paper says of Virtual KITTI 2, as claims on Figure 4's runs, and on the same on rendered streets.

metadr claims runs --of vkitti2
metadr claims runs --of vkitti2-rendered
"""

from collections.abc import Mapping
from typing import Any

from metadr.recipes.vkitti2_rendered import BENCHMARK, NETWORK
from metadr.report.claims import Claim, Gain, Runs

FIGURE, SECTION = "Figure 4", "Section 5.1"
DRASTIC, MILD = ("p1", "p2"), "p3"  # by how much the conditions change
COMPARABLE = 1.0  # points of mean IoU: the paper puts no number to 'comparable'


def claims_on(benchmark: str, fields: Mapping[str, Any]) -> tuple[Claim, ...]:
    """The claims, on runs of all permutations of scenes with these settings."""

    def runs(protocol: str, method: str) -> Runs:
        return Runs(f"{benchmark}/{protocol}/*", method, tuple(fields.items()))

    def gain(protocol: str, method: str) -> Gain:
        return Gain(runs(protocol, method), runs(protocol, "naive"))

    def keeps_more(method: str) -> list[Claim]:
        return [Claim("", FIGURE, runs(each, method), (runs(each, "naive"),), ("kept",)) for each in DRASTIC]

    little = [Claim("", FIGURE, gain(each, "dr"), (gain(MILD, "dr"),), ("kept",)) for each in DRASTIC]
    comparable = [
        Claim("", FIGURE, runs(each, "meta-dr"), (runs(each, "dr"),), ("ACC",), margin=-COMPARABLE)
        for each in (*DRASTIC, MILD)
    ]
    forgotten = [Claim("", SECTION, runs(each, "naive"), (runs(MILD, "naive"),), ("forgotten",)) for each in DRASTIC]
    drastically, little_by = "where conditions change drastically", "where they change little"
    return (
        _all(f"DR keeps more than Naive {drastically}, and gains less {little_by}", [*keeps_more("dr"), *little]),
        _all(f"Meta-DR keeps more than Naive {drastically}", keeps_more("meta-dr")),
        _all("Meta-DR is comparable to DR or better: at most 1 point below", comparable),
        _all(f"Naive forgets more {drastically} than {little_by}", forgotten),
    )


def _all(name: str, claims: list[Claim]) -> Claim:
    """Several as one, by the least sure of them: so few permutations of scenes could not decide each by itself."""
    return claims[0]._replace(name=name, also=tuple(claims[1:]))


VKITTI2_CLAIMS = claims_on("vkitti2", {})
RENDERED_CLAIMS = claims_on(BENCHMARK, NETWORK)
