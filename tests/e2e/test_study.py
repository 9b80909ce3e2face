"""What a terminal sees of `metadr claims` and `metadr rescore`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metadr.report.claims import CLAIMS

Command = Callable[..., Any]
RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_claims_are_judged_from_a_file_of_records(command: Command, tmp_path: Path) -> None:
    """The published demonstration has no run of the paper's digits: nothing is claimed of them."""
    page = tmp_path / "new" / "claims.md"
    ended = command("claims", RESULTS / "demo.json", "-o", page)
    assert (ended.code, ended.err) == (0, "")
    assert f"{len(CLAIMS)} claims: 0 holds, 0 does not hold, 0 not decided, {len(CLAIMS)} no runs." in ended.out
    assert all(len(line) <= 120 for line in ended.out.split(f"{len(CLAIMS)} claims")[0].splitlines())
    assert ended.out.endswith(f"Wrote {page}\n")
    assert page.read_text().count("| no runs |") == len(CLAIMS)


def test_claims_without_runs_is_one_sentence(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command("claims")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("Error: No folder runs.")
    assert command("claims", "--runs", tmp_path).err.startswith("Error: No finished runs in")
