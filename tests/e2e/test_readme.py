"""The README tells the truth: its Python runs, its commands exist, and those that are tiny are run."""

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metadr.benchmarks import make_recipe
from metadr.cli import app
from metadr.recipes import TABLES
from metadr.transforms import get_set

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), flags=re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [
    line.removeprefix("$ ").partition("  #")[0].strip()
    for language, text in BLOCKS
    if language != "python"
    for line in text.splitlines()
    if re.match(r"(\$ )?metadr\b", line)
]
# Those of the pages that a user works by; words behind two spaces say what a command does.
OF_THE_PAGES = sorted(
    {
        re.split(r"\s{2,}", line)[0]
        for page in (ROOT / "docs").rglob("*.md")
        for text in re.findall(r"^```\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        for line in text.splitlines()
        if line.startswith("metadr ")
    }
    - {*COMMANDS}
)
MEASURED_BY = re.findall(r"`(metadr bench [^`]*)`", (ROOT / "docs" / "performance.md").read_text())


def test_the_python_of_the_readme_runs(tmp_path: Path, process_env: dict[str, str]) -> None:
    first = [line for line in PYTHON[0].splitlines() if line.strip()]
    assert len(first) <= 10
    assert "import metadr" in first
    script = tmp_path / "readme.py"
    script.write_text("\n\n".join(PYTHON))
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name], cwd=tmp_path, env=process_env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.rglob("done.json"))


def test_the_performance_page_has_commands() -> None:
    assert len(MEASURED_BY) >= 8


def test_the_readme_has_commands() -> None:
    assert "metadr demo" in COMMANDS
    assert len(COMMANDS) >= 5
    assert any(line.endswith("--tiny") for line in COMMANDS)


@pytest.fixture
def dry(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Commands are parsed but not run: what would have been called, with which values."""
    called: list[tuple[str, dict[str, Any]]] = []

    def recording(callback: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(callback)
        def record(**values: Any) -> None:
            called.append((callback.__name__, values))

        return record

    groups = [each.typer_instance for each in app.registered_groups if each.typer_instance]
    for command in (command for group in (app, *groups) for command in group.registered_commands):
        assert command.callback is not None
        monkeypatch.setattr(command, "callback", recording(command.callback))
    return called


@pytest.mark.parametrize("line", [*COMMANDS, *OF_THE_PAGES])
def test_a_command_of_the_readme_and_the_pages_exists(
    line: str, command: Callable[..., Any], dry: list[tuple[str, dict[str, Any]]], own_images: Path
) -> None:
    ended = command(*shlex.split(line)[1:])
    assert (ended.code, ended.err) == (0, "")
    ((name, given),) = dry
    if name == "run":
        fields = dict(assignment.split("=", 1) for assignment in given["set_"] or ())
        fields |= {name: given[name] for name in ("order", "model") if given[name]}
        fields |= {"root": str(own_images)} if given["data"] else {}
        assert make_recipe(given["recipe"], given["method"], tiny=given["tiny"], **fields)
    if name == "sweep":
        assert set(given["tables"]) <= set(TABLES)
    if name == "show" and "transforms" in given:
        assert get_set(given["transforms"])


def test_a_command_that_does_not_exist_would_be_noticed(
    command: Callable[..., Any], dry: list[tuple[str, dict[str, Any]]]
) -> None:
    assert command("run", "embedded", "--methods", "dr").code == 2
    assert command("swep", "demo").code == 2
    assert not dry


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.endswith("--tiny")])
def test_a_tiny_command_of_the_readme_runs(
    line: str, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command(*shlex.split(line)[1:])
    assert (ended.code, ended.err) == (0, "")
    assert ended.out
    assert list(tmp_path.rglob("done.json"))


@pytest.mark.parametrize("line", MEASURED_BY)
def test_a_command_that_made_a_table_of_the_performance_page_exists(
    line: str, command: Callable[..., Any], dry: list[tuple[str, dict[str, Any]]]
) -> None:
    ended = command(*shlex.split(line)[1:])
    assert (ended.code, ended.err) == (0, "")
    ((name, _),) = dry
    assert name.startswith("bench_")
