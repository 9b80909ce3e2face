"""What the tests of Virtual KITTI 2 share: a data root with three sequences of six frames."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from metadr.data import vkitti2_files, vkitti2_set
from metadr.vkitti2_classes import FRAMES


@pytest.fixture(scope="module")
def order() -> tuple[str, ...]:
    """The sequences that are there."""
    return ("scene02-clone", "scene01-fog", "scene06-overcast")


@pytest.fixture(scope="module")
def made(order, tmp_path_factory, toys) -> Path:
    return toys.write_streets(tmp_path_factory.mktemp("made") / "streets", *order)


@pytest.fixture
def root(made, tmp_path, monkeypatch) -> Path:
    """A data root whose vkitti2 holds six frames a sequence, as if so few had been published."""
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    for module in (vkitti2_files, vkitti2_set):
        monkeypatch.setattr(module, "FRAMES", dict.fromkeys(FRAMES, 6))
    shutil.copytree(made, tmp_path / "vkitti2")
    return tmp_path


@pytest.fixture
def pixels_of() -> Callable[[Path], dict[str, bytes]]:
    """What the files below a folder hold."""

    def read(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*.*")) if path.is_file()}

    return read
