"""What every registered transformation promises. A new one is picked up by all checks without another line."""

import inspect
import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from metadr import transforms
from metadr.errors import UserError
from metadr.transforms import TRANSFORMS, Choice, Transform, TransformSet, draw, get_set

pytestmark = pytest.mark.usefixtures("on_one_thread")
# The level at which a transformation changes nothing, for those that have one.
IDENTITY_LEVELS = {
    "identity": 0.0,
    "brightness": 1.0,
    "color": 1.0,
    "contrast": 1.0,
    "rgb_rand": 0.0,
    "solarize": 256.0,
    "rotate": 0.0,
    "gaussian_noise": 0.0,
}


def make_images(num_images: int, height: int = 12, width: int = 17) -> Tensor:
    rng = torch.Generator().manual_seed(7)
    return torch.randint(256, (num_images, 3, height, width), generator=rng, dtype=torch.uint8)


def levels_of(transform: Transform, num_images: int) -> Tensor:
    grid = Choice.of(transform.name).grid()
    return torch.tensor([grid[(7 * image) % len(grid)] for image in range(num_images)], dtype=torch.float64)


def call(transform: Transform, images: Tensor, level: Tensor, seed: int = 0) -> Tensor:
    options = {"rng": torch.Generator().manual_seed(seed)} if transform.stochastic else {}
    return getattr(transforms, transform.name)(images, level, **options)


def check_keeps_shape_dtype_and_device(transform):
    for size in ((1, 1), (3, 5), (5, 5), (12, 17)):
        images = make_images(4, *size)
        result = call(transform, images, levels_of(transform, 4))
        assert (result.shape, result.dtype, result.device) == (images.shape, torch.uint8, images.device)
        assert result.is_contiguous()


def check_leaves_its_input_alone(transform):
    images, level = make_images(5), levels_of(transform, 5)
    before = images.clone(), level.clone()
    result = call(transform, images, level)
    result.zero_()
    assert torch.equal(images, before[0])
    assert torch.equal(level, before[1])


def check_accepts_any_memory_layout(transform):
    images, level = make_images(6), levels_of(transform, 6)
    expected = call(transform, images, level)
    assert torch.equal(call(transform, images.to(memory_format=torch.channels_last), level), expected)
    one = images[:1].expand(6, -1, -1, -1)
    assert torch.equal(call(transform, one, level), call(transform, one.contiguous(), level))


def check_batch_equals_single_images(transform):
    if (
        transform.stochastic
    ):  # One stream for the batch: compare where the images are the same, in distribution, elsewhere.
        assert torch.equal(*(call(transform, make_images(5), levels_of(transform, 5), seed=3) for _ in range(2)))
        return
    images, level = make_images(9), levels_of(transform, 9)
    singles = [call(transform, images[i : i + 1], level[i : i + 1]) for i in range(9)]
    assert torch.equal(call(transform, images, level), torch.cat(singles))


def check_differs_between_images_if_stochastic(transform):
    images = make_images(1).expand(4, -1, -1, -1)
    level = torch.full((4,), transform.high, dtype=torch.float64)
    result = call(transform, images, level)
    assert transform.stochastic == (len(result.flatten(1).unique(dim=0)) > 1)


def check_identity_level_is_the_identity(transform):
    if transform.name in IDENTITY_LEVELS:
        images = make_images(5)
        level = torch.full((5,), IDENTITY_LEVELS[transform.name], dtype=torch.float64)
        assert torch.equal(call(transform, images, level), images)
    else:
        assert not transform.ranged


def check_ignores_the_level_without_a_range(transform):
    images = make_images(5)
    results = [call(transform, images, torch.full((5,), level, dtype=torch.float64)) for level in (0.3, 77.0)]
    assert torch.equal(*results) == (not transform.ranged)


def check_accepts_single_precision(transform):
    images = make_images(5)
    level = levels_of(transform, 5).float()
    assert torch.equal(call(transform, images, level), call(transform, images, level.double()))


def check_empty_batch(transform):
    images = make_images(0)
    assert call(transform, images, levels_of(transform, 0)).shape == images.shape


def check_masks_follow_geometric_transformations_only(transform):
    images = make_images(6)
    masks = (torch.arange(6 * 12 * 17).view(6, 12, 17) * 7919) % 15
    one = TransformSet("one", (Choice.of(transform.name),), compositions=1)
    rng = torch.Generator().manual_seed(0)
    drawn = draw(one, 6, rng, per="image", pick="operation")
    before = masks.clone()
    for strategy in ("gather", "masked"):
        _, moved = drawn.apply(images, rng, masks, 99, strategy=strategy)
        assert transform.geometric == (not torch.equal(moved, masks))
        assert torch.equal(masks, before)
        assert moved.dtype == masks.dtype
        if transform.geometric:  # Images and masks go the same way, and corners are ignored.
            same = masks.to(torch.uint8).unsqueeze(1).expand(-1, 3, -1, -1) + 1
            expected = drawn.apply(same, rng, strategy=strategy)[:, 0].long() - 1
            assert torch.equal(moved, expected.where(expected >= 0, 99))


