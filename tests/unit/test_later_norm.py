"""Batch norm's statistics: those of the first domain that stay (later_norm=fixed), and how fast they move."""

import pytest
import torch
from torch import nn

import metadr
from metadr.parts import GEM, LwF, MetaDR, Replay
from metadr.report import read_records
from metadr.sequence import BY_BATCH


@pytest.mark.parametrize("parts", [(), (MetaDR(),), (Replay(), GEM(), LwF())], ids=["naive", "meta-dr", "er+gem+lwf"])
def test_fixed_statistics_stay_those_of_the_first_domain(parts, toy):
    learner, usual = (toy.learner(*parts, later_norm=norm) for norm in ("fixed", "batch"))
    for each in (learner, usual):
        toy.on_second_domain(each)
    first = learner.network.norms.copy()
    for name, value in usual.network.norms.copy().items():
        assert torch.equal(first[name], value)  # the first domain is trained as usual
    for each in (learner, usual):
        each.steps(2)
    for name, value in learner.network.norms.copy().items():
        assert torch.equal(value, first[name])
        assert not torch.equal(value, usual.network.norms.copy()[name])
    assert learner.network._left == []


def test_with_fixed_statistics_training_sees_what_tests_see(toy):
    learner = toy.on_second_domain(toy.learner(later_norm="fixed"))
    images = toy.domains[1].train.x[:5]
    trained = learner.network.logits(images, role="clean")
    torch.testing.assert_close(trained.detach(), learner.network.logits(images).detach())
    one = learner.network.logits(images[:1], role="clean")  # an image does not depend on those beside it
    torch.testing.assert_close(one, trained[:1])
    usual = toy.on_second_domain(toy.learner())
    assert not torch.allclose(usual.network.logits(images, role="clean"), usual.network.logits(images))


def test_a_network_trained_by_fixed_statistics_is_not_told_by_those_of_tested_batches(registered_toys, tmp_path):
    toy = registered_toys["classification"]
    for norm in ("batch", "fixed"):
        metadr.run(toy.recipe(overrides=(("later_norm", norm),)), out=tmp_path / norm, device="cpu")
        (record,) = read_records(tmp_path / norm)
        assert (record.tested_by("batch") is None) == (norm == "fixed")
        assert any(BY_BATCH in row for row in record.rows) == (norm == "batch")
        # An older run has them.
        told = record._replace(rows=[{**row, BY_BATCH: 1.0} for row in record.rows])
        assert (told.tested_by("batch") is None) == (norm == "fixed")


def test_fixed_statistics_leave_layers_that_draw_in_training_as_they_are(classification):
    module = nn.Sequential(classification.module(0), nn.Dropout(0.5))
    learner = classification.on_second_domain(classification.learner(later_norm="fixed", module=module))
    images = classification.domains[1].train.x[:8]
    logits = learner.network.logits(images, role="clean")
    assert (logits == 0).any() and not (logits == 0).all()


@pytest.mark.parametrize("part", [(), (MetaDR(),)], ids=["naive", "meta-dr"])
def test_with_a_momentum_of_their_own_statistics_move_less_at_a_time(part, classification):
    """After one step: (1 - m) before + m statistic, for each pass; training itself is the same."""
    slow, usual = classification.learner(*part, norm_momentum=0.01), classification.learner(*part)
    before, modules = usual.network.norms.copy(), dict(classification.module().named_modules())
    for learner in (slow, usual):
        learner.begin_domain(classification.domains[0].train, first=True)
        learner.steps(1)
    for name, value in usual.network.params.items():
        assert torch.equal(value, slow.network.params[name])
    for name, value in usual.network.norms.copy().items():
        moved, little = value - before[name], slow.network.norms.copy()[name] - before[name]
        assert 0 < float(little.norm()) < 0.5 * float(moved.norm())
        if not part:
            own = modules[name.rpartition(".")[0]].momentum
            torch.testing.assert_close(little / 0.01, moved / own, rtol=1e-4, atol=1e-4)
