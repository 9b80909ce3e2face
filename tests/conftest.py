"""Fixtures for all tests. The toys and the web server are in toys.py and web.py.

Both are loaded by path: importlib mode has no sibling imports.
"""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

import metadr
from metadr.data.vkitti2_files import DOMAINS
from metadr.sequence import DomainSequence


def _beside(name: str) -> ModuleType:
    """A module that lies beside this file."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


_toys, _web = _beside("toys"), _beside("web")


@pytest.fixture(autouse=True)
def fixed_seeds():
    """The global stream begins anew with every test, so that none depends on those before it."""
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def on_one_thread():
    """Tensors that are far too small to share out."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def toys(on_one_thread):
    """The module toys.py: the toys and the helpers that look into a learner."""
    return _toys


@pytest.fixture
def web():
    """The module web.py: what a server on this machine can be told to answer, and the file that it has."""
    return _web


@pytest.fixture
def clock(monkeypatch) -> Callable[[float], None]:
    """Time that passes when it is told to."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def pass_by(seconds: float) -> None:
        now[0] += seconds

    return pass_by


@pytest.fixture
def interpreted():
    """Runs a program in Triton's interpreter and returns what it prints.

    The interpreter must be asked for before Triton is imported: so in a process of its own.
    """
    pytest.importorskip("triton", reason="Triton is not installed")

    def run(program: str) -> str:
        source = str(Path(metadr.__file__).resolve().parents[1])
        env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
        if "only 0-dimensional arrays can be converted" in ended.stderr:  # 3.6 does, with numpy 2.4 or newer
            pytest.skip("Triton's interpreter loops over arrays that this numpy takes for no numbers")
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run


@pytest.fixture
def own_images(tmp_path, monkeypatch):
    """A folder of domains for the benchmark `folder`, and a cache of this test's own."""
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "metadr"))
    return _toys.write_images(tmp_path / "images")


@pytest.fixture(scope="session")
def _streets(tmp_path_factory):
    root = tmp_path_factory.mktemp("streets")
    place = _toys.write_streets(root / "vkitti2-rendered", *DOMAINS, frames=4)
    (place / "vkitti2.json").write_text('{"what": "rectangles"}')
    (root / "weights").mkdir()
    save_file({"conv1.weight": torch.zeros(1)}, root / "weights" / "resnet50_v1.safetensors")
    return root


@pytest.fixture
def streets(_streets, monkeypatch):
    """A data root in which every scene is rendered under every condition, as rectangles, and weights are empty."""
    monkeypatch.setenv("METADR_DATA", str(_streets))
    return _streets


@pytest.fixture(params=list(_toys.TOYS))
def toy(request, toys):
    """Each toy in turn: classification, then segmentation."""
    return toys.TOYS[request.param]


@pytest.fixture
def whole_ends(monkeypatch):
    """The last checkpoint of a run holds all that those before it do, so that ends are compared in all of it."""
    monkeypatch.setattr(DomainSequence, "_state", lambda sequence: sequence.learner.state())


@pytest.fixture
def classification(toys):
    return toys.CLASSIFICATION


@pytest.fixture
def segmentation(toys):
    return toys.SEGMENTATION


@pytest.fixture
def registered_toys(toys):
    """The toys as registered benchmarks, for the length of a test."""
    with toys.registered():
        yield toys.TOYS


@pytest.fixture(scope="session")
def process_env() -> dict[str, str]:
    """The environment of a process that runs this checkout from any folder, on one thread and without a terminal."""
    noise = ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES")
    env = {name: value for name, value in os.environ.items() if name not in noise}
    source = str(Path(metadr.__file__).resolve().parents[1])
    return {**env, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
