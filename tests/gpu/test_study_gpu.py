"""Runs as the study has them, ResNet-18 in TF32, give the same bits on any number of lanes, and after a kill."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from metadr.benchmarks import make_recipe
from metadr.engine.ground import prepare_process
from metadr.store import RunDirectory
from metadr.sweep import Job, sweep

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
if torch.cuda.is_available():
    prepare_process()  # before any test multiplies matrices: cuBLAS and torch read it once

DEVICE = "cuda"
ORDER = ("handwritten", "blended")
FIELDS: dict[str, Any] = {"model": "resnet18", "precision": "tf32", "limit": 128, "order": ORDER}
METHODS: dict[str, dict[str, Any]] = {
    "dr": {},
    "meta-dr": {},
    "dr+ewc": {},
    "er+meta-dr": {"memory_per_domain": 8},
}


def assert_same_result(one: Path, other: Path, job: Job) -> None:
    first, second = (RunDirectory(out, job.recipe, job.seed) for out in (one, other))
    assert first.finished and second.finished
    assert first.read("rows.json") == second.read("rows.json")
    mine, theirs = load_file(first.checkpoints()[0]), load_file(second.checkpoints()[0])
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_the_study_s_runs_have_the_same_bits_on_any_number_of_lanes(tmp_path: Path) -> None:
    recipes = [make_recipe("embedded", method, steps=8, **FIELDS, **fields) for method, fields in METHODS.items()]
    jobs = [Job(recipe, 0) for recipe in recipes]
    for lanes in (1, 4):
        assert sweep(jobs, out=tmp_path / str(lanes), device=DEVICE, lanes=lanes).failed == []
    asked = iter(range(1000))
    stopped = tmp_path / "stopped"
    assert len(sweep(jobs, out=stopped, device=DEVICE, lanes=2, stop=lambda: next(asked) > 12).done) < len(jobs)
    left = [job for job in jobs if not RunDirectory(stopped, job.recipe, job.seed).finished]
    assert sweep(left, out=stopped, device=DEVICE, lanes=4).failed == []
    for job in jobs:
        assert_same_result(tmp_path / "1", tmp_path / "4", job)
        assert_same_result(tmp_path / "1", stopped, job)


def test_a_run_that_is_killed_ends_with_the_same_bits(process_env: dict[str, str], tmp_path: Path) -> None:
    """Checkpoints are written beside the training: the last whole one is gone on from."""
    recipe = make_recipe("embedded", "meta-dr", steps=60, **FIELDS)
    settings = {**FIELDS, "order": ",".join(ORDER), "steps": 60}
    words = ["run", "embedded", "--method", "meta-dr", "--device", DEVICE, "--checkpoint-seconds", "0"]
    words += [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def start(out: str) -> subprocess.Popen[bytes]:
        call = "from metadr.cli import main; main()"
        return subprocess.Popen([sys.executable, "-c", call, *words, "--out", tmp_path / out], env=process_env)

    killed = RunDirectory(tmp_path / "killed", recipe, 0)
    running = start("killed")
    deadline = time.monotonic() + 120
    while not (killed.checkpoints() and killed.load().position["step"]):
        assert running.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    assert not killed.finished
    for out in ("killed", "whole"):
        assert start(out).wait() == 0
    assert_same_result(tmp_path / "killed", tmp_path / "whole", Job(recipe, 0))
