"""What the tests of weights share: the state of a small network, a file of it, and a recipe that starts there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from metadr import models
from metadr.benchmarks import make_recipe
from metadr.core import Recipe


@pytest.fixture
def tiny_state() -> Callable[..., dict[str, torch.Tensor]]:
    """Makes the state of a small network, as it is drawn."""

    def make(num_classes: int = 10, seed: int = 1) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return models.build("tiny_resnet", num_classes).state_dict()

    return make


@pytest.fixture
def file(tiny_state: Callable[..., dict[str, torch.Tensor]], tmp_path: Path) -> Path:
    save_file(tiny_state(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.fixture
def tiny() -> Callable[..., Recipe]:
    """Makes the recipe of a small run that starts from a file, or from none."""

    def make(file: Path | str | None, **fields: Any) -> Recipe:
        return make_recipe("embedded", tiny=True, weights=None if file is None else str(file), **fields)

    return make
