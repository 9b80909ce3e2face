"""The Meta-DR step against finite differences, and against a second implementation written out here by hand.

The second one shares nothing with the package but the weights and the drawn rows: ResNet-18 as plain functions of a
dictionary, batch norm and cross-entropy in elementary arithmetic, Algorithm 1 line by line.
"""

import copy
import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18

from metadr.core import Recipe, Split, Task, Training
from metadr.engine.learner import Learner
from metadr.engine.streams import stream_seed
from metadr.parts import MetaDR
from metadr.transforms import get_set, get_transform

CPU = torch.device("cpu")
SEED = 3
ROLES = ("inner", "clean", "recall", "adapt")


def random_split(num_images: int, side: int, num_classes: int, *, masks: bool = False) -> Split:
    rng = torch.Generator().manual_seed(11)
    x = torch.randint(256, (num_images, 3, side, side), generator=rng, dtype=torch.uint8)
    y = torch.randint(num_classes, (num_images, side, side) if masks else (num_images,), generator=rng)
    return Split(x, y.masked_fill(x[:, 0] > 200, 255) if masks else y)


def meta_learner(module: nn.Module, split: Split, task: Task, part: MetaDR, *, batch_size: int, batch_norm="clean"):
    training = Training(batch_size=batch_size, optimizer="sgd", lr=0.5, batch_norm=batch_norm)
    learner = Learner(Recipe("none", ("one",), (part,)), training, task, module, seed=SEED, device=CPU)
    learner.begin_domain(split, first=True)
    return learner


def flat(tensors) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def relative(ours: Tensor, reference: Tensor) -> float:
    return float((ours - reference).norm() / reference.norm())


# Finite differences.


def smooth_net(batch_norm: bool) -> nn.Module:
    """About 40 parameters and no kink anywhere."""
    torch.manual_seed(5)
    norm = [nn.BatchNorm2d(2)] if batch_norm else []
    return nn.Sequential(
        nn.Conv2d(3, 2, 2, stride=2, bias=not batch_norm),
        *norm,
        nn.Tanh(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(2, 2),
        nn.Softplus(),
        nn.Linear(2, 3),
    ).double()


def smooth_fcn() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(3, 2, 3, padding=1, bias=False), nn.BatchNorm2d(2), nn.Tanh(), nn.Conv2d(2, 3, 1)
    ).double()


class Repeated:
    """One step that can be taken again and again, at any parameters, always with the same draws."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.start = flat(learner.network.params.values())
        self.draws = {name: rng.get_state() for name, rng in learner.streams.items()}

    def at(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of the step and its gradient, at these parameters."""
        params = list(self.learner.network.params.values())
        with torch.no_grad():
            for param, value in zip(params, point.split([param.numel() for param in params]), strict=True):
                param.copy_(value.view_as(param))
        for name, state in self.draws.items():
            self.learner.streams[name].set_state(state)
        loss = self.learner.step().loss
        return loss, flat(param.grad for param in params)

    def difference_quotients(self, width: float = 1e-5) -> Tensor:
        """The gradient of the loss by central differences, one parameter at a time."""
        slopes = []
        for axis in torch.eye(len(self.start), dtype=self.start.dtype):
            above, below = (self.at(self.start + step * axis)[0] for step in (width, -width))
            slopes.append((above - below) / (2 * width))
        return torch.stack(slopes)


VARIANTS = {
    "as in the paper": {},
    "two meta-domains": {"meta_domains": 2},
    "two inner steps": {"inner_steps": 2},
    "two of both": {"meta_domains": 2, "inner_steps": 2},
    "recall only": {"adapt": 0.0},
    "adapt only": {"recall": 0.0},
    "T per image": {"per": "image", "recall": 0.7, "adapt": 1.3},
}


