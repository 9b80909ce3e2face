"""Mistakes with one's own images: each is one sentence and exit code 2, and nothing is written but the cache."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from metadr.data import folder as folders
from metadr.data.decode import picture

Command = Callable[..., Any]
Spoil = Callable[[Path], object]


class Mistake(NamedTuple):
    """What is done to a sound folder, what is given to the command, and the words of the sentence."""

    spoil: Spoil
    words: tuple[str, ...]
    given: tuple[str, ...] = ()


def nothing(root: Path) -> None:
    """Leave it sound."""


def csv(text: str | bytes) -> Spoil:
    """snow.csv with this content."""
    return lambda root: (root / "snow.csv").write_bytes(text if isinstance(text, bytes) else text.encode())


def rows(*lines: str, head: str = "path,label") -> Spoil:
    return csv("\n".join((head, "day/bus/0.png,bus", *lines)) + "\n")


def cut(*names: str) -> Spoil:
    def spoil(root: Path) -> None:
        for name in names:
            (root / name).write_bytes((root / name).read_bytes()[:200])

    return spoil


def emptied(folder: str) -> Spoil:
    def spoil(root: Path) -> None:
        shutil.rmtree(root / folder)
        (root / folder).mkdir()

    return spoil


def moved(before: str, after: str) -> Spoil:
    def spoil(root: Path) -> None:
        (root / after).parent.mkdir(parents=True, exist_ok=True)
        (root / before).rename(root / after)

    return spoil


def replaced_by_file(root: Path) -> None:
    shutil.rmtree(root)
    root.write_text("a file")


def one_class(root: Path) -> None:
    for folder in root.glob("*/*"):
        if folder.name != "bus":
            shutil.rmtree(folder)


def single_images(root: Path) -> None:
    for folder in root.glob("fog/*"):
        for image in folder.glob("[1-9].png"):
            image.unlink()


def own_test(extra: str) -> Spoil:
    """day with a train and a test folder, and one more folder."""

    def spoil(root: Path) -> None:
        (root / "day").rename(root / "was")
        shutil.copytree(root / "was", root / "day/train")
        shutil.copytree(root / "was", root / "day/test")
        shutil.copytree(root / "was/bus", root / "day" / extra)
        shutil.rmtree(root / "was")

    return spoil


LAYOUT = "ROOT/DOMAIN/CLASS/images"
LINES = "Correct or remove the line."
MISTAKES = {
    # Where the images are.
    "no-root": Mistake(shutil.rmtree, ("There is no folder", "images", "--data", LAYOUT)),
    "root-is-file": Mistake(replaced_by_file, ("is a file, but a folder is expected",)),
    "root-is-empty": Mistake(
        lambda root: (shutil.rmtree(root), root.mkdir()), ("There are no domains in", "one folder or list per domain")
    ),
    "root-is-a-domain": Mistake(
        lambda root: (
            shutil.copytree(root / "day", root.parent / "x"),
            shutil.rmtree(root),
            moved("x", "images")(root.parent),
        ),
        ("Domain folder", "images/bike holds images but no class folders", LAYOUT),
    ),
    "root-is-too-high": Mistake(
        lambda root: (root.rename(root.parent / "x"), moved("x", "images/x")(root.parent)),
        ("Class folder", "x/day holds a folder, 'bike', where images are expected", LAYOUT),
    ),
    "no-data": Mistake(nothing, ("'embedded' has its own images and takes no --data", "run folder"), ("embedded",)),
    "twice": Mistake(nothing, ("--data and --set root= say the same thing twice",), ("--set", "root=x")),
    "twice-in-full": Mistake(
        nothing, ("--data and --set folder.root= say the same thing twice",), ("--set", "folder.root=x")
    ),
    "order-twice": Mistake(nothing, ("--order and --set order=",), ("--order", "day", "--set", "order=fog")),
    # Domains.
    "order": Mistake(nothing, ("No domain 'fgo'", "Closest: 'fog'"), ("--order", "day,fgo")),
    "order-empty": Mistake(nothing, ("The order of domains must name each domain once. Got none",), ("--order", "")),
    "protocol": Mistake(nothing, ("No recipe 'folder/p1'",), ("folder/p1",)),
    "domain-empty": Mistake(emptied("fog"), ("Domain folder", "fog holds no class folders", LAYOUT)),
    "domain-name": Mistake(moved("fog", "thick, fog"), ("'thick, fog' cannot name a domain", "Rename")),
    "domain-reserved": Mistake(moved("fog", "untrained"), ("'untrained' cannot name a domain", "other than untrained")),
    "domain-unprintable": Mistake(moved("fog", "fo\ng"), (r"'fo\ng' cannot name a domain", "Rename")),
    "domain-is-file": Mistake(
        lambda root: [shutil.rmtree(root / name) for name in ("day", "fog", "rain")] and (root / "day").touch(),
        ("There are no domains in",),
    ),
    "single-images": Mistake(single_images, ("Domain 'fog' has no test images", "at least two images of a class")),
    # Classes.
    "class-empty": Mistake(emptied("fog/bus"), ("Class folder", "fog/bus holds no images", "remove it")),
    "class-without-images": Mistake(
        lambda root: [path.rename(path.with_suffix(".txt")) for path in root.glob("fog/bus/*")],
        ("Class folder", "fog/bus holds no images"),
    ),
    "class-holds-folder": Mistake(
        lambda root: (root / "fog/bus/more").mkdir(), ("fog/bus holds a folder, 'more', where images are expected",)
    ),
    "class-unprintable": Mistake(moved("fog/bus", "fog/b\tus"), (r"'b\tus' in", "cannot name a class", "Rename it.")),
    "one-class": Mistake(one_class, ("are of one class, 'bus'", "At least two")),
    "class-in-test-only": Mistake(
        lambda root: (own_test("x")(root), shutil.rmtree(root / "day/x"), moved("day/test/bus", "day/test/tram")(root)),
        ("The test images of domain 'day' have a class that no training image has: 'tram'", "or remove it"),
    ),
    "val": Mistake(own_test("val"), ("day holds test and train with class folders, but also 'val'",)),
    "test-alone": Mistake(
        lambda root: (own_test("x")(root), shutil.rmtree(root / "day/x"), shutil.rmtree(root / "day/train")),
        ("Domain 'day' has no training images, and the order names it", "--set tested=day"),
        ("--order", "day,fog"),
    ),
    "test-unsorted": Mistake(
        lambda root: (
            own_test("x")(root),
            shutil.rmtree(root / "day/x"),
            shutil.rmtree(root / "day/test"),
            shutil.copytree(root / "fog/bus", root / "day/test"),
        ),
        ("day holds train with class folders, but", "day/test holds none", "or remove it."),
    ),
    # Lists.
    "csv-empty": Mistake(csv(""), ("snow.csv has no column 'path' in its first line", "path,label")),
    "csv-no-rows": Mistake(csv("path,label\n"), ("snow.csv names no images",)),
    "csv-binary": Mistake(csv(bytes(range(256))), ("snow.csv is not a list of images", "UTF-8")),
    "csv-zeros": Mistake(csv(b"path,label\n\0\0,bus\n"), ("snow.csv",)),
    "csv-quotes": Mistake(rows('"day/bus/1.png,bus'), ("snow.csv is not a list of images", "Write it as UTF-8")),
    "csv-after-quotes": Mistake(rows('"day/bus/1.png"x,bus'), ("snow.csv is not a list of images",)),
    "csv-cut": Mistake(rows("day/bus/1.png"), ("snow.csv, line 3: it has 1 cells for 2 columns", LINES)),
    "csv-no-label-column": Mistake(rows(head="path,class"), ("snow.csv has no column 'label'", "path,label,split")),
    "csv-column-twice": Mistake(rows(head="path,label,path"), ("snow.csv names a column twice",)),
    "csv-no-file": Mistake(rows("day/bus/no.png,bus"), ("snow.csv, line 3: there is no file", "day/bus/no.png", LINES)),
    "csv-folder": Mistake(rows("day/bus,bus"), ("snow.csv, line 3:", "day/bus is a folder, not an image")),
    "csv-no-label": Mistake(rows("day/bus/1.png, "), ("snow.csv, line 3: its label is empty",)),
    "csv-no-path": Mistake(rows(",bus"), ("snow.csv, line 3: its path is empty",)),
    "csv-split": Mistake(
        csv("path,label,split\nday/bus/1.png,bus,val\n"), ("snow.csv, line 2: its split is 'val', not train or test",)
    ),
    "csv-no-split": Mistake(csv("path,label,split\nday/bus/1.png,bus,\n"), ("line 2: its split is empty",)),
    "csv-twice": Mistake(rows("./day/bus/0.png,car"), ("line 3: day/bus/0.png is in line 2 already",)),
    "csv-of-one-name": Mistake(
        lambda root: [rows("day/bus/1.png,bus")(root), shutil.copy(root / "snow.csv", root / "snow.CSV")],
        ("is a second list of domain 'snow'", "Rename or remove"),
    ),
    "csv-is-folder": Mistake(lambda root: (root / "snow.csv").mkdir(), ("snow.csv holds no class folders",)),
    # Settings.
    "side": Mistake(nothing, ("'side' parameter of Folder must be a whole number >= 8. Got 4",), ("--set", "side=4")),
    "side-too-large": Mistake(
        nothing,
        ("The 30 images of domain 'day' at side 10000000 take", "Choose a smaller side"),
        ("--set", "side=10000000"),
    ),
    "fit": Mistake(nothing, ("must be one of 'crop', 'stretch', 'pad'. Got 'squash'",), ("--set", "fit=squash")),
    "share": Mistake(nothing, ("must be a number > 0 and < 1. Got 1.0",), ("--set", "test_share=1")),
    "val-too-many": Mistake(nothing, ("has 24 training and 6 test", "too few"), ("--set", "num_val=24")),
    "foreign": Mistake(nothing, ("No field 'resize'",), ("--set", "resize=pad")),
    "model": Mistake(nothing, ("No model 'resnet19'", "Closest: 'resnet18'"), ("--model", "resnet19")),
}


def told(ended: Any, *words: str) -> None:
    """One line, for people, with these words; and the exit code of a mistake."""
    assert ended.code == 2, ended
    assert ended.err.startswith("Error: ") and ended.err.count("\n") == 1, ended.err
    assert ended.err.rstrip().endswith("."), ended.err
    for word in words:
        assert word in ended.err, ended.err


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_and_nothing_is_written(
    name: str, own_images: Path, command: Command, tmp_path: Path
) -> None:
    mistake = MISTAKES[name]
    mistake.spoil(own_images)
    recipe, given = ("folder", mistake.given)
    if given and not given[0].startswith("--"):
        recipe, *given = given
    words = ("run", recipe, "--data", own_images, "--tiny", "--device", "cpu", "--out", tmp_path / "runs")
    for extra in ((), ("--dry-run",)):
        told(command(*words, *given, *extra), *mistake.words)
        assert not (tmp_path / "runs").exists()


def test_no_folder_at_all(command: Command, tmp_path: Path) -> None:
    told(command("run", "folder", "--out", tmp_path), "'folder' needs a folder of images", "--data ROOT")
    assert not list(tmp_path.iterdir())


def test_too_many_broken_images(own_images: Path, command: Command, tmp_path: Path) -> None:
    names = [f"fog/{label}/{number}.png" for label in ("bus", "car") for number in range(6)]
    cut(*names)(own_images)
    words = ("run", "folder", "--data", own_images, "--tiny", "--device", "cpu", "--out", tmp_path / "runs")
    sentence = "12 of 30 images of domain 'fog' cannot be read, more than broken_limit, 10: "
    told(command(*words), sentence, "and 9 more", "--set broken_limit=12")
    assert not (tmp_path / "runs").exists()
    listed = command(*words, "--dry-run")
    told(listed, sentence)
    assert "\nBroken:\n" in listed.out and all(f"  {name}: " in listed.out for name in names)
    assert command(*words, "--set", "broken_limit=12").code == 0


def test_every_image_of_a_part_is_broken(own_images: Path, command: Command, tmp_path: Path) -> None:
    images = sorted(own_images.glob("fog/*/*.png"))
    cut(*(str(path.relative_to(own_images)) for path in images))(own_images)
    words = ("run", "folder", "--data", own_images, "--tiny", "--device", "cpu", "--out", tmp_path / "runs")
    ended = command(*words, "--set", "broken_limit=30")
    told(ended, "Domain 'fog' has 0 training and 0 test images that can be read", "too few", "add images.")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["", "fog", "fog/bus", "fog/bus/0.png", "snow.csv"])
def test_no_permission(name: str, own_images: Path, command: Command, tmp_path: Path) -> None:
    rows("day/bus/1.png,bus")(own_images)
    (own_images / name).chmod(0)
    ended = command("run", "folder", "--data", own_images, "--tiny", "--out", tmp_path / "runs")
    (own_images / name).chmod(0o700)
    told(ended, "Cannot read", "Permission denied", "Check that it exists and may be read.")
    assert not (tmp_path / "runs").exists()


def test_an_image_that_is_gone_when_it_is_read(own_images: Path, command: Command, tmp_path: Path) -> None:
    (own_images / "fog/bus/link.png").symlink_to(tmp_path / "nowhere.png")
    ended = command("run", "folder", "--data", own_images, "--tiny", "--out", tmp_path / "runs")
    told(ended, "Cannot read", "fog/bus/link.png", "No such file or directory")
    assert not (tmp_path / "runs").exists()


def test_names_that_cannot_be_printed_are_told_in_one_line(own_images: Path, command: Command, tmp_path: Path) -> None:
    for name in (b"bro\nken.png", b"caf\xe9.png", b"n\xe9.txt"):
        Path(os.fsdecode(os.fsencode(own_images) + b"/fog/bus/" + name)).write_bytes(b"no image")
    words = ("run", "folder", "--data", own_images, "--tiny", "--device", "cpu", "--out", tmp_path / "runs")
    ended = command(*words, "--dry-run")
    assert ended.code == 0, ended
    for line in ("'bus/bro\\nken.png': no image", "'bus/caf\\udce9.png': no image", "'bus/n\\udce9.txt'"):
        assert f"  fog/{line}" in ended.out, ended.out


def test_broken_images_are_told_of_when_the_run_is_finished_too(
    own_images: Path, command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("run", "folder", "--data", own_images, "--tiny", "--device", "cpu", "--out", tmp_path / "runs")
    assert command(*words).code == 0
    (own_images / "fog/bus/new.png").write_bytes(b"no image")  # the split, and so the run, stays as it is
    assert command(*words).code == 0
    assert sum("left out: bus/new.png" in message for message in caplog.messages) == 1
    assert len(list((tmp_path / "runs/folder").iterdir())) == 1


def test_one_interrupt_ends_decoding(
    own_images: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def interrupted(path: Path, **settings: Any) -> Any:
        calls.append(path)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return picture(path, **settings)

    monkeypatch.setattr(folders, "picture", interrupted)
    ended = command("run", "folder", "--data", own_images, "--tiny", "--device", "cpu", "--out", tmp_path / "runs")
    assert (ended.code, ended.err) == (130, "Stopped. The same command starts again.\n")
    assert len(calls) == 1
    assert not list(tmp_path.glob("metadr/cache/*.safetensors*"))
