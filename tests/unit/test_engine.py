"""The engine on a CPU: what steps leave to look at, and data that runs share."""

import dataclasses
import gc
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from metadr.core import Batch, Context, Part
from metadr.domains import _RESIDENTS, load_domains
from metadr.engine.log import LOOK_EVERY, Taken
from metadr.errors import UserError
from metadr.parts import L2, PARTS, MetaDR
from metadr.run import advance, run
from metadr.store import RunDirectory

CPU = torch.device("cpu")


# What steps leave to look at.


def test_taken_is_one_row_a_step_and_a_word_on_the_weights():
    values = torch.tensor([3.0, 1.0, 2.0, 30.0, 10.0, 20.0, 1.0], dtype=torch.float64)
    rows, finite = Taken(("loss", "clean", "dr"), values).read()
    assert rows == [{"loss": 3.0, "clean": 1.0, "dr": 2.0}, {"loss": 30.0, "clean": 10.0, "dr": 20.0}]
    assert finite is True
    values[-1] = 0.0
    assert Taken(("loss", "clean", "dr"), values).read()[1] is False


def test_steps_tell_the_loss_and_its_terms_at_every_step(toy):
    learner, again = toy.learner(MetaDR(), L2()), toy.learner(MetaDR(), L2())
    toy.on_second_domain(learner)
    toy.on_second_domain(again)
    rows, finite = learner.steps(5).read()
    assert finite
    assert [list(row) for row in rows] == [["loss", "clean", "l2", "meta-dr"]] * 5
    for row in rows:
        assert row["loss"] == pytest.approx(row["clean"] + row["l2"] + row["meta-dr"], rel=1e-6)
        terms = again.step()
        assert row == {"loss": float(terms.loss), **{name: float(term) for name, term in terms.by_name.items()}}


def test_steps_may_be_taken_in_any_portions(toy, toys):
    whole, parts = toy.learner(MetaDR()), toy.learner(MetaDR())
    for each in (whole, parts):
        each.begin_domain(toy.domains[0].train, first=True)
    wanted = whole.steps(7).read()[0]
    first, second = parts.steps(3), parts.steps(4)  # the first is read after the second is on its way
    assert first.read()[0] + second.read()[0] == wanted
    toys.assert_same_bits(parts.state(), whole.state())


def test_steps_are_looked_at_in_time(classification):
    learner = classification.learner()
    learner.begin_domain(classification.domains[0].train, first=True)
    with pytest.raises(
        ValueError, match=rf"At most {LOOK_EVERY} steps may be taken before a look\. Got {LOOK_EVERY + 1}\."
    ):
        learner.steps(LOOK_EVERY + 1)
    rows, finite = learner.steps(LOOK_EVERY).read()
    assert len(rows) == LOOK_EVERY
    assert len({row["loss"] for row in rows}) > LOOK_EVERY / 2  # each in a row of its own
    assert finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_weights_that_are_not_finite_are_seen_though_the_loss_is(value, which, classification, monkeypatch):
    """The last update of a row shows in no loss of it."""
    learner = classification.learner()
    learner.begin_domain(classification.domains[0].train, first=True)
    update = learner.optimizer.step

    def poisoned() -> None:
        update()
        with torch.no_grad():
            list(learner.network.params.values())[which].view(-1)[1] = value

    monkeypatch.setattr(learner.optimizer, "step", poisoned)
    rows, finite = learner.steps(1).read()
    assert torch.tensor(rows[0]["loss"]).isfinite()
    assert not finite


@dataclasses.dataclass(frozen=True)
class Bursting(Part):
    """A part that makes every gradient infinite."""

    name: ClassVar[str] = "bursting"

    def gradient(self, grads: list[Tensor], ctx: Context) -> list[Tensor]:
        return [torch.full_like(grad, float("inf")) for grad in grads]


class Telling(Part):
    """A part whose penalty is told, and moves nothing."""

    name: ClassVar[str] = "telling"

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor:
        return torch.full((), 3.0)


def test_a_penalty_that_needs_no_gradient_is_only_told(toy):
    told, plain = toy.learner(Telling()), toy.learner()
    for learner in (told, plain):
        learner.begin_domain(toy.domains[0].train, first=True)
    (terms, grads), (_, wanted) = told.gradient(), plain.gradient()
    assert terms.loss == terms.by_name["clean"] + 3
    assert all(map(torch.equal, grads, wanted))


def test_a_run_whose_last_update_breaks_the_weights_says_so(registered_toys, classification, tmp_path):
    recipe = classification.recipe(Bursting(), overrides=(("optimizer", "sgd"), ("steps", 1)))
    with pytest.raises(UserError, match="The weights are no longer finite after step 1 of domain 'red'"):
        run(recipe, out=tmp_path, device="cpu")
    assert RunDirectory(tmp_path, recipe, 0).load().position["step"] == 0  # the last good one


# Data that runs share.


def test_runs_share_the_domains_that_they_read(registered_toys, classification):
    recipe = classification.recipe()
    first, second = load_domains(recipe, CPU), load_domains(recipe, CPU)
    assert [each is other for each, other in zip(first, second, strict=True)] == [True] * 3
    assert [each.domain.name for each in first] == ["red", "green", "blue"]


def test_domains_of_another_limit_order_or_device_are_told_apart(registered_toys, classification):
    recipe, few = classification.recipe(), classification.recipe(overrides=(("limit", 5),))
    whole, limited = load_domains(recipe, CPU), load_domains(few, CPU)
    assert [each.domain.train.num_images for each in (whole[0], limited[0])] == [24, 5]
    assert whole[0].fingerprint != limited[0].fingerprint
    assert load_domains(recipe, torch.device("meta"))[0] is not whole[0]


def resident(toys) -> int:
    """How many domains of the toys are held."""
    gc.collect()
    return sum(each.domain.name in toys.GROUNDS for each in list(_RESIDENTS.values()))


def test_domains_go_with_the_last_run_that_reads_them(registered_toys, toys, tmp_path):
    """Two paused runs hold one copy; when both are closed, nobody does."""
    assert resident(toys) == 0
    first, second = (advance(toys.CLASSIFICATION.recipe(), seed, out=tmp_path, device="cpu") for seed in (0, 1))
    next(first), next(second)
    assert resident(toys) == 3
    first.close()
    assert resident(toys) == 3
    second.close()
    assert resident(toys) == 0


def test_no_run_writes_to_what_it_shares(registered_toys, classification, tmp_path):
    recipe = classification.recipe(*(part() for part in PARTS.values()))
    shared = load_domains(recipe, CPU)
    before: list[Tensor] = [each.domain.train.x.clone() for each in shared]
    run(recipe, out=tmp_path, device="cpu")
    assert all(torch.equal(each.domain.train.x, old) for each, old in zip(shared, before, strict=True))
