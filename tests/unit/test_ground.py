"""The ground that a run stands on: switches, precision, what CUDA reads when it starts."""

import os

import pytest
import torch

from metadr.core import Training
from metadr.engine.ground import Ground, _refusal, prepare_process
from metadr.errors import UserError
from metadr.parts import EWC, GEM, MetaDR, Replay

CPU = torch.device("cpu")


def switches() -> list[object]:
    return [
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ]


def test_the_ground_of_a_cpu_run_turns_no_switch():
    before = switches()
    with Ground(Training(), CPU).held():
        assert switches() == before
    assert switches() == before


def test_tf32_needs_a_gpu():
    with pytest.raises(UserError, match="Precision 'tf32' needs a GPU, and this run is on cpu"):
        Ground(Training(precision="tf32"), CPU)


def test_an_operation_that_cannot_be_repeated_is_told_in_a_sentence():
    torch_says = "grid_sampler_2d_backward_cuda does not have a deterministic implementation, but you set 'torch.use"
    assert str(_refusal(RuntimeError(torch_says))) == (
        "The network or a part uses grid_sampler_2d_backward_cuda, which gives other bits each time on a GPU. "
        "Use --set deterministic=false, or another layer."
    )
    assert _refusal(RuntimeError("CUDA error: out of luck")) is None


def test_what_a_user_has_set_for_cuda_is_kept(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    prepare_process()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS") == "32"


@pytest.mark.parametrize("parts", [(), (MetaDR(),), (Replay(), GEM(), EWC())], ids=["naive", "meta-dr", "memory"])
def test_bf16_trains_near_fp32_with_weights_in_fp32(parts, toy):
    half, full = (toy.learner(*parts, precision=precision) for precision in ("bf16", "fp32"))
    losses = [[row["loss"] for row in toy.play(each, num_steps=3)] for each in (half, full)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert {value.dtype for value in half.network.params.values()} == {torch.float32}
    for ours, theirs in zip(half.network.params.values(), full.network.params.values(), strict=True):
        assert not torch.equal(ours, theirs)


def test_the_fisher_is_in_full_precision_whatever_the_run_s(toy):
    """Its batch norms, under vmap, refuse a mixture of types; and it squares small numbers."""
    half, full = (toy.learner(EWC(), precision=precision) for precision in ("bf16", "fp32"))
    fishers = []
    for learner in (half, full):
        learner.begin_domain(toy.domains[0].train, first=True)
        fishers.append(EWC().fisher(toy.domains[0].train, learner._context(learner.recipe.method[0])))
    for name, value in fishers[0].items():
        assert torch.equal(value, fishers[1][name])
