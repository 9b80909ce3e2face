"""Files of rendered streets: official ones, the same bytes again after any stop, and what is refused."""

import ast
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from metadr import cli, files
from metadr.errors import UserError
from metadr.progress import Work
from metadr.synthetic import street
from metadr.synthetic.street import frames, scenes, writing
from metadr.synthetic.street.camera import SIZE
from metadr.synthetic.street.sheet import contact_sheet
from metadr.synthetic.street.weather import CONDITIONS
from metadr.synthetic.street.writing import REVISION, build, moments
from metadr.vkitti2_classes import CLASSES, FRAMES, RECORD
from metadr.vkitti2_classes import CONDITIONS as NAMES

ROOT = Path(__file__).parents[3]
SMALL = (104, 32)
OFFICIAL = {colour: name for name, colour in CLASSES}
RGB = re.compile(r"(Scene\d\d)/(\w+)/frames/rgb/Camera_([01])/rgb_(\d{5})\.jpg")
CLASSGT = re.compile(r"(Scene\d\d)/(\w+)/frames/classSegmentation/Camera_([01])/classgt_(\d{5})\.png")


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the record, by its place in the folder."""
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found.pop(RECORD)
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small rendering of all scenes in all conditions."""
    folder = tmp_path_factory.mktemp("street")
    build(folder, size=SMALL, frames=2, processes=1)
    return folder


# Files


def test_layout_and_colours_are_official(made: Path) -> None:
    rgb, classgt, colours = set(), set(), set()
    for place in content(made):
        found, mask = RGB.fullmatch(place), CLASSGT.fullmatch(place)
        assert found or mask, place
        with Image.open(made / place) as image:
            assert image.size == SMALL and image.mode == "RGB"
            assert image.format == ("JPEG" if found else "PNG")
            if mask:
                colours |= {colour for _, colour in image.getcolors()}
        (rgb if found else classgt).add((found or mask).groups())
    expected = {(s, name, c, n) for s in FRAMES for name in NAMES for c in "01" for n in ("00000", "00001")}
    assert rgb == classgt == expected
    assert colours <= set(OFFICIAL)
    assert "Undefined" not in {OFFICIAL[colour] for colour in colours}


def test_one_geometry_in_six_conditions(made: Path) -> None:
    for scene in FRAMES:
        for camera in (0, 1):
            seen = [[path.read_bytes() for path in writing.paths(made, scene, name, camera, 1)] for name in NAMES]
            assert len({classes for _, classes in seen}) == 1
            assert len({picture for picture, _ in seen}) == len(NAMES)


def test_frame_counts_are_official_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(writing, "_make", lambda folder, size, seed, unit: asked.append(unit) or unit)
    made = build(tmp_path, processes=1)
    assert made.frames == made.new == 2126 * 2 * 6
    assert {(unit.scene, unit.camera, unit.number, unit.moment) for unit in asked} == {
        (scene, camera, number, number)
        for scene, count in FRAMES.items()
        for camera in (0, 1)
        for number in range(count)
    }
    assert json.loads((tmp_path / RECORD).read_text())["size"] == list(SIZE)


def test_fewer_frames_are_spread_over_the_scene() -> None:
    assert moments("Scene02") == list(range(233))
    assert moments("Scene02", 4) == [0, 58, 116, 174]
    assert len(moments("Scene02", 10_000)) == 233


def test_the_record_says_what_it_is(made: Path) -> None:
    record = json.loads((made / RECORD).read_text())
    assert "not that data set" in record["what"]
    assert {name: record[name] for name in ("revision", "seed", "size", "frames")} == {
        "revision": REVISION,
        "seed": 0,
        "size": list(SMALL),
        "frames": 2,
    }
    assert record["complete"] == {scene: list(NAMES) for scene in FRAMES}


# The same again


