"""Virtual KITTI 2's files as domains: layout, split, colours, cache, commands, and what is refused."""

import itertools
import json
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from metadr import cli
from metadr.benchmarks import BENCHMARKS, benchmark_of, make_recipe, steps_of
from metadr.data import obtain, vkitti2, vkitti2_set
from metadr.data.vkitti2 import IGNORED, Reading, labels_of, parts
from metadr.data.vkitti2_set import VKITTI2
from metadr.errors import UserError
from metadr.run import run
from metadr.vkitti2_classes import CLASSES, CONDITIONS, FRAMES

COLOURS = [colour for _, colour in CLASSES]


def file_of(root: Path, kind: str = "classSegmentation", number: int = 2, camera: int = 1) -> Path:
    name = f"classgt_{number:05d}.png" if kind == "classSegmentation" else f"rgb_{number:05d}.jpg"
    return root / "vkitti2" / "Scene01" / "fog" / "frames" / kind / f"Camera_{camera}" / name


def load(name: str = "scene01-fog", **reading):
    return vkitti2.load("vkitti2", Reading(**reading), name)


# What is read.


def test_names_and_numbers_are_the_published_ones():
    assert len(CLASSES) == len(set(COLOURS)) == 15 and CLASSES[-1] == ("Undefined", (0, 0, 0))
    assert sum(FRAMES.values()) == 2126 and len(CONDITIONS) == 6
    benchmark = BENCHMARKS["vkitti2"]
    assert benchmark.task.num_classes == len(benchmark.classes) == 14
    assert len(benchmark.domains) == 30 and len(benchmark.protocols) == 33
    assert make_recipe("vkitti2/p2/3").order == ("scene20-clone", "scene01-rain", "scene18-fog")


@pytest.mark.parametrize("number", [*FRAMES.values(), 4, 5, 6, 10, 20])
def test_a_sequence_is_cut_at_70_and_85_percent(number):
    train, val, test = (range(number)[part] for part in parts(number))
    assert [*train, *val, *test] == list(range(number))
    assert 0 <= number * 0.7 - len(train) < 1 and len(train) and len(val) and len(test)
    assert abs(len(val) - number * 0.15) < 1 and abs(len(test) - number * 0.15) < 1.01


def test_pixels_masks_and_order_are_those_of_the_files(root):
    domain = load()
    splits = (domain.train, domain.val, domain.test)
    assert [split.num_images for split in splits] == [8, 2, 2]
    x, y = (torch.cat(tensors) for tensors in zip(*splits, strict=True))
    assert x.dtype == y.dtype == torch.uint8 and x.shape == (12, 3, 32, 64) and y.shape == (12, 32, 64)
    for row, (number, camera) in enumerate(itertools.product(range(6), (0, 1))):  # by time, then camera
        image = np.asarray(Image.open(file_of(root, "rgb", number, camera)))
        assert np.array_equal(x[row].permute(1, 2, 0).numpy(), image)
        mask = np.asarray(Image.open(file_of(root, "classSegmentation", number, camera)).convert("RGB"))
        plain = [[COLOURS.index(tuple(int(value) for value in pixel)) for pixel in line] for line in mask]
        assert np.array_equal(y[row].numpy(), np.where(np.array(plain) == 14, IGNORED, plain))
    assert set(y.unique().tolist()) == {1, 5, 12, IGNORED}


@pytest.mark.parametrize(("camera", "rows"), [("0", slice(0, None, 2)), ("1", slice(1, None, 2))])
def test_one_camera_is_half_of_both(camera, rows, root):
    both, one = load(), load(cameras=camera)
    for half, whole in zip(one[1:], both[1:], strict=True):
        assert torch.equal(half.x, whole.x[rows]) and torch.equal(half.y, whole.y[rows])
    assert vkitti2.num_train("vkitti2", Reading(cameras=camera), "scene01-fog") == 4
    assert vkitti2.num_train("vkitti2", Reading(), "scene01-fog") == 8


def test_frames_are_resized_on_reading_masks_by_nearest(root):
    domain = load(size="16x10")
    path = file_of(root, "rgb", 0, 0)
    image = Image.open(path).resize((16, 10), Image.Resampling.BILINEAR)
    assert np.array_equal(domain.train.x[0].permute(1, 2, 0).numpy(), np.asarray(image))
    mask = Image.open(file_of(root, "classSegmentation", 0, 0)).resize((16, 10), Image.Resampling.NEAREST)
    assert np.array_equal(domain.train.y[0].numpy(), labels_of(np.asarray(mask.convert("RGB")), path))
    assert load(size="64x32").fingerprint() == load().fingerprint()


