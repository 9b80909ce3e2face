"""What the end-to-end tests share: the command line in this process, and real processes that cost milliseconds."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from metadr import cli
from metadr.benchmarks import BENCHMARKS
from metadr.core import Benchmark, Domain, Split, Task, Training

# Imports metadr and renders three domains once, then forks a process for every command line it is sent.
LAUNCHER = """
import json, os, resource, signal, sys
import torch._dynamo  # which the first optimiser imports, for seconds
from metadr import cli
from metadr.benchmarks import get_benchmark

for name in ("handwritten", "blended", "rendered"):
    get_benchmark("embedded").load(name)
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for target, path in enumerate((os.devnull, job["stdout"], job["stderr"])):
            os.dup2(os.open(path, os.O_RDONLY if not target else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), target)
        if job["largest_file"]:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest_file"], job["largest_file"]))
        sys.argv = ["metadr", *job["arguments"]]
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Ended(NamedTuple):
    """How a command ended: its exit code (negative: the signal that killed it) and what it printed."""

    code: int
    out: str
    err: str


Meanwhile = Callable[[int], None]


class Launcher:
    """Real processes that run `metadr ARGUMENTS`, one at a time."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER], env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, *arguments: str, meanwhile: Meanwhile | None = None, largest_file: int = 0) -> Ended:
        """Run a command to its end; `meanwhile` is called with its process id once it has been started."""
        assert self._process.stdin is not None
        out, err = self._folder / "stdout", self._folder / "stderr"
        job = {"arguments": arguments, "stdout": str(out), "stderr": str(err), "largest_file": largest_file}
        for file in (out, err):
            file.touch()
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        pid = int(self._line())
        assert pid > 1  # 0 would be this process's own group
        try:
            if meanwhile is not None:
                meanwhile(pid)
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            code = int(self._line())
        return Ended(code, out.read_text(), err.read_text())

    def wait_until_ready(self) -> None:
        assert self._line() == "ready"

    def close(self) -> None:
        self._process.communicate(timeout=60)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors on shared cores: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory, process_env: dict[str, str]) -> Iterator[Launcher]:
    """`launch("run", "embedded", ...)`: the command in a process of its own, which can be killed or starved."""
    launcher = Launcher(tmp_path_factory.mktemp("launcher"), process_env)
    launcher.wait_until_ready()
    yield launcher
    launcher.close()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """`command("run", "toy", ...)`: the command in this process, with what it printed."""

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["metadr", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        return Ended(int(end.value.code or 0), *capsys.readouterr())

    return run


@pytest.fixture
def make_toy(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Benchmark]:
    """`make_toy()` makes the benchmark 'toy' known: three domains of random 8 x 8 images. `load=...` changes it."""

    def make(**changes: Any) -> Benchmark:
        settings: dict[str, Any] = {
            "name": "toy",
            "about": "random images",
            "task": Task(num_classes=3),
            "domains": ("a", "b", "c"),
            "protocols": {"abc": ("a", "b", "c")},
            "load": toy_domain,
            "fingerprint": "toy 1",
            "training": Training(model="tiny_resnet", steps=4, batch_size=4, lr=1e-3),
            "tiny": {"steps": 2},
        }
        benchmark = Benchmark(**{**settings, **changes})
        monkeypatch.setitem(BENCHMARKS, "toy", benchmark)
        return benchmark

    return make


def toy_domain(name: str) -> Domain:
    rng = torch.Generator().manual_seed(ord(name))

    def split(num_images: int) -> Split:
        x = torch.randint(256, (num_images, 3, 8, 8), generator=rng, dtype=torch.uint8)
        return Split(x, torch.randint(3, (num_images,), generator=rng))

    return Domain(name, split(12), split(6))


@pytest.fixture
def table_of() -> Callable[[str], list[list[str]]]:
    """The rows of a printed table of results, split into words."""

    def rows(text: str) -> list[list[str]]:
        lines = text.splitlines()
        head = next(number for number, line in enumerate(lines) if line.split()[:1] == ["method"])
        body = itertools.takewhile(str.strip, lines[head + 2 :])
        return [lines[head].split(), *(line.split() for line in body)]

    return rows