@pytest.mark.parametrize("batch_norm", [False, True], ids=["plain", "batch norm"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_gradient_of_a_step_equals_finite_differences(variant, batch_norm, toys):
    part = MetaDR(inner_lr=0.3, **VARIANTS[variant])
    learner = meta_learner(smooth_net(batch_norm), random_split(20, 8, 3), Task(3), part, batch_size=5)
    step = Repeated(learner)
    loss, gradient = step.at(step.start)
    assert relative(gradient, step.difference_quotients()) < 1e-6
    again_loss, again = step.at(step.start)
    assert torch.equal(loss, again_loss)
    assert torch.equal(gradient, again)


def test_gradient_on_masks_equals_finite_differences(toys):
    split = random_split(12, 6, 3, masks=True)
    learner = meta_learner(smooth_fcn(), split, Task(3, "miou"), MetaDR(inner_lr=0.3), batch_size=4)
    step = Repeated(learner)
    assert relative(step.at(step.start)[1], step.difference_quotients()) < 1e-6


def test_first_order_gradient_is_not_the_gradient(toys):
    """The differences see what the shortcut leaves out, so they would see it missing from the exact one."""
    part = MetaDR(inner_lr=0.3, first_order=True)
    learner = meta_learner(smooth_net(True), random_split(20, 8, 3), Task(3), part, batch_size=5)
    step = Repeated(learner)
    assert relative(step.at(step.start)[1], step.difference_quotients()) > 1e-2


@pytest.mark.parametrize(("meta_domains", "inner_steps"), [(1, 1), (2, 1), (1, 2), (3, 2)])
def test_meta_domains_are_averaged_and_inner_steps_follow_each_other(meta_domains, inner_steps, toys):
    """The whole equation on a small net: loss = L(x) + 1/K sum_k (recall L(x; fast_k) + adapt L(T_k(x); fast_k))."""
    part = MetaDR(inner_lr=0.3, recall=0.7, adapt=1.3, meta_domains=meta_domains, inner_steps=inner_steps)
    module = smooth_net(True)
    learner = meta_learner(module, random_split(20, 8, 3), Task(3), part, batch_size=5)
    seen = toys.record_passes(learner)
    start = {name: param.detach().clone().requires_grad_() for name, param in module.named_parameters()}
    twin = copy.deepcopy(module).train()
    terms = learner.step()

    def loss(params: dict[str, Tensor], batch) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(twin, params, (batch.x.double() / 255,)), batch.y)

    batches = {role: [each.batch for each in seen if each.role == role] for role in ROLES}
    (outer,) = batches["clean"]
    assert len(batches["inner"]) == meta_domains * inner_steps
    assert len(batches["recall"]) == len(batches["adapt"]) == meta_domains
    total = clean = loss(start, outer)
    for k in range(meta_domains):
        fast = start
        for inner in batches["inner"][k * inner_steps : (k + 1) * inner_steps]:
            assert inner is batches["inner"][k * inner_steps]
            slopes = torch.autograd.grad(loss(fast, inner), list(fast.values()), create_graph=True)
            fast = {name: value - 0.3 * slope for (name, value), slope in zip(fast.items(), slopes, strict=True)}
        assert batches["recall"][k] is outer
        total = total + (0.7 * loss(fast, outer) + 1.3 * loss(fast, batches["adapt"][k])) / meta_domains
    expected = torch.autograd.grad(total, list(start.values()))
    torch.testing.assert_close(terms.loss, total.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(terms.by_name["meta-dr"], (total - clean).detach(), rtol=1e-12, atol=0)
    assert relative(flat(param.grad for param in module.parameters()), flat(expected)) < 1e-10


# A second implementation.

Statistics = dict[str, Tensor]


def by_hand_batch_norm(params: dict[str, Tensor], name: str, x: Tensor, left: Statistics) -> Tensor:
    count = x.numel() // x.shape[1]
    mean = x.sum((0, 2, 3), keepdim=True) / count
    squares = ((x - mean) ** 2).sum((0, 2, 3), keepdim=True)
    left[f"{name}.running_mean"] = mean.detach().flatten()
    left[f"{name}.running_var"] = squares.detach().flatten() / (count - 1)
    scaled = (x - mean) / (squares / count + 1e-5).sqrt()
    return scaled * params[f"{name}.weight"].view(1, -1, 1, 1) + params[f"{name}.bias"].view(1, -1, 1, 1)


def by_hand_resnet18(params: dict[str, Tensor], images: Tensor, left: Statistics) -> Tensor:
    """ResNet-18 as in He et al. 2015, by the names of torchvision's weights."""

    def convolve(name: str, norm: str, x: Tensor, stride: int, padding: int) -> Tensor:
        return by_hand_batch_norm(params, norm, F.conv2d(x, params[f"{name}.weight"], None, stride, padding), left)

    x = convolve("conv1", "bn1", images.double() / 255, 2, 3).relu()
    x = F.max_pool2d(x, 3, 2, 1)
    for stage, block in itertools.product((1, 2, 3, 4), (0, 1)):
        place = f"layer{stage}.{block}"
        stride = 2 if stage > 1 and block == 0 else 1
        inside = convolve(f"{place}.conv1", f"{place}.bn1", x, stride, 1).relu()
        inside = convolve(f"{place}.conv2", f"{place}.bn2", inside, 1, 1)
        if stride == 2:
            x = convolve(f"{place}.downsample.0", f"{place}.downsample.1", x, 2, 0)
        x = (x + inside).relu()
    return x.mean((2, 3)) @ params["fc.weight"].T + params["fc.bias"]


def by_hand_loss(params: dict[str, Tensor], x: Tensor, y: Tensor, left: Statistics) -> Tensor:
    logits = by_hand_resnet18(params, x, left)
    return (logits.logsumexp(1) - logits[torch.arange(len(y)), y]).mean()


class ByHand:
    """Algorithm 1, lines 5 to 9, with T = 255 - x: the gradient, and what each pass saw of batch norm."""

    def __init__(self, weights: dict[str, Tensor], inner: Split, outer: Split, part: MetaDR) -> None:
        params = {name: value.clone().requires_grad_() for name, value in weights.items()}
        self.left: dict[str, Statistics] = {role: {} for role in ROLES}
        inner_loss = by_hand_loss(params, 255 - inner.x, inner.y, self.left["inner"])
        slopes = torch.autograd.grad(inner_loss, list(params.values()), create_graph=not part.first_order)
        fast = {
            name: value - part.inner_lr * slope for (name, value), slope in zip(params.items(), slopes, strict=True)
        }
        clean = by_hand_loss(params, outer.x, outer.y, self.left["clean"])
        if part.first_order:
            fast = {name: value.detach().requires_grad_() for name, value in fast.items()}
        recall = by_hand_loss(fast, outer.x, outer.y, self.left["recall"])
        adapt = by_hand_loss(fast, 255 - outer.x, outer.y, self.left["adapt"])
        penalty = part.recall * recall + part.adapt * adapt
        if part.first_order:
            # Line 9 with the derivative of fast taken for the identity: the gradients at both places, added.
            here = torch.autograd.grad(clean, list(params.values()))
            there = torch.autograd.grad(penalty, list(fast.values()))
            grads = [a + b for a, b in zip(here, there, strict=True)]
        else:
            grads = torch.autograd.grad(clean + penalty, list(params.values()))
        self.grads = dict(zip(params, grads, strict=True))
        self.clean, self.penalty = clean.detach(), penalty.detach()

    def statistics(self, start: Statistics, moving: tuple[str, ...]) -> Statistics:
        """The running statistics after the step, if the passes of these roles move them."""
        now = dict(start)
        for role in ROLES:
            if role in moving:
                now |= {name: 0.9 * now[name] + 0.1 * value for name, value in self.left[role].items()}
        return now


@pytest.fixture(scope="module")
def resnet() -> nn.Module:
    """ResNet-18 with running statistics that are not where they begin, so that a wrong decay shows."""
    torch.manual_seed(1)
    module = resnet18(num_classes=10).double()
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_()
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    return module


def drawn_by_hand(split: Split, batch_size: int) -> tuple[Split, Split]:
    """The inner and the outer batch: each from a stream of its own, uniformly with replacement."""
    batches = []
    for stream in ("meta-dr", "outer"):
        rng = torch.Generator().manual_seed(stream_seed(SEED, stream))
        rows = torch.randint(split.num_images, (batch_size,), generator=rng)
        batches.append(Split(split.x[rows], split.y[rows]))
    return batches[0], batches[1]


RESNET_SPLIT = random_split(40, 32, 10)
PARTS_BY_HAND = {
    "exact": MetaDR(transforms="invert", compositions=1, recall=0.8, adapt=1.2),
    "first order": MetaDR(transforms="invert", compositions=1, recall=0.8, adapt=1.2, first_order=True),
}


@pytest.fixture(scope="module")
def by_hand(resnet, toys):
    """A function that takes the step by hand, each one once for all tests below."""
    weights = {name: param.detach() for name, param in resnet.named_parameters()}

    @functools.cache
    def step(which: str, batch_size: int) -> ByHand:
        return ByHand(weights, *drawn_by_hand(RESNET_SPLIT, batch_size), PARTS_BY_HAND[which])

    return step


@pytest.mark.parametrize("which", PARTS_BY_HAND)
def test_resnet18_step_equals_the_one_by_hand(which, resnet, by_hand):
    expected = by_hand(which, 6)
    module = copy.deepcopy(resnet)
    before = {name: param.detach().clone() for name, param in module.named_parameters()}
    learner = meta_learner(module, RESNET_SPLIT, Task(10), PARTS_BY_HAND[which], batch_size=6)
    terms = learner.step()
    torch.testing.assert_close(terms.by_name["clean"], expected.clean, rtol=1e-9, atol=0)
    torch.testing.assert_close(terms.by_name["meta-dr"], expected.penalty, rtol=1e-9, atol=0)
    params = dict(module.named_parameters())
    assert set(params) == set(expected.grads)
    ours, theirs = (flat(grads[name] for name in params) for grads in (grads_of(params), expected.grads))
    assert relative(ours, theirs) < 1e-8
    moved = flat(before[name] - params[name] for name in params)
    assert relative(moved, 0.5 * theirs) < 1e-8


def grads_of(params: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    return {name: param.grad for name, param in params.items()}


def test_first_order_differs_from_exact(by_hand):
    exact, first_order = (flat(by_hand(which, 6).grads.values()) for which in PARTS_BY_HAND)
    assert relative(first_order, exact) > 1e-2


POLICIES = [subset for size in range(5) for subset in itertools.combinations(ROLES, size)]


@pytest.mark.parametrize("moving", POLICIES, ids=lambda moving: "+".join(moving) or "none")
def test_every_policy_equals_the_step_by_hand(moving, resnet, by_hand):
    """The gradient may not depend on the policy; the statistics are what the policy says."""
    which, batch_size = "exact", 3
    module = copy.deepcopy(resnet)
    start = {name: buffer.clone() for name, buffer in module.named_buffers()}
    policy = "+".join(reversed(moving)) or "none"  # in which order a policy names its passes means nothing
    part = PARTS_BY_HAND[which]
    meta_learner(module, RESNET_SPLIT, Task(10), part, batch_size=batch_size, batch_norm=policy).step()
    grads = grads_of(dict(module.named_parameters()))
    assert relative(flat(grads.values()), flat(by_hand(which, batch_size).grads[name] for name in grads)) < 1e-8
    ours, after = dict(module.named_buffers()), by_hand(which, batch_size).statistics(start, moving)
    for name, value in start.items():
        if name.endswith("num_batches_tracked"):
            assert ours[name] == value + len(moving)
        else:
            assert relative(ours[name], after[name]) < 1e-8
            assert torch.equal(ours[name], value) == (not moving)


# What is drawn.


def passes_of(toys, toy, part, **settings):
    learner = toy.learner(part, **settings)
    learner.begin_domain(toy.domains[0].train, first=True)
    passes = toys.record_passes(learner)
    learner.step()
    return {seen.role: seen.batch for seen in passes}


def test_inner_and_outer_batch_are_drawn_independently(toys, classification):
    split = classification.domains[0].train
    seen = passes_of(toys, classification, MetaDR(transforms="identity"), batch_size=12, seed=SEED)
    rows = {
        role: [int((split.x == image).flatten(1).all(1).nonzero()) for image in batch.x] for role, batch in seen.items()
    }
    streams = {"inner": "meta-dr", "clean": "outer"}
    for role, stream in streams.items():
        rng = torch.Generator().manual_seed(stream_seed(SEED, stream))
        assert rows[role] == torch.randint(split.num_images, (12,), generator=rng).tolist()
    assert rows["inner"] != rows["clean"]
    assert rows["clean"] == rows["recall"] == rows["adapt"]
    assert all(torch.equal(batch.y, split.y[rows[role]]) for role, batch in seen.items())


def explanations(before: Tensor, after: Tensor, source: str) -> set[tuple[str, float]]:
    """Every (transformation, level) of the set that turns these images into those."""
    found = set()
    for choice in get_set(source).choices:
        for level in choice.grid():
            levels = torch.full((len(before),), level, dtype=torch.float64)
            if torch.equal(get_transform(choice.name).run(before, levels, None), after):
                found.add((choice.name, level))
    return found


@pytest.mark.parametrize("per", ["batch", "image"])
def test_inner_and_outer_batch_share_t(per, toys, classification):
    source = "brightness:0.2:1.8:9+rotate:-60:60:7+solarize:200:50:5+invert"
    split, seeds = classification.domains[0].train, range(6)
    drawn = []
    for seed in seeds:
        part = MetaDR(transforms=source, compositions=1, per=per)
        seen = passes_of(toys, classification, part, batch_size=5, seed=seed)
        rng = torch.Generator().manual_seed(stream_seed(seed, "meta-dr"))
        inner = split.x[torch.randint(split.num_images, (5,), generator=rng)]
        pieces = [slice(None)] if per == "batch" else [slice(row, row + 1) for row in range(5)]
        for piece in pieces:
            ours = explanations(inner[piece], seen["inner"].x[piece], source)
            outer = explanations(seen["clean"].x[piece], seen["adapt"].x[piece], source)
            assert ours & outer
            drawn.append(min(ours & outer))
    assert len(set(drawn)) > 3