def test_the_same_pixels_from_the_same_seed_in_any_order() -> None:
    first = frames.render("Scene06", 40, 1, ("clone", "rain"), size=SMALL, seed=3)
    scenes.world.cache_clear()
    frames.render("Scene06", 41, 0, ("fog",), size=SMALL, seed=3)
    second = frames.render("Scene06", 40, 1, ("rain",), size=SMALL, seed=3)
    assert np.array_equal(first.labels, second.labels)
    assert np.array_equal(first.pictures["rain"], second.pictures["rain"])
    other = frames.render("Scene06", 40, 1, ("rain",), size=SMALL, seed=4)
    assert not np.array_equal(first.labels, other.labels)


def test_a_second_build_does_nothing_and_a_wider_one_only_what_is_missing(made: Path, tmp_path: Path) -> None:
    before = content(made)
    again = build(made, size=SMALL, frames=2, processes=1)
    assert (again.frames, again.new) == (120, 0)
    few = build(tmp_path, size=SMALL, frames=2, scenes=["6"], conditions=["fog"], processes=1)
    assert (few.frames, few.new) == (4, 4)
    more = build(tmp_path, size=SMALL, frames=2, scenes=["06", "Scene06"], conditions=["rain", "fog"], processes=1)
    assert (more.frames, more.new) == (8, 4)
    assert content(tmp_path).items() <= before.items() == content(made).items()
    assert json.loads((tmp_path / RECORD).read_text())["complete"] == {"Scene06": ["fog", "rain"]}


def test_a_stopped_build_goes_on(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped by Ctrl-C in the middle of writing a file."""
    written = []
    replace = Path.replace

    def stop(path: Path, target: Path) -> Path:
        written.append(target)
        if len(written) == 24:
            raise KeyboardInterrupt
        return replace(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(files.Path, "replace", stop)
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path, size=SMALL, frames=2, scenes=["06"], processes=1)
    there = content(tmp_path)
    assert len(there) == 22  # the record was the first
    assert there.items() <= content(made).items()
    assert json.loads((tmp_path / RECORD).read_text())["complete"] == {}
    assert build(tmp_path, size=SMALL, frames=2, scenes=["06"], processes=1).new == 24 - 11
    assert content(tmp_path) == {place: data for place, data in content(made).items() if place.startswith("Scene06")}


def test_ctrl_c_leaves_whole_files_and_processes_change_nothing(made: Path, tmp_path: Path) -> None:
    """A terminal's Ctrl-C reaches every process; the one that started the others decides."""

    def stop(now: Work) -> None:
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGINT)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, size=SMALL, frames=2, processes=2, watch=stop)
    assert not multiprocessing.active_children()
    there = content(tmp_path)
    assert 12 <= len(there) < 240 and len(there) % 12 == 0  # what was begun is there in all conditions
    assert there.items() <= content(made).items()
    assert build(tmp_path, size=SMALL, frames=2, processes=1).new == 120 - len(there) / 2
    assert content(tmp_path) == content(made)


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--scenes", "03"],
            "No scene '03' of the rendered streets. Known: Scene01, Scene02, Scene06, Scene18, Scene20.",
        ),
        (["--scenes", "01,,02"], "No scene '' of the rendered streets. Known: Scene01,"),
        (["--conditions", "clone,snow"], "No condition 'snow' of the rendered streets. Known: clone, fog, morning,"),
        (["--conditions", "foggy"], "Closest: 'fog'."),
        (["--size", "416"], "must be WIDTHxHEIGHT in pixels, as 416x128. Got '416' instead."),
        (["--size", "8x8"], "must be 32 to 4096 pixels each way. Got 8x8 instead."),
        (["--size", "99999x128"], "must be 32 to 4096 pixels each way. Got 99999x128 instead."),
        (["--frames", "0"], "The 'frames' of a rendering must be an integer >= 1. Got 0 instead."),
    ],
)
def test_mistakes(arguments: list[str], sentence: str, tmp_path: Path, monkeypatch, capsys) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["metadr", "data", "build", "vkitti2", "--out", str(out), *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_frames_from_elsewhere_are_kept(tmp_path: Path) -> None:
    theirs = tmp_path / "Scene01" / "clone" / "frames" / "rgb" / "Camera_0" / "rgb_00000.jpg"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"the real one")
    with pytest.raises(UserError, match=r"holds scenes but no vkitti2\.json: frames from elsewhere"):
        build(tmp_path, size=SMALL, frames=1, processes=1)
    assert theirs.read_bytes() == b"the real one"


