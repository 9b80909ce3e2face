"""The ground of a run on a GPU: switches of torch and precisions, turned for its turns alone."""

import pytest
import torch
from torch import nn

from metadr import models
from metadr.core import Training
from metadr.engine.ground import Ground, prepare_process
from metadr.parts import MetaDR, Replay
from metadr.run import advance, run
from metadr.store import RunDirectory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda")
if torch.cuda.is_available():
    prepare_process()  # before any test multiplies matrices: cuBLAS and torch read it once


def switches() -> list[object]:
    return [
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.cuda.current_stream(),
    ]


@pytest.mark.parametrize("others", [False, True], ids=["torch's defaults", "others"])
def test_the_ground_turns_switches_and_turns_them_back(others, monkeypatch):
    if others:
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
        monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
        monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)
        torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = switches()
        wanted = {
            Training(): ["ieee", "ieee", True, False, False, True, False],
            Training(precision="bf16"): ["ieee", "ieee", True, False, False, True, False],
            Training(precision="tf32", deterministic=False): ["tf32", "tf32", False, False, False, False, False],
        }
        for training, turned in wanted.items():
            ground = Ground(training, CUDA)
            with ground.held():
                assert switches() == [*turned, ground.stream]
            assert switches() == before
            with pytest.raises(ZeroDivisionError), ground.held():
                _ = 1 / 0
            assert switches() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_paused_run_leaves_the_switches_to_others(registered_toys, classification, tmp_path):
    before = switches()
    stages = advance(classification.recipe(), out=tmp_path, device="cuda")
    next(stages)
    assert switches() == before
    stages.close()
    assert switches() == before


def test_the_ground_decides_how_products_are_computed():
    rng = torch.Generator("cuda").manual_seed(0)
    a, b = torch.randn(2, 512, 512, generator=rng, device="cuda")
    image = torch.randn(8, 64, 32, 32, generator=rng, device="cuda")
    kernel = torch.randn(64, 64, 3, 3, generator=rng, device="cuda")
    torch.cuda.synchronize()
    exact = (a.double() @ b.double(), nn.functional.conv2d(image.double(), kernel.double(), padding=1))
    errors = {}
    for precision in ("fp32", "tf32"):
        with Ground(Training(precision=precision), CUDA).held():
            computed = (a @ b, nn.functional.conv2d(image, kernel, padding=1))
            torch.cuda.synchronize()
        errors[precision] = [
            float((ours - theirs).abs().max() / theirs.abs().max())
            for ours, theirs in zip(computed, exact, strict=True)
        ]
    assert max(errors["fp32"]) < 1e-5
    assert min(errors["tf32"]) > 1e-5


def wide_net(num_classes: int) -> nn.Module:
    """A classifier with convolutions that are wide enough for tensor cores."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, num_classes),
    )


def test_every_precision_trains_and_gives_other_bits(registered_toys, classification, tmp_path, monkeypatch):
    monkeypatch.setitem(models.MODELS, "toy_wide", wide_net)
    results = {}
    for precision in ("fp32", "tf32", "bf16"):
        overrides = (("model", "toy_wide"), ("steps", 4), ("batch_size", 16), ("precision", precision))
        recipe = classification.recipe(MetaDR(), Replay(), overrides=overrides)
        run(recipe, out=tmp_path, device="cuda")
        results[precision] = RunDirectory(tmp_path, recipe, 0).load().network["3.weight"]
    assert all(value.isfinite().all() and value.dtype == torch.float32 for value in results.values())
    assert not torch.equal(results["fp32"], results["tf32"])
    assert not torch.equal(results["fp32"], results["bf16"])
    assert not torch.equal(results["tf32"], results["bf16"])
