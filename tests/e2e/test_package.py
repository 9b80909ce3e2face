"""The wheel: built, installed away from the checkout, and used there."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "metadr"

WHERE = """
import pathlib, sys, metadr
print(pathlib.Path(metadr.__file__).resolve().parents[1])
sys.argv = ["metadr", "demo", "--tiny", "--out", "runs"]
from metadr.cli import main; main()
"""


def call(*words: str, cwd: Path, env: dict[str, str]) -> str:
    done = subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, process_env: dict[str, str]) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder), cwd=ROOT, env=process_env)
    (built,) = folder.glob("metadr-*.whl")
    return built


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    package = {name.removeprefix("metadr/") for name in names if name.startswith("metadr/")}
    here = {path.relative_to(SOURCE).as_posix() for kind in ("*.py", "*.csv") for path in SOURCE.rglob(kind)}
    assert here <= package
    assert "py.typed" in package
    assert {Path(name).parts[0].split("-")[0] for name in names} == {"metadr"}
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert any(name.endswith("/entry_points.txt") for name in names)


def test_the_wheel_runs_the_demonstration_away_from_the_checkout(
    wheel: Path, tmp_path: Path, process_env: dict[str, str]
) -> None:
    target, elsewhere = tmp_path / "installed", tmp_path / "elsewhere"
    elsewhere.mkdir()
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
    call(sys.executable, *pip, "--target", str(target), str(wheel), cwd=elsewhere, env=process_env)
    printed = call(sys.executable, "-c", WHERE, cwd=elsewhere, env={**process_env, "PYTHONPATH": str(target)})
    assert Path(printed.splitlines()[0]) == target.resolve()
    assert "Meta-DR" in printed
    assert "Wrote runs/demo-tiny.png" in printed
    assert (elsewhere / "runs" / "demo-tiny.png").exists()
