"""What people see: a live display on a terminal, plain lines elsewhere, and a sentence after Ctrl-C."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

SETTINGS = ("--method", "meta-dr", "--set", "order=handwritten,blended", "--set", "steps=30")
RUN = ("run", "embedded", "--tiny", "--device", "cpu", "--checkpoint-seconds", "0", *SETTINGS)
STOPPED = "Stopped. The same command goes on from the last checkpoint."
# Makes its terminal the one that Ctrl-C comes from, as a shell would have done.
ON_A_TERMINAL = """
import fcntl, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
from metadr.cli import main; main()
"""


class Terminal:
    """A pseudo-terminal of 80 columns with `metadr ARGUMENTS` on it."""

    def __init__(self, env: dict[str, str], *arguments: str) -> None:
        self.screen = ""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-c", ON_A_TERMINAL, *arguments],
            env=env,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def read_until(self, pattern: str) -> None:
        deadline = time.monotonic() + 120
        while not re.search(pattern, self.screen) and self._read():
            assert time.monotonic() < deadline, self.screen

    def press_ctrl_c(self) -> None:
        os.write(self._ours, b"\x03")

    def wait(self) -> int:
        while self._read():
            pass
        os.close(self._ours)
        return self.process.wait(timeout=60)

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other side is gone
            return False
        self.screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode(errors="replace"))
        return bool(data)


@pytest.fixture
def terminal(process_env: dict[str, str]) -> Iterator[Callable[..., Terminal]]:
    started = []

    def start(*arguments: str) -> Terminal:
        started.append(Terminal(process_env, *arguments))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()


def assert_same_result(one: Path, other: Path) -> None:
    (mine,), (theirs,) = one.glob("embedded/*"), other.glob("embedded/*")
    assert (mine / "rows.json").read_bytes() == (theirs / "rows.json").read_bytes()
    tensors, wanted = (load_file(max(path.glob("checkpoint-*.safetensors"))) for path in (mine, theirs))
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(value, wanted[name]) for name, value in tensors.items())


def test_a_terminal_shows_where_a_run_stands_and_ctrl_c_leaves_it_to_go_on(
    terminal: Callable[..., Terminal], launch: Callable[..., Any], tmp_path: Path
) -> None:
    watched = terminal(*RUN, "--out", str(tmp_path / "stopped"))
    watched.read_until(r"step 10/30")
    watched.read_until(r"left\s+loss \d")
    watched.press_ctrl_c()
    assert watched.wait() == 130
    where, losses = r"handwritten \(1/2\) step \d+/30", r"loss \d+\.\d+ clean \d+\.\d+ meta-dr \d+\.\d+"
    shown = rf"{where}  \d+\.\d steps/s  \d+:\d\d left\s+{losses}"
    assert re.search(shown, watched.screen), watched.screen
    assert "…" not in watched.screen
    assert watched.screen.rstrip().endswith(STOPPED)
    assert "Traceback" not in watched.screen
    assert not list(tmp_path.rglob("done.json"))
    assert launch(*RUN, "--out", str(tmp_path / "stopped")).code == 0
    assert launch(*RUN, "--out", str(tmp_path / "whole")).code == 0
    assert_same_result(tmp_path / "stopped", tmp_path / "whole")


SWEEP_STOPPED = "Stopped. 0 of 3 runs done, 3 left. The same command goes on from the last checkpoints."


@pytest.mark.parametrize(
    ("arguments", "told"), [(RUN, STOPPED), (("demo", "--tiny"), SWEEP_STOPPED)], ids=["run", "demo"]
)
def test_an_interrupt_without_a_terminal_is_one_sentence(
    arguments: tuple[str, ...], told: str, launch: Callable[..., Any], tmp_path: Path
) -> None:
    def interrupt(pid: int) -> None:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob("lock")):
            assert time.monotonic() < deadline
            time.sleep(0.001)
        os.kill(pid, signal.SIGINT)

    ended = launch(*arguments, "--out", str(tmp_path), meanwhile=interrupt)
    assert ended.code == 130
    assert ended.err == told + "\n"
    assert not list(tmp_path.rglob("done.json"))
    assert not list(tmp_path.rglob("failed.json"))


def test_nothing_moves_where_nobody_watches(launch: Callable[..., Any], tmp_path: Path) -> None:
    ended = launch(*RUN, "--set", "steps=12", "--out", str(tmp_path))
    assert ended.code == 0
    assert ended.err == ""
    assert not set(ended.out) & set("\x1b\r━╸╺")
    assert "step" not in ended.out
    (path,) = (tmp_path / "embedded").iterdir()
    lines = ended.out.split("\n")
    assert lines[0].strip() == "embedded: handwritten → blended"
    assert lines[2].split() == ["method", "handwritten", "blended", "ACC", "kept", "BWT", "n"]
    assert lines[4].split()[0] == "Meta-DR"
    assert lines[-2:] == [f"Run: {path}", ""]


def test_a_terminal_shows_how_far_decoding_is(own_images: Path, process_env: dict[str, str], tmp_path: Path) -> None:
    env = {**process_env, "METADR_DATA": os.environ["METADR_DATA"]}
    words = ("run", "folder", "--data", str(own_images), "--tiny", "--device", "cpu", "--out", str(tmp_path / "runs"))
    watched = Terminal(env, *words, "--dry-run")
    assert watched.wait() == 0
    for name in ("day", "fog", "rain"):
        assert re.search(rf"decoding {name} [ ━╸╺]+ *30/30 ", watched.screen), watched.screen
    assert not (tmp_path / "runs").exists()
