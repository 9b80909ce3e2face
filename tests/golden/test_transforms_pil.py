"""Every transformation without noise equals its Pillow call bit for bit, at every level of the paper's grids."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from metadr import transforms
from metadr.bench.transforms import PILLOW, apply_with_pillow, bench_transforms
from metadr.transforms import TRANSFORMS, Choice, draw, get_set

pytestmark = pytest.mark.usefixtures("on_one_thread")
DETERMINISTIC = sorted(name for name, transform in TRANSFORMS.items() if not transform.stochastic)
SIZES = [(1, 1), (1, 7), (3, 5), (5, 5), (6, 4), (37, 53), (32, 32), (224, 224), (375, 1242)]


def make_images(num_images: int, height: int, width: int) -> Tensor:
    """Random images of different brightness and contrast, each with a ramp, and black and white pixels."""
    rng = np.random.default_rng(height * width)
    ramp = np.linspace(0, 80, height * width).reshape(height, width)
    images = []
    for _ in range(num_images):
        noise = rng.uniform(0, rng.uniform(1, 256), (3, height, width)) + rng.uniform(0, 128, (3, 1, 1))
        image = (noise + ramp).clip(0, 255).astype(np.uint8)
        image[:, rng.integers(height), rng.integers(width)] = rng.choice([0, 255])
        images.append(image)
    return torch.from_numpy(np.stack(images))


def with_pillow(name: str, images: Tensor, levels: list[float]) -> Tensor:
    arrays = images.permute(0, 2, 3, 1).contiguous().numpy()
    calls = zip(arrays, levels, strict=True)
    results = [np.asarray(PILLOW[name](Image.fromarray(array), level)) for array, level in calls]
    return torch.from_numpy(np.stack(results)).permute(0, 3, 1, 2)


def assert_same(name: str, images: Tensor, levels: list[float]) -> None:
    ours = getattr(transforms, name)(images, torch.tensor(levels, dtype=torch.float64))
    different = (ours != with_pillow(name, images, levels)).flatten(1).any(1)
    assert not different.any(), [level for level, wrong in zip(levels, different.tolist(), strict=True) if wrong]


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_all_levels(name, size):
    levels = list(Choice.of(name).grid())
    num_images = min(len(levels), 3) if size == (375, 1242) else len(levels)
    images = make_images(num_images, *size)
    for start in range(0, len(levels), num_images):
        some = levels[start : start + num_images]
        assert_same(name, images[: len(some)], some)


@pytest.mark.parametrize("name", ["brightness", "color", "contrast"])
def test_levels_outside_the_grid(name):
    levels = [-2.0, -0.3, 0.0, 1e-7, 0.5, 1.0, 1.0000001, 3.7, 1000.0]
    assert_same(name, make_images(len(levels), 20, 30), levels)


@pytest.mark.parametrize("name", ["brightness", "contrast"])
def test_single_precision_levels(name):
    level = torch.linspace(0.2, 1.8, 17)
    images = make_images(len(level), 9, 11)
    ours = getattr(transforms, name)(images, level)
    assert torch.equal(ours, with_pillow(name, images, level.tolist()))


@pytest.mark.parametrize("threshold", [0, 1, 128, 254, 255, 256, 300])
def test_solarize_thresholds(threshold):
    ramp = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    assert_same("solarize", ramp, [threshold + 0.9])


@pytest.mark.parametrize("grey", [0, 1, 127, 128, 254, 255])
def test_contrast_of_means_halfway_between_two_greys(grey):
    image = torch.full((1, 3, 20, 20), grey, dtype=torch.uint8)
    image[:, :, :10] = min(255, grey + 1)
    assert_same("contrast", image, [0.3])


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (32, 32), (33, 32), (97, 211)], ids=str)
def test_rotation_by_special_and_random_angles(size):
    special = [0.0, 30.0, 45.0, 60.0, 90.0, -90.0, 120.0, 180.0, 270.0, 360.0, -720.0, 1e-9, -1e-17, 359.9999999999]
    levels = special + np.random.default_rng(0).uniform(-400, 400, 120).tolist()
    assert_same("rotate", make_images(len(levels), *size), levels)


def test_rotated_masks_equal_pillow_with_a_fill():
    levels = list(Choice.of("rotate").grid())
    masks = torch.from_numpy(np.random.default_rng(0).integers(0, 15, (len(levels), 37, 53)))
    ours = transforms.rotate_masks(masks, torch.tensor(levels, dtype=torch.float64), 255)
    for ours_one, mask, level in zip(ours, masks, levels, strict=True):
        pillow = Image.fromarray(mask.numpy().astype(np.uint8)).rotate(level, fillcolor=255)
        assert np.array_equal(ours_one.numpy(), np.asarray(pillow))


@pytest.mark.parametrize("per", ["image", "batch"])
@pytest.mark.parametrize("name", ["psi1", "psi2", "brightness+rotate:-30:30:7+blur"])
def test_compositions(name, per):
    rng = torch.Generator().manual_seed(0)
    images = make_images(40, 24, 31)
    for _ in range(5):
        drawn = draw(get_set(name), len(images), rng, per=per, pick="operation")
        assert torch.equal(drawn.apply(images), apply_with_pillow(drawn, images))


@pytest.mark.parametrize("strategy", ["gather", "masked"])  # of a CPU, and of a GPU inside a recorded step
@pytest.mark.parametrize("name", ["psi1", "psi2", "psi3", "psi4"])
def test_sets_at_the_size_of_pacs(name, strategy):
    source = get_set(name)
    source = dataclasses.replace(source, choices=tuple(each for each in source.choices if each.name in DETERMINISTIC))
    rng = torch.Generator().manual_seed(0)
    images = make_images(8, 224, 224)
    for per in ("image", "batch"):
        drawn = draw(source, len(images), rng, per=per, pick="operation")
        assert torch.equal(drawn.apply(images, strategy=strategy), apply_with_pillow(drawn, images))


def test_benchmark_times_equal_pixels():
    result = bench_transforms(sizes=(8, (6, 9)), batch=6, repeats=2)
    assert [(row["height"], row["width"], row["per"]) for row in result["rows"]] == [
        (8, 8, "image"),
        (8, 8, "batch"),
        (6, 9, "image"),
        (6, 9, "batch"),
    ]
    assert all(row["same_pixels"] and row["ratio"] > 0 for row in result["rows"])
    assert result["n"] == 2
    assert torch.__version__.startswith(result["environment"]["torch"])
