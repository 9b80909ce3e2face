"""What a terminal sees of `metadr claims` and `metadr rescore`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from metadr import models
from metadr.report.claims import CLAIMS
from metadr.report.verdicts import FAMILIES

Command = Callable[..., Any]
RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_claims_are_judged_from_a_file_of_records(command: Command, tmp_path: Path) -> None:
    """The published demonstration has no run of the paper's digits: nothing is claimed of them."""
    page = tmp_path / "new" / "claims.md"
    ended = command("claims", RESULTS / "demo.json", "-o", page)
    assert (ended.code, ended.err) == (0, "")
    assert f"{len(CLAIMS)} claims: 0 holds, 0 does not hold, 0 not decided, {len(CLAIMS)} no runs." in ended.out
    assert f"Not shown: {len(CLAIMS)} claims without runs; -o FILE writes all." in ended.out
    assert all(len(line) <= 120 for line in ended.out.split(f"{len(CLAIMS)} claims")[0].splitlines())
    assert ended.out.endswith(f"Wrote {page}\n")
    assert page.read_text().count("| no runs |") == len(CLAIMS)


def test_claims_of_runs_of_another_family_name_it(command: Command) -> None:
    ended = command("claims", RESULTS / "table4-weights.json")
    assert ended.code == 0
    assert "None of 6 runs is one that these claims are about. They fit --of digits-weights." in ended.out


@pytest.mark.parametrize("family", FAMILIES)
def test_claims_of_each_family(family: str, command: Command) -> None:
    ended = command("claims", RESULTS / "demo.json", "--of", family)
    assert ended.code == 0
    assert f"{len(FAMILIES[family])} claims: 0 holds, 0 does not hold" in ended.out


def test_claims_without_runs_is_one_sentence(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command("claims")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Error: No folder runs.")
    assert command("claims", "--runs", tmp_path).err.startswith("Error: No finished runs in")


def test_a_run_is_tested_again(command: Command, make_toy: Callable[..., Any], tmp_path: Path) -> None:
    make_toy()
    assert command("run", "toy", "--out", tmp_path, "--device", "cpu").code == 0
    (path,) = (tmp_path / "toy").iterdir()
    ended = command("rescore", path, "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    lines = (line.split() for line in ended.out.splitlines())
    head, *rows = [words for words in lines if words and words[0] in ("domain", "a", "b", "c")]
    assert " ".join(head) == "domain once learnt at the end own statistics gain"
    assert [row[0] for row in rows] == ["a", "b", "c"]
    for _, _, end, own, gain in rows:
        assert float(own) - float(end) == pytest.approx(float(gain), abs=0.11)
    assert "Forgotten on the earlier domains: " in ended.out
    assert ended.out.endswith(f"Wrote {path / 'rescored.json'}\n")
    assert command("run", "toy", "--method", "dr", "--out", tmp_path, "--device", "cpu").code == 0
    ended = command("rescore", tmp_path, "--statistics", "each", "--device", "cpu", "-o", tmp_path / "statistics")
    assert (ended.code, ended.err) == (0, "")
    assert "by a" in ended.out and "by c" in ended.out
    assert "regained" in ended.out
    assert ended.out.endswith(f"Wrote {tmp_path / 'statistics.md'}\nWrote {tmp_path / 'statistics.json'}\n")
    assert "| Naive + DR |" in (tmp_path / "statistics.md").read_text()


def test_your_own_images_are_found_again(command: Command, own_images: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    assert command("run", "folder", "--data", own_images, "--tiny", "--set", "side=16", "--out", out).code == 0
    ended = command("rescore", out)
    assert (ended.code, ended.out) == (2, "")
    assert "Name it with --data ROOT" in ended.err
    ended = command("rescore", out, "--data", own_images)
    assert ended.code == 2
    assert "The data here are not those of run" in ended.err
    ended = command("rescore", out, "--data", own_images, "--set", "side=16")
    assert (ended.code, ended.err) == (0, "")
    assert len(list(out.rglob("rescored.json"))) == 1


def test_no_batch_norm_and_no_run_are_told(
    command: Command, make_toy: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_toy()
    monkeypatch.setitem(
        models.MODELS, "plain", lambda classes: nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, classes))
    )
    assert command("run", "toy", "--model", "plain", "--out", tmp_path, "--device", "cpu").code == 0
    ended = command("rescore", tmp_path, "--device", "cpu")
    assert (ended.code, ended.err) == (0, "")
    assert "network 'plain' has no batch norm, so there is nothing to re-estimate." in ended.out
    assert command("rescore", tmp_path / "nowhere").err.startswith("Error: No folder")
