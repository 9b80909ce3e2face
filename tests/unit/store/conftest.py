"""What the tests of the store share: a benchmark without data, for every test."""

import typing

import pytest

from metadr.benchmarks import BENCHMARKS
from metadr.core import Benchmark, Task, Training


def unread(name: str) -> typing.NoReturn:
    raise AssertionError("a key needs no data")


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """The benchmark `toy`, for the length of a test."""
    made = Benchmark(
        name="toy",
        about="no data",
        task=Task(num_classes=3),
        domains=("a", "b"),
        protocols={"ab": ("a", "b")},
        load=unread,
        fingerprint="toy 1",
        training=Training(model="tiny_resnet", steps=4),
    )
    monkeypatch.setitem(BENCHMARKS, "toy", made)
    return made
