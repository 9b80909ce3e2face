"""The rate that falls along a domain (decay=cosine)."""

import pytest
import torch

import metadr

STEPS = 7


def rates(learner, num_steps: int) -> list[float]:
    """The rate that the optimiser had at each of so many steps."""
    found = []
    for _ in range(num_steps):
        learner.steps(1)
        found.append(float(learner.optimizer.param_groups[0]["lr"]))
    return found


def cosine(lr: float) -> list[float]:
    """What torch's own schedule says."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
    found = []
    for _ in range(STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_the_rate_falls_by_half_a_cosine_on_every_domain(toy):
    learner = toy.learner(decay="cosine", steps=STEPS, lr=0.02, later_lr=0.004)
    for domain, lr in zip(toy.domains[:2], (0.02, 0.004), strict=True):
        learner.begin_domain(domain.train, first=lr == 0.02)
        assert rates(learner, STEPS) == pytest.approx(cosine(lr), rel=1e-12)
        assert learner.optimizer.param_groups[0]["lr"] < 0.06 * lr


def test_the_rate_stays_unless_it_is_told_to_fall(toy):
    learner = toy.learner(steps=STEPS, lr=0.02)
    learner.begin_domain(toy.domains[0].train, first=True)
    assert rates(learner, STEPS) == [0.02] * STEPS


def test_the_rate_falls_over_epochs_as_well(toy):
    """Of 24 images in batches of six."""
    learner = toy.learner(decay="cosine", epochs=2, later_epochs=1, lr=0.02, later_lr=0.02)
    for first, steps in ((True, 8), (False, 4)):
        learner.begin_domain(toy.domains[0].train, first=first)
        assert rates(learner, steps)[-1] == pytest.approx(0.01 * (1 - torch.cos(torch.tensor(torch.pi / steps)).item()))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_rate_goes_on_falling_from_a_checkpoint(toy, toys, optimizer):
    settings = {"decay": "cosine", "steps": STEPS, "optimizer": optimizer}
    whole, first, second = (toy.learner(**settings) for _ in range(3))
    for learner in (whole, first, second):
        learner.begin_domain(toy.domains[0].train, first=True)
    whole.steps(STEPS)
    first.steps(3)
    second.load({name: value.clone() for name, value in first.state().items()})
    second.steps(STEPS - 3)
    toys.assert_same_bits(second.state(), whole.state())


def test_a_run_stopped_at_any_moment_ends_with_the_rate_of_one_that_was_not(registered_toys, tmp_path, monkeypatch):
    recipe = registered_toys["classification"].recipe(overrides=(("decay", "cosine"), ("steps", STEPS)))
    monkeypatch.setattr("metadr.sequence.CHUNK", 2)
    whole = metadr.run(recipe, out=tmp_path / "whole", device="cpu")

    def stop(progress) -> None:
        if progress.taken == STEPS + 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        metadr.run(recipe, out=tmp_path / "parts", device="cpu", watch=stop)
    assert metadr.run(recipe, out=tmp_path / "parts", device="cpu").rows == whole.rows
