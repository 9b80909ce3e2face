"""Streets rendered by the command line, then seen, checked, trained on, moved and never taken for Virtual KITTI 2."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
SCENES = {"02": "clone", "01": "fog", "06": "overcast"}  # of vkitti2-rendered/p1/1


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_what_is_rendered_is_what_the_benchmark_reads(root: Path, command: Command, tmp_path: Path) -> None:
    run = ("run", "vkitti2-rendered/p1/1", "--method", "meta-dr", "--tiny", "--device", "cpu")
    ended = command(*run, "--out", tmp_path / "runs")
    assert ended.code == 2 and "Run 'metadr data build vkitti2' or 'metadr data import vkitti2-rendered" in ended.err

    for scene, condition in SCENES.items():
        words = ("--scenes", scene, "--conditions", condition, "--processes", 1)
        ended = command("data", "build", "vkitti2", "--size", "96x32", "--frames", 4, *words)
        assert (ended.code, ended.err) == (0, "")
    ended = command("data", "status", "vkitti2-rendered")
    assert "partial" in ended.out and "rendered here; not Virtual KITTI 2" in " ".join(ended.out.split())
    assert command("data", "verify", "vkitti2-rendered").code == 0
    assert "missing" in command("data", "status", "vkitti2").out

    ended = command(*run, "--out", tmp_path / "runs")
    assert (ended.code, ended.err) == (0, "")
    (path,) = (tmp_path / "runs" / "vkitti2-rendered").iterdir()
    rows = json.loads((path / "rows.json").read_text())
    assert len(rows) == 4 * 3
    for row in rows:  # one moment of four is tested on, by two cameras; nothing of a rendered street is Undefined
        assert row["images"] == 2 and sum(map(sum, row["confusion"])) == 2 * 96 * 32

    # Elsewhere, under the name of the published set: refused there, and taken as what it is.
    moved = tmp_path / "moved" / "below"
    shutil.copytree(root / "vkitti2-rendered", moved)
    ended = command("data", "import", "vkitti2", moved.parent)
    assert ended.code == 2 and "does not hold Virtual KITTI 2 (streets rendered by metadr" in ended.err
    shutil.rmtree(root / "vkitti2-rendered")
    assert command("data", "import", "vkitti2-rendered", moved.parent).code == 0
    again = command(*run, "--out", tmp_path / "runs")
    assert again.code == 0 and [*(tmp_path / "runs" / "vkitti2-rendered").iterdir()] == [path]
    assert (
        "is not published. Make it with 'metadr data build vkitti2'" in command("data", "fetch", "vkitti2-rendered").err
    )
