"""Which passes move batch norm's running statistics.

A policy changes nothing that is learnt, since training normalises by its own batches: it is what tests go by. So a run
of a method with passes of its own keeps the statistics of other policies beside those of its own, and its last test
is by each of them.
"""

import dataclasses
from collections.abc import Iterable, Sequence

from metadr.core import Part, Training
from metadr.training import FIRST, STATISTICS_ORDER, statistics_passes

KEPT = ("all", "clean", "inner", "inner+clean")


def policy_of(batch_norm: str, method: Iterable[type[Part] | None]) -> str:
    """Policies that are one, since the method has no other passes, by one name."""
    # A part says this of itself: what is made from it may have other passes.
    told = [None if part is None else vars(part).get("passes") for part in method]
    known = {"clean"}.union(*filter(None, told))
    roles = {*STATISTICS_ORDER} if None in told else known
    moving = [role for role in statistics_passes(batch_norm) if role in roles]
    # Not where there are memories: what was 'all' before GEM's counted has that name.
    every = "memory" not in known and len(roles) > 1 and len(moving) == len(roles)
    return "all" if every else "+".join(moving) or "none"


def settled(training: Training, method: Iterable[Part]) -> Training:
    """The policy 'first' by the passes that it means for a method.

    Where there is a simulated step, its pass moves them, since what it sees is transformed, as all that DR trains on
    is. Where none is known of, and a part does not say which passes it has, all do.
    """
    if training.batch_norm != FIRST:
        return training
    simulated = any(part.first_pass == "inner" for part in method)
    untold = any(vars(type(part)).get("passes") is None for part in method)
    moving = "memory+inner" if simulated else "all" if untold else "memory+clean"
    return dataclasses.replace(training, batch_norm=moving)


def others_kept(training: Training, method: Sequence[Part]) -> tuple[str, ...]:
    """The policies of which a run keeps the statistics beside those of its own, which is settled.

    None where they would be those of its own (a part that acts from the second domain on shares its first with runs
    that have none), and where training or the choice of an epoch goes by the statistics.
    """
    kinds = [type(part) for part in method]
    passes = {name for kind in kinds if not vars(kind).get("needs_a_past") for name in vars(kind).get("passes") or ()}
    by_running = training.tested_by == "running" and training.kept_epoch == "last" and training.later_norm == "batch"
    if not passes or not by_running:
        return ()
    known = dict.fromkeys(policy_of(each, kinds) for each in KEPT)
    return tuple(each for each in known if each != policy_of(training.batch_norm, kinds))
