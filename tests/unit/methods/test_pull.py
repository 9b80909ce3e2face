"""The quadratic pull of L2 and EWC: a plain sum over past domains, zero where a domain begins."""

import pytest
import torch
from torch import Tensor

from metadr.engine.learner import Learner
from metadr.parts import EWC, L2


def anchored(toy, part, monkeypatch) -> tuple[Learner, list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """A learner after three domains, in float64, with the parameters and the importance at the end of each."""
    learner = toy.learner(part, module=toy.module().double(), lr=0.05, later_lr=0.02)
    anchors, importance = [], []
    original = EWC.fisher

    def fisher(self, split, ctx):
        importance.append(original(self, split, ctx))
        return importance[-1]

    monkeypatch.setattr(EWC, "fisher", fisher)
    for index, domain in enumerate(toy.domains):
        learner.begin_domain(domain.train, first=index == 0)
        learner.steps(3)
        anchors.append({name: value.detach().clone() for name, value in learner.network.params.items()})
        learner.end_domain(domain)
    if isinstance(part, L2):
        importance = [{name: torch.ones_like(value) for name, value in anchor.items()} for anchor in anchors]
    learner.begin_domain(toy.domains[0].train, first=False)
    learner.steps(2)
    return learner, anchors, importance


@pytest.mark.parametrize("anchors", ["all", "last"])
@pytest.mark.parametrize("kind", [L2, EWC])
def test_pull_is_the_plain_sum_over_past_domains(kind, anchors, toy, monkeypatch):
    part = kind(strength=3.0, anchors=anchors)
    learner, places, importance = anchored(toy, part, monkeypatch)
    assert len(places) == len(importance) == 3
    if anchors == "last":
        places, importance = places[-1:], importance[-1:]
    params = learner.network.params
    expected = sum(
        1.5 * (weight[name] * (params[name] - place[name]) ** 2).sum()
        for place, weight in zip(places, importance, strict=True)
        for name in params
    )
    raw = toy.domains[0].train.sample(2, torch.Generator())
    penalty = part.penalty(raw, raw, learner._context(part))
    torch.testing.assert_close(penalty, expected, rtol=1e-9, atol=0)
    ours, theirs = (torch.autograd.grad(value, list(params.values())) for value in (penalty, expected))
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-8, atol=1e-12)


def test_pull_of_a_row_has_the_bits_of_a_pull_of_each_tensor(toy):
    part = EWC(strength=1.0)
    learner = toy.on_second_domain(toy.learner(part), num_steps=3)
    learner.steps(2)
    ctx, raw = learner._context(part), toy.domains[0].train.sample(2, torch.Generator())
    params = list(ctx.params.values())
    ours = torch.autograd.grad(part.penalty(raw, raw, ctx), params)
    each = [
        0.5 * (ctx.state[f"weight.{name}"] * (value - ctx.state[f"mean.{name}"]).square()).sum()
        for name, value in ctx.params.items()
    ]
    assert any(value.any() for value in ours)
    assert all(map(torch.equal, ours, torch.autograd.grad(sum(each), params)))


@pytest.mark.parametrize("kind", [L2, EWC])
def test_pull_begins_at_zero_and_enters_the_loss(kind, toy):
    learner = toy.on_second_domain(toy.learner(kind(strength=5.0)), num_steps=3)
    first, *_, last = learner.steps(6).read()[0]
    assert first[kind.name] == 0
    assert last[kind.name] > 0
    assert last["loss"] == pytest.approx(last["clean"] + last[kind.name])


def test_stronger_pull_keeps_parameters_closer(classification):
    distances = []
    for strength in (0.0, 1.0, 100.0):
        learner = classification.on_second_domain(
            classification.learner(L2(strength=strength), optimizer="sgd", later_lr=0.01)
        )
        before = {name: value.detach().clone() for name, value in learner.network.params.items()}
        learner.steps(20)
        distances.append(sum(float((v.detach() - before[n]).square().sum()) for n, v in learner.network.params.items()))
    assert distances[0] > distances[1] > distances[2] > 0
