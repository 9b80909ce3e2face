"""Statistics re-estimated on a GPU are those of a CPU, and a run of either is tested again on both."""

from pathlib import Path
from typing import Any

import pytest
import torch

from metadr.engine.network import Network
from metadr.engine.reestimate import reestimate
from metadr.rescore import OF_THE_RUN, rescore
from metadr.run import run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def test_statistics_of_a_gpu_are_those_of_a_cpu(toy: Any) -> None:
    x, made = toy.domains[0].train.x, {}
    for device in ("cpu", "cuda"):
        network = Network(toy.module().to(device), toy.task)
        reestimate(network, x.to(device), batch_size=10)
        made[device] = {name: value.cpu() for name, value in network.buffers.items()}
    for name, value in made["cpu"].items():
        torch.testing.assert_close(made["cuda"][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_a_run_is_tested_again_on_either_device(registered_toys: Any, tmp_path: Path, precision: str) -> None:
    recipe = registered_toys["classification"].recipe(overrides=(("precision", precision), ("steps", 20)))
    result = run(recipe, out=tmp_path, device="cuda")
    (there,) = rescore([result.path], device="cuda")
    (again,) = rescore([result.path], device="cuda")
    assert there.rows == again.rows
    assert [there.on(name, OF_THE_RUN) for name in there.order] == result.scores[-1]
    if precision == "fp32":
        (here,) = rescore([result.path], device="cpu")
        for ours, theirs in zip(here.rows, there.rows, strict=True):
            assert abs(ours["value"] - theirs["value"]) < 10  # one of twelve images, where two classes tie