def check_refuses_wrong_input(transform):
    images, level = make_images(4), levels_of(transform, 4)
    for wrong in (images[:, :1], images.float(), images[0], images[:, :2]):
        with pytest.raises(
            UserError, match=rf"^The images of '{transform.name}' must be \(B, 3, H, W\) uint8\. Got \("
        ):
            call(transform, wrong, level)
    for wrong in (level[:3], level[0], level.view(4, 1)):
        with pytest.raises(UserError, match=rf"^The level of '{transform.name}' must be one number per image, \(4,\)"):
            call(transform, images, wrong)


def check_is_documented_and_pure(transform):
    function = getattr(transforms, transform.name)
    assert inspect.getdoc(function)
    assert ("rng" in inspect.signature(function).parameters) == transform.stochastic
    assert transform.revision >= 1
    assert (transform.low == transform.high) == (transform.levels == 1)


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]


@pytest.mark.parametrize(
    ("transform", "check"),
    [
        pytest.param(transform, check, id=f"{name}-{check.__name__.removeprefix('check_')}")
        for (name, transform), check in itertools.product(sorted(TRANSFORMS.items()), CHECKS)
    ],
)
def test_transform(transform, check):
    check(transform)


def test_the_ten_of_the_paper_and_identity_are_registered():
    paper = {"brightness", "color", "contrast", "rgb_rand", "solarize", "grayscale", "invert", "rotate"}
    assert paper | {"gaussian_noise", "blur", "identity"} == set(TRANSFORMS)


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("sigma", [1.0, 11.4, 30.0])
def test_gaussian_noise_is_normal(rng, sigma):
    images = torch.full((4, 3, 64, 64), 128, dtype=torch.uint8)
    noisy = transforms.gaussian_noise(images, torch.full((4,), sigma, dtype=torch.float64), rng=rng)
    offset = noisy.double().flatten().numpy() - 128
    # Chi-square over whole numbers: rounding collects half a grey level on either side.
    values = np.arange(-2 * sigma // 1, 2 * sigma // 1 + 2)
    edges = np.array([-math.inf, *(values - 0.5), math.inf])
    expected = np.diff(stats.norm.cdf(edges / sigma)) * offset.size
    assert stats.chisquare(np.histogram(offset, edges)[0], expected).pvalue > 1e-4
    fields = noisy.double().flatten(2).view(12, -1).numpy()  # Every pixel and channel has its own.
    assert abs(np.corrcoef(fields)[np.triu_indices(12, 1)]).max() < 0.08


def test_gaussian_noise_clips_at_both_ends(rng):
    level = torch.full((3,), 30.0)
    for value, end in ((3, 0), (250, 255)):
        noisy = transforms.gaussian_noise(torch.full((3, 3, 60, 60), value, dtype=torch.uint8), level, rng=rng)
        clipped = (noisy == end).double().mean()
        expected = stats.norm.cdf(-(abs(value - end) - 0.5) / 30)
        assert abs(clipped - expected) < 4 * math.sqrt(expected * (1 - expected) / noisy.numel())


@pytest.mark.parametrize("level", [1.0, 40.0, 120.0])
def test_rgb_rand_is_uniform_and_shifts_whole_channels(rng, level):
    images = torch.full((3000, 3, 2, 3), 127, dtype=torch.uint8)
    shifted = transforms.rgb_rand(images, torch.full((3000,), level, dtype=torch.float64), rng=rng)
    assert torch.equal(shifted, shifted[:, :, :1, :1].expand_as(shifted))
    offset = shifted[:, :, 0, 0].double().numpy() - 127
    assert np.abs(offset).max() <= level
    if level > 10:
        spread = offset.ravel() + np.random.default_rng(0).uniform(-0.5, 0.5, offset.size)
        assert stats.kstest(spread, "uniform", args=(-level, 2 * level)).pvalue > 1e-4
    else:  # Rounding makes -1, 0, 1 with a quarter, a half, a quarter.
        counts = np.array([(offset == value).sum() for value in (-1, 0, 1)])
        assert stats.chisquare(counts, np.array([0.25, 0.5, 0.25]) * offset.size).pvalue > 1e-4
    assert abs(np.corrcoef(offset.T)[np.triu_indices(3, 1)]).max() < 0.08


def test_rgb_rand_clips(rng):
    white = torch.full((500, 3, 1, 1), 255, dtype=torch.uint8)
    shifted = transforms.rgb_rand(white, torch.full((500,), 100.0), rng=rng)
    assert abs((shifted == 255).double().mean() - 0.5) < 0.06
    assert shifted.min() >= 155


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("size", [(32, 32), (37, 53), (224, 224), (375, 1242)], ids=str)
@pytest.mark.parametrize("name", sorted(name for name, transform in TRANSFORMS.items() if not transform.stochastic))
def test_cuda_equals_cpu_at_every_level(name, size):
    level = torch.tensor(Choice.of(name).grid(), dtype=torch.float64)
    images = torch.randint(256, (len(level), 3, *size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    function = getattr(transforms, name)
    assert torch.equal(function(images.cuda(), level.cuda()).cpu(), function(images, level))


# One kernel for all transformations of a set.

INTERPRETED = """
import torch
from metadr.transforms import fused, get_set
from metadr.transforms.drawing import _masked, _Slot, draw
from metadr.transforms.geometric import headings
from metadr.transforms.registry import TRANSFORMS

fused.BLOCK = 128
rng = torch.Generator().manual_seed(0)
slots = []
for name, per in (("psi1", "image"), ("psi1", "batch"), ("psi4", "image"), ("psi4", "batch")):
    drawn = draw(get_set(name), 6, rng, per=per, pick="operation")
    transforms = [TRANSFORMS[choice.name] for choice in drawn.source.choices]
    slots.append((transforms, drawn.operation[0], drawn.level[0], drawn.heading[:, 0]))
every = [transform for transform in TRANSFORMS.values() if fused._code(transform) is not None]
for transform in every:  # each at its first level, and at one in between
    levels = [transform.low, 0.7 * transform.low + 0.3 * transform.high]
    at = torch.tensor([every.index(transform)] * 2)
    level = torch.tensor([int(each) if transform.whole else each for each in levels], dtype=torch.float64)
    slots.append((every, at, level, headings(level)))
for transforms, operation, level, heading in slots:
    assert all(fused._code(transform) is not None for transform in transforms)
    for size in ((9, 11), (4, 7)):
        images = torch.randint(256, (len(operation), 3, *size), generator=rng, dtype=torch.uint8)
        own = [torch.Generator().manual_seed(7) for _ in range(2)]
        wanted, _ = _masked(_Slot(transforms, operation, level, heading, images, None, own[0], 255))
        assert torch.equal(fused.apply(transforms, operation, level, heading, images, own[1]), wanted)
        assert torch.equal(own[0].get_state(), own[1].get_state())
        print("same pixels")
"""


def test_the_kernel_of_all_transformations_makes_the_same_pixels(interpreted):
    assert interpreted(INTERPRETED).count("same pixels") == 2 * (4 + 11)


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("size", [(32, 32), (37, 53), (375, 1242)], ids=str)
@pytest.mark.parametrize("per", ["image", "batch"])
@pytest.mark.parametrize("name", ["psi1", "psi2", "psi3", "psi4", "identity+brightness+solarize+gaussian_noise+blur"])
def test_cuda_in_one_kernel_equals_cuda_one_by_one(name, per, size):
    """With noise, too: both draw the same numbers."""
    rng = torch.Generator("cuda").manual_seed(0)
    images = torch.randint(256, (40, 3, *size), generator=rng, dtype=torch.uint8, device="cuda")
    drawn = draw(get_set(name), 40, rng, per=per, pick="operation")
    own = [torch.Generator("cuda").manual_seed(7) for _ in range(2)]
    made = [drawn.apply(images, each, strategy=which) for each, which in zip(own, ("fused", "masked"), strict=True)]
    assert torch.equal(*made)
    assert not torch.equal(made[0], images)
    assert torch.equal(own[0].get_state(), own[1].get_state())


@pytest.mark.gpu
@needs_cuda
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("per", ["image", "batch"])
def test_cuda_never_waits_for_the_host_and_can_be_captured(per):
    rng = torch.Generator("cuda").manual_seed(0)
    images = torch.randint(256, (64, 3, 32, 32), generator=rng, dtype=torch.uint8, device="cuda")
    masks = torch.randint(15, (64, 32, 32), generator=rng, device="cuda")
    own = get_set("psi3")

    def step():
        drawn = draw(own, 64, rng, per=per, pick="operation")
        return drawn, drawn.apply(images, rng, masks)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(rng)
    with torch.cuda.graph(graph):
        drawn, (result, moved) = step()
    seen = []
    for _ in range(3):
        graph.replay()
        quiet = ((drawn.operation != 7).all(0)).nonzero().flatten()
        host = drawn._replace(operation=drawn.operation[:, quiet].cpu(), level=drawn.level[:, quiet].cpu())
        expected, expected_masks = host.apply(images[quiet].cpu(), None, masks[quiet].cpu())
        assert torch.equal(result[quiet].cpu(), expected)
        assert torch.equal(moved[quiet].cpu(), expected_masks)
        seen.append(drawn.level.cpu().clone())
    assert not torch.equal(seen[0], seen[1])
