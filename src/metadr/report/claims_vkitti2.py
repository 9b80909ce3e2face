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

    kept = [
        Claim(f"{title} keeps more than Naive", FIGURE, runs(each, method), (runs(each, "naive"),), ("kept",))
        for title, method in (("DR", "dr"), ("Meta-DR", "meta-dr"))
        for each in DRASTIC
    ]
    name = "Meta-DR is comparable to DR or better: at most 1 point below"
    comparable = [
        Claim(name, FIGURE, runs(each, "meta-dr"), (runs(each, "dr"),), ("ACC",), margin=-COMPARABLE)
        for each in (*DRASTIC, MILD)
    ]
    little = [
        Claim(
            f"{title} gains less over Naive where conditions change little",
            FIGURE,
            gain(each, method),
            (gain(MILD, method),),
            ("kept",),
        )
        for title, method in (("DR", "dr"), ("Meta-DR", "meta-dr"))
        for each in DRASTIC
    ]
    name = "Naive forgets more where conditions change drastically"
    forgotten = [Claim(name, SECTION, runs(each, "naive"), (runs(MILD, "naive"),), ("forgotten",)) for each in DRASTIC]
    return (*kept, *comparable, *little, *forgotten)


VKITTI2_CLAIMS = claims_on("vkitti2", {})
RENDERED_CLAIMS = claims_on(BENCHMARK, NETWORK)