def test_images_and_masks_may_lie_apart_and_deeper(root):
    whole = load()
    place = root / "vkitti2"
    for kind in ("rgb", "classSegmentation"):
        for folder in sorted(place.glob(f"Scene*/*/frames/{kind}")):
            there = root / "apart" / f"vkitti_2.0.3_{kind}" / folder.relative_to(place)
            there.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(there)
    shutil.rmtree(place)
    (root / "apart").rename(place)
    assert load().fingerprint() == whole.fingerprint()


def test_it_is_decoded_once_and_again_where_a_file_changes(root, monkeypatch):
    first = vkitti2.content_of("vkitti2", Reading(), "scene01-fog")
    decode = vkitti2._decode
    monkeypatch.setattr(vkitti2, "_decode", lambda *arguments: pytest.fail("decoded again"))
    load()
    monkeypatch.setattr(vkitti2, "_decode", decode)
    path = file_of(root)
    pixels = np.asarray(Image.open(path)).copy()
    pixels[0, 0] = dict(CLASSES)["Tree"]
    path.unlink()
    Image.fromarray(pixels).save(path)
    assert vkitti2.content_of("vkitti2", Reading(), "scene01-fog") != first
    assert int(load().train.y[5, 0, 0]) == 2


def test_the_table_of_colours_names_every_class():
    colours = np.array(COLOURS, np.uint8)[None]
    assert labels_of(colours, Path("x")).tolist() == [[*range(14), IGNORED]]


# What is refused.


def remove_mask(root: Path) -> None:
    file_of(root).unlink()


def remove_image(root: Path) -> None:
    file_of(root, "rgb").unlink()


def shrink_mask(root: Path) -> None:
    path = file_of(root)
    Image.open(path).resize((32, 16), Image.Resampling.NEAREST).save(path)


def shrink_frame(root: Path) -> None:
    for kind in ("rgb", "classSegmentation"):
        path = file_of(root, kind)
        Image.open(path).resize((32, 16), Image.Resampling.NEAREST).save(path)


