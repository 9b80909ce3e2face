"""Weights that images of a size cannot reach are not trained: fewer numbers, the same network."""

import pytest
import torch
from torch import nn

from metadr.core import Batch, Domain, Recipe, Split, Task, Training
from metadr.engine.layers import reached
from metadr.engine.learner import Learner
from metadr.engine.network import Network
from metadr.parts import EWC, GEM, L2, MetaDR, Replay

SIZE = (4, 4)
TASK = Task(num_classes=3)


def net() -> nn.Sequential:
    """On 4x4 images its convolutions see 4x4, 2x2 and 1x1: they reach all taps, 2x2 of 3x3, and one of 3x3."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3, padding=1),
        nn.Flatten(),
        nn.Linear(6, 3),
    )


def domain(seed: int) -> Domain:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randint(256, (40, 3, *SIZE), generator=rng, dtype=torch.uint8)
    split = Split(x, torch.randint(3, (40,), generator=rng))
    return Domain(str(seed), split, split)


def learner(*parts, sizes=(), memory: int = 0) -> Learner:
    recipe = Recipe("toy", ("0", "1"), parts, memory_per_domain=memory)
    training = Training(batch_size=8, lr=1e-2, later_lr=1e-2)
    return Learner(recipe, training, TASK, net(), seed=0, device=torch.device("cpu"), sizes=sizes)


def trained(*parts, **options) -> Learner:
    made = learner(*parts, **options)
    for index in range(2):
        made.begin_domain(domain(index).train, first=index == 0)
        made.steps(6).read()
        made.end_domain(domain(index))
    return made


def test_what_is_reached_is_found_by_looking():
    found = reached(net(), [torch.zeros(1, 3, *SIZE)])
    assert {name: reach.taps for name, reach in found.items()} == {"3.weight": (2, 2), "6.weight": (1, 1)}
    assert found["3.weight"].rows == found["3.weight"].columns == (1, 3)
    assert found["6.weight"].padding == (0, 0)


def test_images_of_several_sizes_reach_what_they_all_reach_alike():
    found = reached(net(), [torch.zeros(1, 3, *size) for size in (SIZE, (3, 3))])
    assert {name: reach.taps for name, reach in found.items()} == {"3.weight": (2, 2), "6.weight": (1, 1)}
    assert reached(net()[:7], [torch.zeros(1, 3, *size) for size in (SIZE, (16, 16))]) == {}


def test_a_weight_that_two_layers_share_is_left_whole():
    module = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1))
    assert set(reached(module, [torch.zeros(1, 3, 1, 1)])) == {"0.weight", "1.weight"}
    module[1].weight = module[0].weight
    assert reached(module, [torch.zeros(1, 3, 1, 1)]) == {}


@pytest.mark.parametrize("frozen", [False, True])
def test_a_network_trains_what_is_reached_and_keeps_its_shapes(frozen):
    module = net()
    module[3].weight.requires_grad_(not frozen)
    network = Network(module, TASK, sizes=[SIZE])
    assert network.params["6.weight"].shape == (6, 5, 1, 1)
    assert ("3.weight" in network.params) is not frozen
    assert {name: value.shape for name, value in network.state().items()} == {
        name: value.shape for name, value in net().state_dict().items()
    }
    x = domain(0).train.x
    assert torch.equal(network.logits(x), Network(net(), TASK).logits(x))


def test_only_what_is_reached_changes_and_everything_is_stored():
    made = trained(sizes=[SIZE])
    before, after = net().state_dict(), made.network.state()
    centre = torch.zeros(3, 3, dtype=torch.bool)
    centre[1, 1] = True
    assert not torch.equal(before["6.weight"][:, :, centre], after["6.weight"][:, :, centre])
    assert torch.equal(before["6.weight"][:, :, ~centre], after["6.weight"][:, :, ~centre])
    assert torch.equal(after["6.weight"][:, :, centre], made.network.params["6.weight"].flatten(2))


@pytest.mark.parametrize(
    ("parts", "memory"),
    [((), 0), ((MetaDR(),), 0), ((L2(strength=0.1),), 0), ((EWC(strength=10.0),), 0), ((GEM(),), 5), ((Replay(),), 5)],
    ids=["naive", "meta-dr", "l2", "ewc", "gem", "er"],
)
def test_every_method_learns_what_it_would_with_all_weights(parts, memory):
    trimmed, whole = trained(*parts, memory=memory, sizes=[SIZE]), trained(*parts, memory=memory)
    for name, value in whole.network.state().items():
        torch.testing.assert_close(trimmed.network.state()[name], value, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_of_either_kind_holds_the_same_network():
    trimmed = trained(sizes=[SIZE])
    state = {name: value.clone() for name, value in trimmed.network.state().items()}
    for sizes in ((), (SIZE,)):
        network = Network(net(), TASK, sizes=sizes)
        network.load(state)
        x, y = domain(5).train
        assert torch.equal(network.logits(x), trimmed.network.logits(x))
        assert torch.equal(network.loss(Batch(x, y), role="clean"), trimmed.network.loss(Batch(x, y), role="clean"))


def test_images_of_another_size_are_refused():
    network = Network(net(), TASK, sizes=[SIZE])
    with pytest.raises(ValueError, match=r"made for images of \[\(4, 4\)\]. Got \(8, 8\)"):
        network.logits(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))


@pytest.mark.parametrize("parts", [(), (L2(strength=0.1),), (EWC(strength=10.0),)], ids=["naive", "l2", "ewc"])
def test_a_checkpoint_with_what_belongs_to_all_weights_goes_on(parts):
    """As earlier versions wrote them: in the middle of the second domain."""
    whole, resumed = learner(*parts), learner(*parts, sizes=[SIZE])
    for index in range(2):
        whole.begin_domain(domain(index).train, first=index == 0)
        whole.steps(3).read()
        if index == 0:
            whole.end_domain(domain(index))
    resumed.begin_domain(domain(1).train, first=False)
    resumed.load({name: value.clone() for name, value in whole.state().items()})
    for each in (whole, resumed):
        each.steps(3).read()
    for name, value in whole.network.state().items():
        torch.testing.assert_close(resumed.network.state()[name], value, rtol=1e-4, atol=1e-6)


def test_a_learner_goes_on_to_the_same_bits_from_its_state(toys):
    through, stopped = (learner(MetaDR(), sizes=[SIZE]) for _ in range(2))
    for each in (through, stopped):
        each.begin_domain(domain(0).train, first=True)
        each.steps(3).read()
    resumed = learner(MetaDR(), sizes=[SIZE])
    resumed.begin_domain(domain(0).train, first=True)
    resumed.load({name: value.clone() for name, value in stopped.state().items()})
    for each in (through, resumed):
        each.steps(3).read()
    toys.assert_same_bits(resumed.state(), through.state())
