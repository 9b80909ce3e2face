"""EWC's Fisher against single-image backward passes in a plain loop, and against its closed form."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from metadr.core import Split
from metadr.engine.learner import Learner
from metadr.parts import EWC, ewc


def one_image_at_a_time(learner: Learner, split: Split) -> dict[str, Tensor]:
    """The mean of squared gradients, by the plainest means there are: a loop, a tested network, `backward`."""
    module = copy.deepcopy(learner.network.module).eval()
    total = {name: torch.zeros_like(param) for name, param in module.named_parameters()}
    for image, label in zip(split.x, split.y, strict=True):
        module.zero_grad()
        logits = module(image[None].to(next(module.parameters()).dtype) / 255)
        if label.ndim == 0:
            loss = -logits.log_softmax(1)[0, label]
        else:
            places = (label != 255).nonzero().tolist()
            chances = logits.log_softmax(1)
            loss = -sum(chances[0, label[row, column], row, column] for row, column in places) / len(places)
        loss.backward()
        for name, param in module.named_parameters():
            total[name] += param.grad**2
    return {name: value / split.num_images for name, value in total.items()}


def trained(toy, part: EWC, dtype: torch.dtype) -> Learner:
    """A learner a few steps into its first domain: running statistics are not where they begin."""
    learner = toy.learner(part, module=toy.module().to(dtype))
    learner.begin_domain(toy.domains[0].train, first=True)
    learner.steps(4)
    return learner


def fisher(learner: Learner, split: Split, **fields) -> dict[str, Tensor]:
    part = EWC(**fields)
    return part.fisher(split, learner._context(learner.recipe.method[0]))


def images_at_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ewc, "IMAGES_AT_ONCE", count)
    monkeypatch.setattr(ewc, "PIXELS_AT_ONCE", 0)


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], rtol: float) -> None:
    assert set(ours) == set(theirs)
    for name, value in ours.items():
        scale = float(theirs[name].abs().max())
        torch.testing.assert_close(value, theirs[name], rtol=rtol, atol=1e-3 * rtol * scale)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["64", "32"])
def test_fisher_equals_a_plain_loop_at_any_batch_size(dtype, rtol, toy, monkeypatch):
    learner, split = trained(toy, EWC(), dtype), toy.domains[0].train.first(13)
    expected = one_image_at_a_time(learner, split)
    for at_once in (1, 5, 32):
        images_at_once(at_once, monkeypatch)
        ours = fisher(learner, split)
        assert all(value.dtype == dtype for value in ours.values())
        assert_close(ours, expected, rtol)
    assert set(expected) == set(learner.network.params)  # batch norm's weights are in, its buffers are not


def test_fisher_is_not_the_squared_gradient_of_a_batch(toy):
    learner, split = trained(toy, EWC(), torch.float64), toy.domains[0].train
    module = copy.deepcopy(learner.network.module).eval()
    toy.task.loss(module(split.x.double() / 255), split.y).backward()
    of_the_mean = sum(float(param.grad.square().sum()) for param in module.parameters())
    per_sample = sum(float(value.sum()) for value in fisher(learner, split).values())
    assert per_sample > 1.1 * of_the_mean


def test_fisher_of_some_images_is_that_of_the_first(toy):
    learner, split = trained(toy, EWC(), torch.float64), toy.domains[0].train
    few = fisher(learner, split, fisher_images=5)
    assert_close(few, one_image_at_a_time(learner, split.first(5)), 1e-10)
    assert_close(fisher(learner, split, fisher_images=10**6), fisher(learner, split), 1e-12)


def test_end_of_domain_keeps_the_fisher_of_its_training_images(toy):
    part = EWC()
    learner = trained(toy, part, torch.float64)
    domain = toy.domains[0]
    expected = one_image_at_a_time(learner, domain.train)
    learner.end_domain(domain)
    state = learner.part_state["ewc"]
    assert_close({name: state[f"weight.{name}"] for name in expected}, expected, 1e-10)
    assert all(torch.equal(state[f"mean.{name}"], value) for name, value in learner.network.params.items())


def test_ignored_pixels_do_not_count(segmentation):
    learner, split = trained(segmentation, EWC(), torch.float64), segmentation.domains[0].train.first(6)
    blank = Split(split.x, torch.full_like(split.y, 255))
    for labels in ("true", "sampled"):
        assert all(not value.any() for value in fisher(learner, blank, fisher_labels=labels).values())
    half = {name: value / 2 for name, value in fisher(learner, split).items()}
    assert_close(fisher(learner, Split.union([split, blank])), half, 1e-10)


def test_sampled_labels_give_the_fisher_of_the_model(classification):
    """Of a linear softmax model it is known: E[(d log p / d W_kj)^2] = p_k (1 - p_k) x_j^2."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).double()
    learner = classification.learner(EWC(fisher_labels="sampled"), module=module)
    images = torch.randint(256, (4, 3, 2, 2), dtype=torch.uint8)
    x = images.flatten(1).double() / 255
    chances = module(images.double() / 255).softmax(1).detach()
    spread = chances * (1 - chances)
    expected = {"1.weight": torch.einsum("nk,nj->kj", spread, x**2) / 4, "1.bias": spread.mean(0)}

    many = Split(images.repeat(1500, 1, 1, 1), torch.zeros(6000, dtype=torch.int64))
    ours = fisher(learner, many, fisher_labels="sampled")
    for name, value in expected.items():
        assert (ours[name] - value).norm() / value.norm() < 0.03
    true = fisher(learner, many)
    assert (true["1.bias"] - expected["1.bias"]).norm() / expected["1.bias"].norm() > 0.1


def test_sampled_labels_come_from_the_parts_own_stream(toy):
    learner = trained(toy, EWC(), torch.float64)
    split, stream = toy.domains[0].train, learner.streams["ewc"]
    before = stream.get_state()
    fisher(learner, split)
    assert torch.equal(stream.get_state(), before)
    first = fisher(learner, split, fisher_labels="sampled")
    assert not torch.equal(stream.get_state(), before)
    other = fisher(learner, split, fisher_labels="sampled")
    stream.set_state(before)
    again = fisher(learner, split, fisher_labels="sampled")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_sampled_labels_on_masks_equal_the_loop_over_the_labels_drawn(segmentation, monkeypatch):
    learner, split = trained(segmentation, EWC(), torch.float64), segmentation.domains[0].train.first(6)
    drawn, original = [], EWC._sampled_labels

    def sampled(self, x, y, ctx):
        drawn.append(original(self, x, y, ctx))
        return drawn[-1]

    monkeypatch.setattr(EWC, "_sampled_labels", sampled)
    images_at_once(4, monkeypatch)
    ours = fisher(learner, split, fisher_labels="sampled")
    labels = torch.cat(drawn)
    assert torch.equal(labels == 255, split.y == 255)
    assert (labels != split.y).any()
    assert_close(ours, one_image_at_a_time(learner, Split(split.x, labels)), 1e-10)


def test_sampled_labels_follow_the_chances(classification):
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    learner = classification.learner(EWC(), module=module)
    image = torch.randint(256, (1, 3, 2, 2), dtype=torch.uint8)
    x = image.expand(5000, -1, -1, -1)
    part = learner.recipe.method[0]
    labels = part._sampled_labels(x, torch.zeros(5000, dtype=torch.int64), learner._context(part))
    chances = F.softmax(module(image.float() / 255), 1)[0].detach()
    torch.testing.assert_close(labels.bincount(minlength=3) / 5000, chances, rtol=0, atol=0.025)
