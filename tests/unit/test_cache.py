"""The cache of decoded images: one decoding, whatever happens to processes and files."""

import fcntl
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

from metadr.data import cache
from metadr.data.cache import Entry, cached, content_hash, fingerprint
from metadr.errors import UserError


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return {
        "x": torch.randint(256, (50, 3, 32, 32), generator=rng, dtype=torch.uint8),
        "y": torch.randint(10, (50,), generator=rng),
    }


class Counted:
    """A decoder that counts how often it runs."""

    def __init__(self, seed: int = 0) -> None:
        self.calls, self.seed = 0, seed

    def __call__(self) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        self.calls += 1
        return tensors(self.seed), {"found": 50}


def opened(folder: Path, make: Counted, *, settings: int = 0, inputs: str = "a" * 16, checked: bool = False) -> Entry:
    return cached(folder, "toy", {"setting": settings}, inputs, make, checked=checked)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_decodes_once_and_gives_the_same_back(tmp_path: Path) -> None:
    make = Counted()
    first, second = opened(tmp_path, make), opened(tmp_path, make, checked=True)
    assert make.calls == 1
    for entry in (first, second):
        assert all(torch.equal(entry.tensors[name], value) for name, value in tensors().items())
        assert entry.about == {"found": 50}
        assert entry.content == content_hash(tensors())
        assert entry.tensors["x"].is_contiguous()
    assert files(tmp_path) == [first.path.name]


def test_opens_without_reading(tmp_path: Path) -> None:
    """A file of 64 MB opens in the time of a small one: its bytes are mapped."""

    def large() -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        return {"x": torch.zeros(64 << 20, dtype=torch.uint8)}, {}

    cached(tmp_path, "large", {}, "a", large)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        entry = cached(tmp_path, "large", {}, "a", large)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.01
    assert len(entry.tensors["x"]) == 64 << 20


def test_writing_to_a_tensor_does_not_reach_the_file(tmp_path: Path) -> None:
    opened(tmp_path, Counted()).tensors["x"].zero_()
    assert torch.equal(opened(tmp_path, Counted(), checked=True).tensors["x"], tensors()["x"])


def test_other_inputs_replace_an_entry_and_other_settings_do_not(tmp_path: Path) -> None:
    old = opened(tmp_path, Counted())
    beside = opened(tmp_path, Counted(1), settings=1)
    new = opened(tmp_path, Counted(2), inputs="b" * 16)
    assert files(tmp_path) == sorted([beside.path.name, new.path.name])
    assert torch.equal(old.tensors["x"], tensors(0)["x"])  # still open
    assert torch.equal(new.tensors["x"], tensors(2)["x"])


@pytest.mark.parametrize("damage", ["empty", "short", "long", "noise", "metadata", "pixel"])
def test_damaged_file_is_decoded_anew_with_a_warning(tmp_path: Path, damage: str, caplog) -> None:
    path = opened(tmp_path, Counted()).path
    data = path.read_bytes()
    pixel = bytearray(data)
    pixel[-100_000] ^= 1
    path.write_bytes(
        {
            "empty": b"",
            "short": data[:-1],
            "long": data + b"1",
            "noise": os.urandom(1000),
            "metadata": data.replace(b'"content"', b'"contend"'),
            "pixel": bytes(pixel),
        }[damage]
    )
    make = Counted()
    with caplog.at_level(logging.WARNING, "metadr"):
        entry = opened(tmp_path, make, checked=True)
    assert make.calls == 1
    assert [record.message.partition(" (")[0] for record in caplog.records] == [f"{path} is damaged"]
    assert torch.equal(entry.tensors["x"], tensors()["x"])
    assert opened(tmp_path, make, checked=True) and make.calls == 1


def test_failing_decoder_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        raise UserError("no")

    with pytest.raises(UserError, match=r"^no$"):
        cached(tmp_path, "toy", {}, "a", fails)
    assert files(tmp_path) == []


