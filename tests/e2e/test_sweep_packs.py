"""A sweep leaves its finished runs as one file beside it, at any time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metadr import cli_sweep, packs
from metadr.errors import UserError
from metadr.store import finished_runs

Command = Callable[..., Any]


@pytest.fixture
def sweep(command: Command, tmp_path: Path) -> Command:
    return lambda *more: command("sweep", "demo", "--tiny", "--device", "cpu", "--out", tmp_path / "runs", *more)


def test_the_pack_grows_with_every_run_and_holds_all_of_them(
    sweep: Command, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes, pack = [], packs.pack

    def counted(*args: Any, **options: Any) -> packs.Packed:
        sizes.append(pack(*args, **options))
        return sizes[-1]

    monkeypatch.setattr(cli_sweep, "PACK_SECONDS", 0)
    monkeypatch.setattr(packs, "pack", counted)
    ended = sweep("--seeds", 1, "--pack", tmp_path / "p.tar.gz")
    assert ended.code == 0, ended.err
    assert [(each.finished, each.unfinished) for each in sizes] == [(1, 0), (2, 0), (3, 0), (3, 0)]
    assert command("results", "unpack", tmp_path / "p.tar.gz", "--out", tmp_path / "other").code == 0
    mine, theirs = ({path.name: path for path in finished_runs(tmp_path / name)} for name in ("runs", "other"))
    assert mine.keys() == theirs.keys()
    for name, path in mine.items():
        assert (path / "rows.json").read_bytes() == (theirs[name] / "rows.json").read_bytes()


def test_between_two_packs_there_is_some_time(sweep: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, pack = [], packs.pack
    monkeypatch.setattr(cli_sweep, "PACK_SECONDS", 3600)
    monkeypatch.setattr(packs, "pack", lambda *args, **options: made.append(pack(*args, **options)))
    assert sweep("--seeds", 1, "--pack", tmp_path / "p.tar.gz").code == 0
    assert [each.finished for each in made] == [1, 3]  # after the first run, and at the end


def test_a_sweep_that_finished_nothing_packs_nothing(sweep: Command, tmp_path: Path) -> None:
    assert sweep("--minutes", 0, "--pack", tmp_path / "p.tar.gz").code == 0
    assert not (tmp_path / "p.tar.gz").exists()


def test_a_pack_that_cannot_be_written_does_not_stop_the_sweep(
    sweep: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise UserError("Cannot write p.tar.gz: no space left.")

    monkeypatch.setattr(packs, "pack", full)
    ended = sweep("--seeds", 1, "--pack", tmp_path / "p.tar.gz")
    assert ended.code == 0, ended.err
    assert "Not packed: Cannot write p.tar.gz: no space left." in ended.out
    assert len(finished_runs(tmp_path / "runs")) == 3


@pytest.mark.parametrize("place", [".", "nowhere/p.tar.gz"])
def test_a_place_that_is_none_is_refused_before_anything_runs(sweep: Command, tmp_path: Path, place: str) -> None:
    ended = sweep("--pack", tmp_path / place)
    assert ended.code == 2
    assert ended.err.startswith("Error: --pack must be a file in a folder that is there. Got '")
    assert not (tmp_path / "runs").exists()