@pytest.mark.parametrize(
    ("other", "said"), [({"seed": 1}, "seed 0"), ({"size": (64, 32)}, r"size \[104, 32\]"), ({"frames": 3}, "frames 2")]
)
def test_another_rendering_is_kept(made: Path, other: dict, said: str) -> None:
    before = content(made)
    with pytest.raises(UserError, match=f"holds another rendering: {said}. Remove it"):
        build(made, **{"size": SMALL, "frames": 2, "processes": 1, **other})
    assert content(made) == before


def test_a_record_that_is_no_record(tmp_path: Path) -> None:
    (tmp_path / RECORD).write_text("{")
    with pytest.raises(UserError, match=r"vkitti2\.json' cannot be read"):
        build(tmp_path, size=SMALL, frames=1, processes=1)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Cannot write"):
        build(tmp_path / "file" / "out", size=SMALL, frames=1, processes=1)


# What surrounds it


def test_the_command_says_what_it_makes(tmp_path: Path, monkeypatch, capsys) -> None:
    arguments = ["--size", "64x32", "--scenes", "02", "--conditions", "fog", "--frames", "1", "--processes", "1"]
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["metadr", "data", "build", "vkitti2", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    said = " ".join(capsys.readouterr().out.split())
    assert "2 frames of 64x32, 2 of them new" in said and "are not that data set" in said
    assert len(content(tmp_path / "vkitti2-rendered")) == 4


def test_a_sheet_shows_scenes_by_conditions() -> None:
    sheet = np.asarray(contact_sheet(size=(64, 32), scenes=["06"], conditions=["clone", "fog"], part=1.0))
    assert sheet.shape == (18 + 36, 4 + 3 * 68, 3)
    last = frames.render("Scene06", 269, 0, ["fog"], size=(64, 32))
    assert np.array_equal(sheet[18:50, 72:136], last.pictures["fog"])
    assert {tuple(colour) for colour in sheet[18:50, 140:204].reshape(-1, 3).tolist()} <= set(OFFICIAL)
    with pytest.raises(UserError, match="must be a number from 0 to 1"):
        contact_sheet(size=(64, 32), part=1.5)


def test_rendering_needs_numpy_and_pillow_alone() -> None:
    allowed = {"numpy", "PIL", "metadr", *sys.stdlib_module_names}
    within = ("metadr.errors", "metadr.files", "metadr.progress", "metadr.vkitti2_classes", "metadr.synthetic.street")
    for path in Path(street.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [node.module] if isinstance(node, ast.ImportFrom) else []
            named += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in named:
                assert name.split(".")[0] in allowed, f"{path.name} imports {name}"
                assert not name.startswith("metadr") or name.startswith(within), f"{path.name} imports {name}"


@pytest.mark.parametrize("started_by", ["a script", "-m"])
def test_its_processes_do_not_import_torch(started_by: str, tmp_path: Path) -> None:
    """The command alone does: it takes seconds and half a gigabyte, in each of them."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["metadr"]
    module, _, function = declared.partition(":")
    script = tmp_path / "metadr"  # as installers write it
    script.write_text(f"import sys\nfrom {module} import {function}\nif __name__ == '__main__':\n    {function}()\n")
    words = ["--size", "64x32", "--scenes", "02", "--frames", "2", "--processes", "2", "--out", str(tmp_path / "made")]
    done = subprocess.run(
        [
            sys.executable,
            *([script] if started_by == "a script" else ["-m", "metadr"]),
            "data",
            "build",
            "vkitti2",
            *words,
        ],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    imported = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]
    assert imported.count("metadr.synthetic.street.writing") == 3
    assert imported.count("torch") == 1


def test_the_page_has_the_conditions_of_the_code() -> None:
    page = (ROOT / "docs" / "street.md").read_text()
    for name, condition in CONDITIONS.items():
        sun = f"{condition.sun_height:g}°" if condition.sunny else "none"
        assert f"| `{name}` | {sun} | {condition.haze:g} |" in page
    for scene, count in FRAMES.items():
        assert f"| `{scene}` | {count} |" in page
