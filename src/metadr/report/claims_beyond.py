"""What the recommended methods are to reach, as claims on the runs of `metadr sweep beyond-final`.

metadr claims runs --of beyond

The paper's rows are numbers: differences from them have the spread of our runs alone. "Real" are the three domains
whose images are their publishers' own, here as in the paper.
"""

from metadr.recipes.beyond_final import FIRST_SEED
from metadr.report.claims import Claim, Printed, Runs, runs

REAL = "mnist+mnist_m+svhn"
MEMORIES = ("ER", "ER + DR", "ER + Meta-DR")


def _claims(protocol: str) -> tuple[Claim, ...]:
    def claim(name: str, ours: str, over: tuple[Runs | Printed, ...], on: str, margin: float = 0.0) -> Claim:
        return Claim(name, "Table 1", runs(protocol, ours), over, (on,), margin=margin, first_seed=FIRST_SEED)

    def paper(*rows: str) -> tuple[Printed, ...]:
        return tuple(Printed("table1", row, protocol.upper()) for row in rows)

    oracles = (runs(protocol, "oracle-all"), runs(protocol, "oracle-cumulative"))
    return (
        claim("Above our own Meta-DR with the paper's settings", "recommended", (runs(protocol, "meta-dr"),), "ACC"),
        claim("Above the paper's Meta-DR on the real domains", "recommended", paper("Meta-DR"), REAL),
        claim(
            "Above each of the paper's rows with a memory on the real domains", "recommended", paper(*MEMORIES), REAL
        ),
        claim("With M = 100, at most 2 points below our oracles", "recommended-er", oracles, "ACC", margin=-2.0),
    )


BEYOND_CLAIMS: tuple[Claim, ...] = (*_claims("p1"), *_claims("p2"))
