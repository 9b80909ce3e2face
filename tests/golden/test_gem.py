"""GEM's projection against scipy's non-negative least squares, and its promise kept through training."""

import copy
import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import nnls
from torch import Tensor

from metadr.core import Domain, Split
from metadr.parts import GEM
from metadr.parts.gem import nonnegative_minimum, project

MARGINS = (0.0, 0.5)


def reference(gradient: Tensor, memories: Tensor, margin: float, ridge: float = 0.0) -> Tensor:
    """With v = u + margin, GEM's dual is least squares: min over u >= 0 of |G^T (u + margin) + g|^2 + ridge |v|^2."""
    g, rows = gradient.numpy(), memories.numpy()
    if not (rows @ g < 0).any():
        return gradient
    scale = np.linalg.norm(rows, axis=1).clip(min=1e-300)  # the units of u: nnls knows only absolute tolerances
    matrix = np.vstack([rows.T, np.sqrt(ridge) * np.eye(len(rows))]) / scale
    target = -np.concatenate([g + margin * rows.sum(0), np.sqrt(ridge) * margin * np.ones(len(rows))])
    u = nnls(matrix, target, maxiter=1000)[0] / scale
    return gradient + torch.from_numpy((u + margin) @ rows)


def random_case(rng: np.random.Generator, num_memories: int, kind: str) -> tuple[Tensor, Tensor]:
    """A gradient and memories, some of them alike, each at a scale of its own between 1e-3 and 1e3."""
    size = int(rng.integers(max(2, num_memories // 2), 40))
    g, rows = rng.standard_normal(size), rng.standard_normal((num_memories, size))
    if kind == "against":  # all memories disagree with the gradient: many constraints are active
        rows -= 0.7 * g
    if kind == "equal":
        rows[rng.integers(num_memories)] = rows[0]
        rows[-1] = rows[0]
    if kind == "nearly equal":
        rows[-1] = rows[0] * (1 + 1e-9 * rng.standard_normal(size))
    if kind == "opposite":
        rows[-1] = -rows[0]
    if kind == "zero":
        rows[-1] = 0
    rows *= 10 ** rng.uniform(-3, 3, (num_memories, 1))
    return torch.from_numpy(g * 10 ** rng.uniform(-3, 3)), torch.from_numpy(rows)


CASES = list(itertools.product(range(1, 13), ("any", "against", "equal", "nearly equal", "opposite", "zero")))


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 10.0])
@pytest.mark.parametrize("margin", MARGINS)
def test_projection_equals_non_negative_least_squares(margin, ridge):
    rng = np.random.default_rng(1)
    for (num_memories, kind), _ in itertools.product(CASES, range(2)):
        g, rows = random_case(rng, num_memories, kind)
        result, expected = project(g, rows, margin, ridge), reference(g, rows, margin, ridge)
        # What the margin alone adds may be a million times the gradient, and cancels almost to nothing again.
        scale = max(g.norm(), expected.norm(), margin * rows.norm(dim=1).max())
        assert (result - expected).norm() <= 1e-6 * scale, (num_memories, kind)
        if ridge == 0:
            assert (rows @ result >= -1e-6 * g.norm() * rows.norm(dim=1)).all(), (num_memories, kind)


def test_solution_is_optimal():
    """The conditions of Karush, Kuhn and Tucker, in units in which every memory has length one."""
    rng = np.random.default_rng(2)
    for num_memories, _ in itertools.product(range(1, 13), range(20)):
        rows = torch.from_numpy(rng.standard_normal((num_memories, num_memories + 3)))
        gram, linear = rows @ rows.T, torch.from_numpy(rng.standard_normal(num_memories))
        u = nonnegative_minimum(gram, linear)
        slope = gram @ u + linear
        assert (u >= 0).all()
        assert (slope >= -1e-8).all()
        assert float((u * slope).abs().max()) < 1e-8


def test_gradient_that_hurts_no_memory_is_untouched():
    rng = np.random.default_rng(3)
    for dtype, num_memories in itertools.product((torch.float32, torch.float64), range(1, 13)):
        g = torch.from_numpy(rng.standard_normal(30)).to(dtype)
        rows = torch.from_numpy(rng.standard_normal((num_memories, 30))).to(dtype)
        rows = rows * (rows @ g).sign()[:, None]
        result = project(g, rows, 0.5, 0.0)
        assert result.dtype == dtype
        assert torch.equal(result, g)


def test_projection_of_one_memory_is_the_closed_form():
    rng = np.random.default_rng(4)
    g, row = torch.from_numpy(rng.standard_normal(10)), torch.from_numpy(rng.standard_normal(10))
    row = -row * (row @ g).sign()
    needed = -(row @ g) / (row @ row)
    torch.testing.assert_close(project(g, row[None], 0.0, 0.0), g + needed * row)
    torch.testing.assert_close(project(g, row[None], 5.0, 0.0), g + max(needed, torch.tensor(5.0)) * row)


def test_without_margin_the_projection_is_the_nearest_gradient():
    """No gradient that agrees with the memories is closer."""
    rng = np.random.default_rng(5)
    for num_memories in range(1, 9):
        g, rows = random_case(rng, num_memories, "against")
        result = project(g, rows, 0.0, 0.0)
        for _ in range(50):
            other = result + torch.from_numpy(rng.standard_normal(len(g))) * 0.1 * g.norm()
            if (rows @ other >= 0).all():
                assert (other - g).norm() >= (1 - 1e-9) * (result - g).norm()


def test_ridge_holds_the_correction_back():
    rng = np.random.default_rng(6)
    g, rows = torch.from_numpy(rng.standard_normal(20)), torch.from_numpy(rng.standard_normal((4, 20)))
    rows = rows - 2 * g
    corrections = [float((project(g, rows, 0.0, ridge) - g).norm()) for ridge in (0.0, 1.0, 1e2, 1e4, 1e8)]
    assert corrections == sorted(corrections, reverse=True)
    assert corrections[-1] < 1e-3 * corrections[0]
    assert (rows @ project(g, rows, 0.0, 1e2) < 0).any()


def memory_gradients(module: torch.nn.Module, task, memories) -> Tensor:
    """By plain layers in training mode, a copy for each, so that no statistic can leak from one to the other."""
    rows = []
    for memory in memories:
        twin = copy.deepcopy(module).train()
        twin.zero_grad()
        task.loss(twin(memory.x.float() / 255), memory.y).backward()
        rows.append(torch.cat([param.grad.flatten() for param in twin.parameters()]))
    return torch.stack(rows)


def with_other_labels(domain: Domain, num_classes: int) -> Domain:
    """The same images under other labels: what helps the one hurts the other."""
    train = Split(domain.train.x, torch.where(domain.train.y == 255, 255, (domain.train.y + 1) % num_classes))
    return domain._replace(train=train)


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_steps_in_training_agree_with_every_memory(margin, toy, monkeypatch):
    part = GEM(margin=margin)
    learner = toy.learner(part, memory=8)
    original, looked_at = GEM.gradient, []

    def gradient(self, grads, ctx):
        rows = memory_gradients(learner.network.module, toy.task, ctx.memory.batches) if ctx.memory.batches else None
        result = original(self, grads, ctx)
        before, after = (torch.cat([grad.flatten() for grad in each]) for each in (grads, result))
        looked_at.append((rows, before, after))
        return result

    monkeypatch.setattr(GEM, "gradient", gradient)
    other = with_other_labels(toy.domains[0], toy.task.num_classes)
    for index, domain in enumerate((toy.domains[0], toy.domains[1], other)):
        learner.begin_domain(domain.train, first=index == 0)
        learner.steps(5)
        learner.end_domain(domain)

    num_projected = 0
    for step, (rows, before, after) in enumerate(looked_at):
        if rows is None:
            assert step < 5
            assert torch.equal(after, before)
            continue
        assert len(rows) == step // 5
        cosines, rounding = rows @ before / (before.norm() * rows.norm(dim=1)), 1e-5
        if (cosines < -rounding).any():
            num_projected += 1
            assert not torch.equal(after, before)
        elif (cosines > rounding).all():
            assert torch.equal(after, before)
        assert (rows @ after >= -rounding * before.norm() * rows.norm(dim=1)).all()
    assert num_projected >= 3
    params = list(learner.network.params.values())
    assert torch.equal(torch.cat([param.grad.flatten() for param in params]), looked_at[-1][2])
