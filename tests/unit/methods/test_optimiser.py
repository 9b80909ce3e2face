"""The optimiser, new at each domain: the size of its steps, what it leaves alone, what is gone on from."""

import pytest
import torch

from metadr.parts import PARTS

EVERYTHING = tuple(part() for part in PARTS.values())


@pytest.mark.parametrize(
    ("settings", "kind"), [({"optimizer": "adam"}, torch.optim.Adam), ({"optimizer": "sgd"}, torch.optim.SGD)]
)
def test_optimiser_is_new_at_each_domain(settings, kind, classification):
    learner = classification.learner(lr=0.02, later_lr=0.003, momentum=0.9, **settings)
    optimizers = []
    for index, domain in enumerate(classification.domains):
        learner.begin_domain(domain.train, first=index == 0)
        assert type(learner.optimizer) is kind
        (group,) = learner.optimizer.param_groups
        assert group["lr"] == (0.02 if index == 0 else 0.003)
        assert group.get("momentum", 0.9) == 0.9
        assert not learner.optimizer.state_dict()["state"]
        assert all(learner.optimizer is not other for other in optimizers)
        optimizers.append(learner.optimizer)
        learner.steps(2)
        assert learner.optimizer.state_dict()["state"]
        learner.end_domain(domain)


def test_first_step_of_a_domain_has_the_size_of_its_rate(classification):
    """A new Adam moves every parameter by its rate; one with moments of the domain before would not."""
    learner = classification.learner(lr=0.02, later_lr=0.003)
    for index, domain in enumerate(classification.domains[:2]):
        learner.begin_domain(domain.train, first=index == 0)
        before = [param.detach().clone() for param in learner.network.params.values()]
        learner.steps(1)
        for param, old in zip(learner.network.params.values(), before, strict=True):
            moved = (param.detach() - old).abs()[param.grad.abs() > 1e-5]
            torch.testing.assert_close(moved, torch.full_like(moved, 0.02 if index == 0 else 0.003), rtol=2e-3, atol=0)
        learner.steps(3)


def test_plain_gradient_descent_subtracts_rate_times_gradient(classification):
    learner = classification.learner(optimizer="sgd", lr=0.02)
    learner.begin_domain(classification.domains[0].train, first=True)
    before = {name: param.detach().clone() for name, param in learner.network.params.items()}
    learner.steps(1)
    for name, param in learner.network.params.items():
        torch.testing.assert_close(param.detach(), before[name] - 0.02 * param.grad, rtol=1e-6, atol=1e-8)


def test_parameters_that_need_no_gradient_stay(classification):
    module = classification.module()
    module[0].weight.requires_grad_(False)
    frozen = module[0].weight.clone()
    learner = classification.learner(*EVERYTHING, module=module)
    classification.play(learner)
    assert "0.weight" not in learner.network.params
    assert torch.equal(module[0].weight, frozen)
    assert "model/0.weight" in learner.state()


def test_checkpoint_can_be_gone_on_from_twice(classification, toys):
    """Loading copies: a learner that goes on must not write into the tensors it was given."""
    learner = classification.on_second_domain(classification.learner(*EVERYTHING))
    learner.steps(2)
    stored = toys.clone_state(learner)
    kept = {name: value.clone() for name, value in stored.items()}
    learner.load(stored)
    learner.steps(2)
    toys.assert_same_bits(stored, kept)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_gradients_lie_in_memory_as_their_parameters_do(kind, classification, monkeypatch):
    """As fused optimisers need it: of images whose colours lie together, a convolution's gradient lies otherwise."""
    learner = classification.learner(optimizer=kind.__name__.lower(), lr=0.02)
    train, found = classification.domains[0].train, []
    learner.begin_domain(train._replace(x=train.x.contiguous(memory_format=torch.channels_last)), first=True)
    params, original = list(learner.network.params.values()), learner.gradient
    twins = [param.detach().clone() for param in params]

    def gradient():
        terms, grads = original()
        found.extend(grads)
        return terms, grads

    monkeypatch.setattr(learner, "gradient", gradient)
    learner.steps(1)
    assert any(grad.stride() != param.stride() for grad, param in zip(found, params, strict=True))
    assert all(param.grad.stride() == param.stride() for param in params)
    for twin, grad in zip(twins, found, strict=True):
        twin.grad = grad.contiguous()
    kind(twins, lr=0.02, foreach=False, fused=False).step()
    for twin, param in zip(twins, params, strict=True):
        torch.testing.assert_close(param.detach(), twin)
