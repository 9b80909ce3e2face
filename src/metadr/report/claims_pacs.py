"""What the paper says of PACS, as claims on the short study with a ResNet-50 (`metadr sweep pacs-resnet50`).

metadr claims runs --of pacs

What its text says and no more: three claims on Naive, Naive + DR and Meta-DR, which six seeds of these rows can decide.
"""

from metadr.recipes.pacs_resnet50 import SETTING
from metadr.report.claims import Claim, Runs


def runs(method: str) -> Runs:
    return Runs("pacs/p1", method, tuple(SETTING.items()))


def _claim(name: str, method: str, rivals: tuple[str, ...], on: str, *, margin: float = 0.0) -> Claim:
    return Claim(name, "Table 2", runs(method), tuple(map(runs, rivals)), (on,), margin=margin)


PACS_CLAIMS: tuple[Claim, ...] = (
    _claim("DR keeps more of Sketches than Naive", "dr", ("naive",), "sketch"),
    _claim("DR keeps at least 10 points more of Sketches, from 74 to 84", "dr", ("naive",), "sketch", margin=10.0),
    _claim("Meta-DR keeps more than Naive and DR", "meta-dr", ("naive", "dr"), "kept"),
    _claim("A memory helps: ER keeps more than Naive", "er", ("naive",), "kept"),
    _claim("DR adds to ER", "er+dr", ("er",), "ACC"),
    _claim("Meta-DR adds to ER", "er+meta-dr", ("er",), "ACC"),
    _claim("ER beats GEM with DR", "er+dr", ("gem+dr",), "ACC"),
)
