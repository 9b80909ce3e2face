"""The README tells the truth: its Python runs, its commands exist, and those that are tiny are run."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

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


def test_the_readme_has_commands() -> None:
    assert "metadr demo" in COMMANDS
    assert len(COMMANDS) >= 5
    assert any(line.endswith("--tiny") for line in COMMANDS)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_readme_exists(line: str) -> None:
    """Parsed as the command line would, and its names looked up, but not run."""
    context, words = typer.main.get_command(app).make_context("metadr", shlex.split(line)[1:]), None
    while hasattr(context.command, "resolve_command"):
        words = [*context._protected_args, *context.args]
        _, command, rest = context.command.resolve_command(context, words)
        context = command.make_context(command.name, rest, parent=context)
    given: dict[str, Any] = context.params
    assert context.command.callback is not None
    if context.command.name == "run":
        fields = dict(assignment.split("=", 1) for assignment in given["set_"] or ())
        assert make_recipe(given["recipe"], given["method"], tiny=given["tiny"], **fields)
    if context.command.name == "sweep":
        assert given["table"] in TABLES
    if context.command.name == "show":
        assert get_set(given["transforms"])


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.endswith("--tiny")])
def test_a_tiny_command_of_the_readme_runs(
    line: str, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ended = command(*shlex.split(line)[1:])
    assert (ended.code, ended.err) == (0, "")
    assert ended.out
    assert list(tmp_path.rglob("done.json"))
