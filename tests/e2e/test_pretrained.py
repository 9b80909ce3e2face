"""Weights from a file by the command line: a run, and a study that knows them only as a file's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from metadr import models
from metadr.benchmarks import BENCHMARKS
from metadr.core import Domain, Split
from metadr.recipes import pacs_resnet50

Command = Callable[..., Any]


def random_styles(name: str) -> Domain:
    rng = torch.Generator().manual_seed(BENCHMARKS["pacs"].domains.index(name))
    x = torch.randint(256, (12, 3, 16, 16), generator=rng, dtype=torch.uint8)
    return Domain(name, Split(x[:8], torch.arange(8) % 7), Split(x[8:], torch.arange(4)))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(models.build("tiny_resnet", 1000).state_dict(), tmp_path / "imagenet.safetensors")
    return tmp_path / "imagenet.safetensors"


@pytest.fixture
def study(make_toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The short study of PACS, with a tiny network on random images."""
    real = BENCHMARKS["pacs"]
    changes = {"name": "pacs", "task": real.task, "domains": real.domains, "protocols": real.protocols}
    changes |= {"load": random_styles, "fingerprint": "random styles", "part_defaults": real.part_defaults}
    monkeypatch.setitem(BENCHMARKS, "pacs", make_toy(**changes))
    monkeypatch.setattr(pacs_resnet50, "SETTING", {"weights": "file", "steps": 1})


def test_a_study_from_a_file_of_weights(study: None, file: Path, command: Command, tmp_path: Path) -> None:
    words = ("sweep", "pacs-resnet50", "--seeds", 1, "--out", tmp_path / "runs", "--device", "cpu")
    ended = command(*words)
    assert ended.code == 2
    assert "This starts from weights in a file. Name it with --weights FILE (safetensors), or put it in " in ended.err
    assert not (tmp_path / "runs").exists()

    ended = command(*words, "--weights", file)
    assert (ended.code, ended.err) == (0, "")
    assert "pacs-resnet50: 9 of 9 runs done, 0 failed" in ended.out
    assert "Not the settings of the table" not in ended.out
    assert "Not the paper's setting: ResNet-50" in ended.out
    rows = [line for line in ended.out.splitlines() if line.startswith("|")]
    assert rows[0] == "| method |  | Sketches | Cartoons | Paintings | Photos |"
    assert sum("(1) |" in row for row in rows) == 9
    assert "|  | paper | 84.3 ± 2.4 | 75.0 ± 2.2 | 80.7 ± 0.7 | 98.7 ± 0.1 |" in rows

    # The runs are found again without the file, and by another name of it.
    moved = file.rename(tmp_path / "other name.safetensors")
    report = command("report", "pacs-resnet50", "--runs", tmp_path / "runs", "--seeds", 1)
    assert (report.code, report.err) == (0, "")
    assert [line for line in report.out.splitlines() if line.startswith("|")] == rows
    assert "9 finished, 0 to run." in command(*words, "--weights", moved).out


def test_a_run_from_a_file_of_weights(
    make_toy: Callable[..., Any], file: Path, command: Command, tmp_path: Path
) -> None:
    make_toy()
    words = ("run", "toy", "--out", tmp_path / "runs", "--device", "cpu")
    paths = [command(*words, *more).out.split("Run: ")[1] for more in ((), ("--weights", file))]
    assert paths[0] != paths[1]
    for first in ("run", "sweep"):
        ended = command(first, "toy" if first == "run" else "demo", "--weights", file, "--set", "weights=none")
        assert ended.code == 2
        assert "--weights and --set weights= say the same thing twice. Leave one of them out." in ended.err
    ended = command(*words, "--weights", tmp_path)
    assert ended.code == 2 and "is a folder. Weights are one safetensors file" in ended.err