def stain_mask(root: Path) -> None:
    path = file_of(root)
    pixels = np.asarray(Image.open(path)).copy()
    pixels[7, 9] = (1, 2, 3)
    Image.fromarray(pixels).save(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def no_frames(root: Path) -> None:
    for path in file_of(root).parent.iterdir():
        path.unlink()


def no_folder(root: Path) -> None:
    shutil.rmtree(file_of(root).parent)


def fewer(root: Path, cameras: tuple[int, ...] = (0, 1), number: int = 5) -> None:
    for kind, camera in itertools.product(("rgb", "classSegmentation"), cameras):
        file_of(root, kind, number, camera).unlink()


def renumber(root: Path, cameras: tuple[int, ...] = (1,)) -> None:
    for kind, camera in itertools.product(("rgb", "classSegmentation"), cameras):
        file_of(root, kind, 3, camera).rename(file_of(root, kind, 99, camera))


WRONG = {
    "missing mask": (
        remove_mask,
        "the mask of frame 2 is missing, of which {rgb} is the image. Run 'metadr data fetch vkitti2' or",
    ),
    "missing image": (remove_image, "the image of frame 2 is missing, of which {mask} is the mask"),
    "sizes of image and mask": (shrink_mask, "{rgb} is 64x32 and its mask {mask} 32x16; they must have one size"),
    "sizes of frames": (shrink_frame, "{rgb} is 32x16, and the frames before it are 64x32; a domain has one size"),
    "unknown colour": (stain_mask, "{mask}: colour 1 2 3 (R G B), first at row 7, column 9, is of no class"),
    "truncated PNG": (lambda root: cut(file_of(root)), "{mask} is damaged: it is not a whole PNG"),
    "truncated JPEG": (lambda root: cut(file_of(root, "rgb")), "{rgb} is damaged: it is not a whole JPEG"),
    "no frames": (no_frames, "Scene01/fog: no frames in {folder}. Run 'metadr data fetch vkitti2'"),
    "nothing of it": (
        lambda root: shutil.rmtree(file_of(root).parents[3]),
        "no folder Scene01/fog/frames/rgb/Camera_0 in {root}. Run 'metadr data fetch vkitti2' or",
    ),
    "no folder": (no_folder, "no folder Scene01/fog/frames/classSegmentation/Camera_1 in {root}"),
    "numbers differ": (renumber, "frame 3 is not there of every camera in {root}, and frames of one moment belong"),
    "cameras differ": (
        lambda root: fewer(root, (1,)),
        "the cameras differ in their number of frames (6 of camera 0, 5",
    ),
    "a hole": (
        lambda root: renumber(root, cameras=(0, 1)),
        "scene01-fog: frame 3 is missing in {root}, between others that are there. Run 'metadr data fetch vkitti2'",
    ),
    "too few and a hole": (
        lambda root: fewer(root, number=2),
        "scene01-fog: expected 6 frames, found 5 in {root}, where frame 2 is missing. Run",
    ),
    "too few": (fewer, "scene01-fog: expected 6 frames, found 5 in {root}"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_in_a_sentence(case, root, tmp_path, order):
    break_it, sentence = WRONG[case]
    break_it(root)
    places = {"rgb": file_of(root, "rgb"), "mask": file_of(root), "folder": file_of(root).parent}
    recipe = make_recipe("vkitti2", tiny=True, order=order[:2])
    with pytest.raises(UserError) as told:
        run(recipe, out=tmp_path / "runs", device="cpu")
    assert sentence.format(**places, root=root / "vkitti2") in str(told.value)
    assert not (tmp_path / "runs").exists()


def test_a_sequence_too_short_to_split_is_refused(toys, tmp_path, monkeypatch):
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    place = toys.write_streets(tmp_path / "short", "scene01-fog", frames=3)
    (place / "vkitti2.json").write_text(json.dumps({"what": "rectangles"}))
    with pytest.raises(UserError, match=r"3 frames in .*; at least 4 are needed"):
        vkitti2.load("vkitti2-rendered", Reading(root=str(place)), "scene01-fog")


@pytest.mark.parametrize("size", ["64", "0x32", "64x", "axb"])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(UserError, match=r"must be WIDTHxHEIGHT, such as 416x128"):
        make_recipe("vkitti2", size=size)


# The commands.


def command(monkeypatch, capsys, *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["metadr", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    captured = capsys.readouterr()
    return int(end.value.code or 0), " ".join((captured.out + captured.err).split())


def test_status_import_and_verify(root, made, tmp_path, monkeypatch, capsys):
    assert "partial" in command(monkeypatch, capsys, "data", "status", "vkitti2")[1]
    shutil.rmtree(root / "vkitti2")
    assert "missing" in command(monkeypatch, capsys, "data", "status", "vkitti2")[1]
    code, text = command(monkeypatch, capsys, "data", "import", "vkitti2", str(made))
    assert code == 0 and "partial" in text and (root / "vkitti2/Scene01/fog/frames/rgb/Camera_1/rgb_00005.jpg").exists()
    assert command(monkeypatch, capsys, "data", "verify", "vkitti2")[0] == 0
    stain_mask(root)
    code, text = command(monkeypatch, capsys, "data", "verify", "vkitti2")
    assert code == 1 and "broken" in text
    (problem,) = VKITTI2.verify(root).status.problems
    assert f"{file_of(root)}: colour 1 2 3 (R G B)" in problem


def test_archives_of_images_and_of_masks_become_one_copy(root, made, tmp_path):
    folder = tmp_path / "archives"
    folder.mkdir()
    for kind in ("rgb", "classSegmentation"):
        with tarfile.open(folder / f"vkitti_2.0.3_{kind}.tar", "w") as archive:
            for path in sorted(made.glob(f"Scene*/*/frames/{kind}")):
                archive.add(path, path.relative_to(made))
    before = load().fingerprint()
    shutil.rmtree(root / "vkitti2")
    assert obtain.bring("vkitti2", folder).state == "partial"
    assert load().fingerprint() == before
    only = tmp_path / "only"
    only.mkdir()
    (folder / "vkitti_2.0.3_rgb.tar").rename(only / "vkitti_2.0.3_rgb.tar")
    with pytest.raises(
        UserError, match=r"no folder .*classSegmentation.*The vkitti2 that is in .* is sound, and was kept"
    ):
        obtain.bring("vkitti2", only)
    assert load().fingerprint() == before


def test_an_import_adds_to_the_scenes_that_are_there(root, made, toys, tmp_path, pixels_of):
    before = pixels_of(root / "vkitti2")
    (root / "vkitti2" / "notes.txt").write_text("mine")
    one = toys.write_streets(tmp_path / "one", "scene02-clone")
    two = toys.write_streets(tmp_path / "two", "scene20-rain")
    assert obtain.bring("vkitti2", one).state == "partial"
    assert pixels_of(root / "vkitti2") == before | {"notes.txt": b"mine"}
    assert obtain.bring("vkitti2", two).found == (4 * 8, 4 * 2)
    assert pixels_of(root / "vkitti2") == before | {"notes.txt": b"mine"} | pixels_of(two)
    shutil.rmtree(root / "vkitti2" / "Scene20" / "rain" / "frames" / "classSegmentation")
    file_of(root, number=0).unlink()
    assert obtain.bring("vkitti2", two).state == "broken", "it mends one of two"
    assert obtain.bring("vkitti2", made).state == "partial"
    assert pixels_of(root / "vkitti2") == before | {"notes.txt": b"mine"} | pixels_of(two)


def test_a_folder_with_fewer_frames_does_not_take_the_place_of_one_with_more(root, toys, tmp_path, pixels_of):
    file_of(root).unlink()
    before = pixels_of(root / "vkitti2")
    with pytest.raises(UserError, match=r"/fog/.* holds frame 3, which the vkitti2 to import lacks, and was kept"):
        obtain.bring("vkitti2", toys.write_streets(tmp_path / "short", "scene01-fog", frames=3))
    assert pixels_of(root / "vkitti2") == before


def test_one_archive_after_the_other_becomes_one_copy(root, made, tmp_path, monkeypatch, capsys, pixels_of):
    before = load().fingerprint()
    whole = pixels_of(root / "vkitti2")
    shutil.rmtree(root / "vkitti2")
    for kind in ("rgb", "classSegmentation"):
        with tarfile.open(tmp_path / f"vkitti_2.0.3_{kind}.tar", "w") as archive:
            for path in sorted(made.glob(f"Scene*/*/frames/{kind}")):
                archive.add(path, path.relative_to(made))
    for first, second in (("rgb", "classSegmentation"), ("classSegmentation", "rgb")):
        code, text = command(
            monkeypatch, capsys, "data", "import", "vkitti2", str(tmp_path / f"vkitti_2.0.3_{first}.tar")
        )
        assert code == 1 and "broken" in text
        (problem, *_) = VKITTI2.status(root).problems
        assert f"no folder Scene01/fog/frames/{second}/Camera_0 in {root / 'vkitti2'}. Run" in problem
        assert f"'metadr data import vkitti2 vkitti_2.0.3_{second}.tar'" in problem and "what is there stays" in problem
        code, text = command(
            monkeypatch, capsys, "data", "import", "vkitti2", str(tmp_path / f"vkitti_2.0.3_{second}.tar")
        )
        assert code == 0 and "partial" in text and pixels_of(root / "vkitti2") == whole
        assert load().fingerprint() == before
        shutil.rmtree(root / "vkitti2")


def test_a_scene_that_is_sound_stays_so_when_the_archives_are_imported_one_by_one(root, made, tmp_path, pixels_of):
    whole = pixels_of(root / "vkitti2")
    shutil.rmtree(root / "vkitti2")
    for kind in ("rgb", "classSegmentation"):
        for path in sorted(made.glob(f"Scene*/*/frames/{kind}")):
            shutil.copytree(path, tmp_path / kind / path.relative_to(made))
    shutil.copytree(made / "Scene02", tmp_path / "one" / "Scene02")
    assert obtain.bring("vkitti2", tmp_path / "one").state == "partial"
    assert obtain.bring("vkitti2", tmp_path / "rgb").state == "broken"
    assert load("scene02-clone").train.num_images == 8
    ended = obtain.bring("vkitti2", tmp_path / "classSegmentation")
    assert ended.state == "partial" and pixels_of(root / "vkitti2") == whole
    assert ended.problems == (
        "Not taken, because what was there is sound and what is new is not whole: "
        "Scene02/clone/frames/classSegmentation/Camera_0 and 1 more.",
    )


def test_a_download_is_two_archives_and_leaves_no_rest(root, made, monkeypatch):
    shutil.rmtree(root / "vkitti2")

    def fetch(files, folder, *, hint, watch=None):
        assert [file.name for file in files] == ["vkitti_2.0.3_rgb.tar", "vkitti_2.0.3_classSegmentation.tar"]
        assert all(file.checksum.startswith("md5:") and file.size > 1e9 for file in files)
        folder.mkdir(parents=True)
        for file in files:
            with tarfile.open(folder / file.name, "w") as archive:
                archive.add(made, "made")
        return [folder / file.name for file in files]

    monkeypatch.setattr(obtain, "fetch", fetch)
    assert obtain.download("vkitti2").found == (3 * 8, 3 * 2)
    assert not list((root / "downloads").iterdir())


def test_expected_images_are_those_of_all_scenes_and_conditions():
    train = sum(2 * 6 * (frames * 70 // 100) for frames in FRAMES.values())
    test = sum(2 * 6 * (frames - frames * 85 // 100) for frames in FRAMES.values())
    assert (train, test) == vkitti2_set.EXPECTED


# Runs.


@pytest.mark.parametrize("method", ["naive", "dr", "meta-dr", "er+meta-dr", "oracle-all"])
def test_every_method_runs_on_it(method, root, tmp_path, order):
    recipe = make_recipe("vkitti2", method, tiny=True, order=order)
    result = run(recipe, out=tmp_path / "runs", device="cpu")
    assert len(result.rows) == 12
    for row in result.rows:
        assert row["metric"] == "miou" and row["images"] == 2 and 0 <= row["value"] <= 100
        confusion = np.array(row["confusion"])
        assert confusion.shape == (14, 14)
        assert confusion.sum() == 2 * (64 * 32 - 12)  # all but the Undefined corner of each
        hits, true, said = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
        ious = {c: 100 * hits[c] / (true[c] + said[c] - hits[c]) for c in range(14) if true[c]}
        assert set(ious) == {1, 5, 12} and row["value"] == pytest.approx(np.mean(list(ious.values())))
        assert [row["iou"][c] for c in ious] == pytest.approx(list(ious.values()))
        assert [value for c, value in enumerate(row["iou"]) if c not in ious] == [None] * 11
        assert row["micro"] == pytest.approx(100 * hits.sum() / (true.sum() + said.sum() - hits.sum()))


def test_the_command_line_runs_on_a_folder_of_scenes(streets, tmp_path, monkeypatch, capsys):
    words = ("run", "vkitti2-rendered/p1/1", "--tiny", "--data", str(streets / "vkitti2-rendered"), "--device", "cpu")
    code, text = command(monkeypatch, capsys, *words, "--dry-run", "--out", str(tmp_path))
    assert code == 0 and "2 steps of" in text and "Duplicates, pixel for pixel: none." in text
    code, text = command(monkeypatch, capsys, *words, "--set", "size=48x24", "--out", str(tmp_path))
    assert code == 0 and "vkitti2-rendered: scene02-clone → scene01-fog → scene06-overcast" in text
    (path,) = (tmp_path / "vkitti2-rendered").iterdir()
    (row, *_) = json.loads((path / "rows.json").read_text())
    assert sum(map(sum, row["confusion"])) <= 2 * 48 * 24 and 0 <= row["suite"] <= 100
    sheet = tmp_path / "sheet.png"
    shown = ("predictions", str(path), "--data", words[4], "--set", "size=48x24", "-o", str(sheet), "--device", "cpu")
    code, text = command(monkeypatch, capsys, *shown)
    assert code == 0 and np.asarray(Image.open(sheet)).shape[1] > 3 * 48


def test_epochs_are_counted_from_the_frames_that_are_there(root, order):
    recipe = make_recipe(
        "vkitti2", order=order, epochs=3, later_epochs=2, batch_size=3, model="tiny_unet", weights="none"
    )
    assert steps_of(recipe) == (3 * 2, 2 * 2, 2 * 2)  # eight images: two whole batches
    everything = make_recipe("vkitti2", "oracle-all", order=order, epochs=3, later_epochs=2, batch_size=3)
    assert steps_of(everything) == (3 * 8, 2 * 8, 2 * 8)
    assert benchmark_of(recipe).num_train("scene01-fog") == 8