@pytest.mark.parametrize("place", ["folder", "file"])
def test_cache_that_cannot_be_written(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if place == "folder":
        (tmp_path / "cache").write_text("a file in its place")
    else:

        def full(self: Path, target: Path) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(UserError, match=r"^Cannot write .*METADR_DATA"):
        opened(tmp_path / "cache", Counted())
    assert place == "folder" or files(tmp_path / "cache") == []


SCRIPT = """
    import os, signal, sys, time
    from pathlib import Path
    import torch
    from metadr.data import cache

    def make():
        Path(sys.argv[1], "made").open("a").write("x")
        time.sleep(0.5)
        return {"x": torch.full((1000,), 7)}, {}

    if sys.argv[2] == "die":
        # Killed when all is written but not yet in its place.
        Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
    entry = cache.cached(Path(sys.argv[1], "cache"), "toy", {}, "a", make, checked=True)
    assert entry.tensors["x"].tolist() == [7] * 1000
"""


def start(folder: Path, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(SCRIPT), str(folder), how])


def test_two_processes_decode_once(tmp_path: Path) -> None:
    both = [start(tmp_path, "live"), start(tmp_path, "live")]
    assert [process.wait(120) for process in both] == [0, 0]
    assert (tmp_path / "made").read_text() == "x"
    assert len(files(tmp_path / "cache")) == 1


def test_killed_process_leaves_neither_a_lock_nor_an_entry(tmp_path: Path) -> None:
    assert start(tmp_path, "die").wait(120) == -signal.SIGKILL
    assert all(name.endswith(".part") for name in files(tmp_path / "cache"))
    assert start(tmp_path, "live").wait(120) == 0
    assert (tmp_path / "made").read_text() == "xx"
    (name,) = files(tmp_path / "cache")
    assert name.endswith(".safetensors")


def test_who_waits_for_another_process_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path, Counted())
    (lock,) = tmp_path.glob("*.lock")
    with lock.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        release = threading.Timer(0.2, fcntl.flock, (handle, fcntl.LOCK_UN))
        release.start()
        opened(tmp_path, Counted(), inputs="b" * 16)
        release.join()
    (said,) = [record for record in caplog.records if record.levelno >= logging.WARNING]  # what the command line shows
    assert said.message == f"Waiting for another process that decodes the same data ({lock})."


def test_fingerprint_of_files(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"123")
    os.utime(path, ns=(1, 1))
    before = fingerprint([path])
    assert before == fingerprint([str(path)])
    os.utime(path, ns=(1, 2))
    assert fingerprint([path]) != before
    path.write_bytes(b"1234")
    os.utime(path, ns=(1, 1))
    assert fingerprint([path]) != before
    assert fingerprint([path, tmp_path / "absent"]) != fingerprint([path])


def test_content_hash_sees_values_names_shapes_and_types() -> None:
    whole = {"x": torch.arange(6)}
    others = [
        {"y": torch.arange(6)},
        {"x": torch.arange(6).view(2, 3)},
        {"x": torch.arange(6, dtype=torch.int32)},
        {"x": torch.arange(6) + 1},
    ]
    assert len({content_hash(each) for each in (whole, *others)}) == 5
    assert content_hash({"x": torch.arange(6).view(2, 3).T}) == content_hash(
        {"x": torch.tensor([[0, 3], [1, 4], [2, 5]])}
    )


def test_every_byte_is_compared_once_until_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make, compared = Counted(), []
    entry = opened(tmp_path, make)
    usual = cache.content_hash
    monkeypatch.setattr(cache, "content_hash", lambda tensors: compared.append(1) or usual(tensors))
    for _ in range(3):
        opened(tmp_path, make, checked=True)
    assert len(compared) == 1
    data = bytearray(entry.path.read_bytes())
    data[-1] ^= 1
    entry.path.write_bytes(data)
    os.utime(entry.path, ns=(0, 1))  # a clock of any resolution sees it
    opened(tmp_path, make, checked=True)
    assert len(compared) > 1 and make.calls == 2
