"""Anyone's own images: what is found in a folder, how it is split, what a run's key depends on, what is left out."""

import dataclasses
import hashlib
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import metadr
from metadr.benchmarks import benchmark_of, prepare
from metadr.core import Domain
from metadr.data import folder as folders
from metadr.data.folder import Folder, load, look
from metadr.data.folder_scan import Item, split
from metadr.errors import UserError
from metadr.progress import Work
from metadr.store import key_of

CLASSES = ("bike", "bus", "car")
DOMAINS = ("day", "fog", "rain")


def write(path: Path, colour: int | tuple[int, int, int] = 0, size: tuple[int, int] = (16, 16)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def domain_of(root: Path, name: str, **settings: object) -> Domain:
    made = Folder(root=str(root), **settings)  # type: ignore[arg-type]
    return load(made, look(made), name)


def key(root: Path, **fields: object) -> str:
    return key_of(metadr.recipe("folder", "dr", root=str(root), **fields), 0)


def test_class_folders_are_found_and_split_by_the_hash_of_names(own_images: Path) -> None:
    found = look(Folder(root=str(own_images)))
    assert tuple(found.domains) == DOMAINS and found.classes == CLASSES
    for domain in found.domains.values():
        assert not domain.own_test
        assert Counter(item.label for item in domain.train) == dict.fromkeys(CLASSES, 8)
        assert Counter(item.label for item in domain.test) == dict.fromkeys(CLASSES, 2)
    names = {f"bus/{number}.png" for number in range(10)}
    smallest = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())[:2]
    assert {item.name for item in found.domains["fog"].test if item.label == "bus"} == set(smallest)


def test_a_domain_whose_training_images_are_gone_is_tested_on(own_images: Path, tmp_path: Path) -> None:
    whole = domain_of(own_images, "day")
    found = look(Folder(root=str(own_images))).domains["day"]
    for item in found.test:
        moved = own_images / "kept" / "test" / item.name
        moved.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(item.path, moved)
    write(own_images / "kept" / "test" / "tram" / "1.png")  # a class that nothing here is trained on
    shutil.rmtree(own_images / "day")
    for num_val in (0, 1):
        kept = domain_of(own_images, "kept", num_val=num_val)
        assert (kept.train.num_images, kept.val) == (0, None)
    assert look(Folder(root=str(own_images))).classes == (*CLASSES, "tram")
    of_before = kept.test.y != 3
    assert sorted(x.sum().item() for x in kept.test.x[of_before]) == sorted(x.sum().item() for x in whole.test.x)
    fields = {"root": str(own_images), "tiny": True, "memory_per_domain": 4}
    result = metadr.run(metadr.recipe("folder", "er", order="fog,rain", tested="kept", **fields), out=tmp_path / "runs")
    assert {row["images"] for row in result.rows if row["on"] == "kept"} == {7}
    with pytest.raises(UserError, match="'kept' has no training images, and the order names it"):
        metadr.recipe("folder", order="fog,kept", root=str(own_images))


def test_first_images_are_of_all_classes(own_images: Path) -> None:
    domain = domain_of(own_images, "day")
    assert set(domain.train.y[:12].tolist()) == {0, 1, 2}
    assert domain.train.y.tolist() != sorted(domain.train.y.tolist())


@pytest.mark.parametrize(
    ("count", "share", "tested"), [(1, 0.2, 0), (2, 0.2, 1), (5, 0.2, 1), (10, 0.25, 2), (3, 0.9, 2), (100, 0.2, 20)]
)
def test_every_class_keeps_a_share_for_testing(count: int, share: float, tested: int) -> None:
    items = [Item(f"{label}/{number}", Path(label), label) for label in "ab" for number in range(count)]
    train, test = split(items, share)
    assert Counter(item.label for item in test) == ({"a": tested, "b": tested} if tested else {})
    assert sorted([*train, *test]) == sorted(items)
    assert split(reversed(items), share) == (train, test)


def test_pixels_and_labels_are_those_of_the_files(own_images: Path) -> None:
    found = look(Folder(root=str(own_images)))
    domain = domain_of(own_images, "fog", side=16)
    for split_, items in ((domain.train, found.domains["fog"].train), (domain.test, found.domains["fog"].test)):
        assert [CLASSES[label] for label in split_.y.tolist()] == [item.label for item in items]
        for image, item in list(zip(split_.x, items, strict=True))[:3]:
            with Image.open(own_images / "fog" / item.name) as opened:
                width, height = opened.size
                side = min(width, height)
                left, top = (width - side) / 2, (height - side) / 2
                box = (left, top, left + side, top + side)
                expected = opened.resize((16, 16), Image.Resampling.BILINEAR, box=box)
            assert np.array_equal(image.permute(1, 2, 0).numpy(), np.asarray(expected))


def test_the_owners_test_set_is_taken(tmp_path: Path, own_images: Path) -> None:
    for label in CLASSES:
        for number in range(3):
            write(own_images / f"snow/train/{label}/{number}.png", number)
        write(own_images / f"snow/test/{label}/x.png", 99)
    found = look(Folder(root=str(own_images), test_share=0.5)).domains["snow"]
    assert found.own_test
    assert {item.name for item in found.test} == {f"test/{label}/x.png" for label in CLASSES}
    assert len(found.train) == 9
    (own_images / "snow/test").rename(tmp_path / "elsewhere")  # a train folder alone is split as usual
    assert len(look(Folder(root=str(own_images))).domains["snow"].test) == 3


def test_what_lies_beside_the_class_folders_of_a_part_does_not_undo_it(own_images: Path) -> None:
    for part in ("train", "test"):
        for label in CLASSES:
            write(own_images / f"snow/{part}/{label}/{part}.png", 99)
        write(own_images / f"snow/{part}/sheet.png")
        (own_images / f"snow/{part}/notes.txt").write_text("mine")
    found = look(Folder(root=str(own_images))).domains["snow"]
    assert found.own_test and len(found.train) == len(found.test) == len(CLASSES)
    assert set(found.unused) == {f"{part}/{name}" for part in ("train", "test") for name in ("sheet.png", "notes.txt")}


def test_a_class_may_be_called_train(own_images: Path) -> None:
    for domain in DOMAINS:
        (own_images / domain / "bike").rename(own_images / domain / "train")
    found = look(Folder(root=str(own_images)))
    assert found.classes == ("bus", "car", "train")
    assert not found.domains["day"].own_test


def test_lists_name_images_anywhere(own_images: Path, tmp_path: Path) -> None:
    write(tmp_path / "far.png", (1, 2, 3))
    lines = ["﻿label,path,note", 'bus,"images/a, b.png",x', "car,images/c.png,", f"car,{tmp_path}/far.png,"]
    lines += [f"bus,images/{number}.png," for number in range(4)]
    for name in ("a, b", "c", *map(str, range(4))):
        write(own_images / f"images/{name}.png")
    (own_images / "list.csv").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    found = look(Folder(root=str(own_images)))
    assert tuple(found.domains) == ("day", "fog", "list", "rain")  # images/ belongs to the list
    listed = found.domains["list"]
    assert {item.name for item in (*listed.train, *listed.test)} == {
        *("images/a, b.png", "images/c.png", f"{tmp_path}/far.png"),
        *(f"images/{number}.png" for number in range(4)),
    }
    assert Counter(item.label for item in listed.test) == {"bus": 1, "car": 1}
    domain = domain_of(own_images, "list")
    assert set(torch.cat([domain.train.y, domain.test.y]).tolist()) == {1, 2}


def test_a_list_that_leads_to_its_images_through_a_link(own_images: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(own_images)
    rows = [f"{tmp_path}/link/day/{label}/{number}.png,{label}\n" for label in CLASSES for number in range(3)]
    (own_images / "list.csv").write_text("path,label\n" + "".join(rows))
    found = look(Folder(root=str(tmp_path / "link")))
    assert tuple(found.domains) == ("fog", "list", "rain")  # day/ belongs to the list
    assert "day/bus/0.png" in {item.name for item in (*found.domains["list"].train, *found.domains["list"].test)}


def test_an_image_elsewhere_is_in_a_list_once(own_images: Path, tmp_path: Path) -> None:
    write(tmp_path / "far.png")
    rows = [f"{tmp_path}/far.png,bus\n", "../far.png,car\n"]
    (own_images / "list.csv").write_text("path,label\n" + "".join(rows))
    with pytest.raises(UserError, match=r"line 3: .*far\.png is in line 2 already"):
        look(Folder(root=str(own_images)))


def test_a_list_may_have_a_split_of_its_own(own_images: Path) -> None:
    rows = [f"day/bus/{number}.png,bus,{'test' if number < 3 else 'train'}\n" for number in range(10)]
    (own_images / "day.csv").write_text("path,label,split\n" + "".join(rows))
    day = look(Folder(root=str(own_images))).domains["day"]  # the list, not the folder of its name
    assert day.own_test
    assert {item.name for item in day.test} == {f"day/bus/{number}.png" for number in range(3)}
    assert len(day.train) == 7


def test_a_class_may_be_missing_in_a_domain(own_images: Path) -> None:
    shutil.rmtree(own_images / "fog/bus")
    assert look(Folder(root=str(own_images))).classes == CLASSES
    domain = domain_of(own_images, "fog")
    assert set(domain.train.y.tolist()) == {0, 2}
    recipe = metadr.recipe("folder", root=str(own_images))
    assert benchmark_of(recipe).task.num_classes == 3


def test_what_is_added_is_seen_at_once(own_images: Path) -> None:
    settings = Folder(root=str(own_images))
    before = look(settings)
    assert look(settings) is before
    write(own_images / "day/bus/new.png")
    after = look(settings)
    assert len(after.domains["day"].train) + len(after.domains["day"].test) == 31
    shutil.rmtree(own_images / "rain")
    assert tuple(look(settings).domains) == ("day", "fog")


def test_files_that_are_not_used_are_known(own_images: Path) -> None:
    (own_images / "day/bus/notes.txt").write_text("x")
    write(own_images / "day/stray.png")
    (own_images / "day/bus/.hidden.png").touch()
    found = prepare(metadr.recipe("folder", root=str(own_images), order="day,fog"))
    assert found["day"].unused == ("stray.png", "bus/notes.txt") and not found["fog"].unused
    assert found["fog"].sizes == {f"24x{20 + number}": 3 for number in range(10)}
    names = [f"{label}/{number}.png" for label in CLASSES for number in range(10)]
    assert sorted((*found["fog"].train, *found["fog"].test)) == sorted(names) and len(found["fog"].train) == 24


def test_formats_that_pillow_only_recognises_are_not_used(own_images: Path) -> None:
    before = look(Folder(root=str(own_images))).domains["day"]
    names = [f"bus/x{suffix}" for suffix in (".bufr", ".emf", ".eps", ".grib", ".h5", ".mpg", ".ps", ".wmf")]
    for name in names:
        (own_images / "day" / name).write_bytes(b"")
    after = look(Folder(root=str(own_images))).domains["day"]
    assert (after.train, after.test, sorted(after.unused)) == (before.train, before.test, names)
    write(own_images / "day/bus/x.sgi")
    assert len(look(Folder(root=str(own_images))).domains["day"].train) == len(before.train) + 1


def test_the_key_does_not_depend_on_where_and_when(own_images: Path, tmp_path: Path, monkeypatch) -> None:
    before = key(own_images)
    assert before == key(own_images, order="day,fog,rain")
    own_images.rename(tmp_path / "moved")
    assert key(tmp_path / "moved") == before
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("moved")
    assert key(Path("moved")) == key(Path("moved/../moved/")) == key(Path("link")) == before
    assert len(list((tmp_path / "metadr/cache").glob("folder-day-*.safetensors"))) == 2  # one for each place
    for path in (tmp_path / "moved").rglob("*.png"):
        path.touch()
    assert key(tmp_path / "moved") == before
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "another"))
    assert key(tmp_path / "moved") == before
    assert key(tmp_path / "moved", broken_limit=3, fit="crop") == before


def test_the_key_depends_on_pixels_labels_split_and_class_names(own_images: Path) -> None:
    keys = [key(own_images)]
    keys += [
        key(own_images, **fields) for fields in ({"side": 32}, {"fit": "pad"}, {"test_share": 0.4}, {"num_val": 4})
    ]
    write(own_images / "day/bus/1.png", 77, (24, 21))
    keys.append(key(own_images))
    (own_images / "day/bus/2.png").rename(own_images / "day/car/2b.png")
    keys.append(key(own_images))
    for domain in DOMAINS:
        (own_images / domain / "bus").rename(own_images / domain / "coach")
    keys.append(key(own_images))
    write(own_images / "rain/van/1.png")
    write(own_images / "rain/van/2.png")
    keys += [key(own_images), key(own_images, order="day,fog"), key(own_images, order="fog,day")]
    assert len(set(keys)) == len(keys)


def test_an_image_replaced_in_its_place_is_another_key(own_images: Path) -> None:
    """A folder's time does not change then: the files' own do."""
    recipe = metadr.recipe("folder", root=str(own_images))
    before = key_of(recipe, 0)
    path = own_images / "day/car/0.png"
    data = path.read_bytes()
    path.write_bytes((own_images / "day/car/1.png").read_bytes())
    assert key_of(recipe, 0) != before
    path.write_bytes(data)
    assert key_of(recipe, 0) == before


def test_images_are_decoded_once(own_images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Work] = []
    recipe = metadr.recipe("folder", root=str(own_images), side=16)
    prepare(recipe, seen.append)
    assert {work.what for work in seen} == {f"decoding {name}" for name in DOMAINS}
    assert all(work.total == 30 for work in seen) and Work("decoding rain", 30, 30) in seen
    monkeypatch.setattr(folders, "picture", None)
    told = len(seen)
    assert key_of(recipe, 0) and domain_of(own_images, "day", side=16)
    prepare(recipe, seen.append)
    assert len(seen) == told


def test_broken_images_are_named_and_left_out_up_to_a_limit(own_images: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(4):
        path = own_images / f"fog/car/{number}.png"
        path.write_bytes(path.read_bytes()[:300])
    domain = domain_of(own_images, "fog")
    assert len(domain.train.x) + len(domain.test.x) == 26
    (said,) = caplog.messages
    assert said.startswith("4 of 30 images of domain 'fog' cannot be read, left out: car/") and "and 1 more" in said
    for call in (lambda: domain_of(own_images, "fog", broken_limit=3), lambda: key(own_images, broken_limit=3)):
        with pytest.raises(metadr.UserError) as told:
            call()
        text = str(told.value)
        assert text.startswith("4 of 30 images of domain 'fog' cannot be read, more than broken_limit, 3: car/")
        assert text.count(".png (") == 3 and "and 1 more" in text
        assert text.endswith("or allow more with --set broken_limit=4; --dry-run lists all.")
    found = prepare(metadr.recipe("folder", root=str(own_images), broken_limit=0))
    assert sorted(line.partition(":")[0] for line in found["fog"].broken) == [
        f"car/{number}.png" for number in range(4)
    ]
    assert len(found["fog"].train) + len(found["fog"].test) == 26
    assert key(own_images, broken_limit=0, order="day,rain")  # the others are whole


def test_last_training_images_are_held_out(own_images: Path) -> None:
    whole, held = domain_of(own_images, "day"), domain_of(own_images, "day", num_val=5)
    assert (
        held.val is not None and torch.equal(held.val.x, whole.train.x[19:]) and torch.equal(held.test.x, whole.test.x)
    )
    assert torch.equal(held.train.y, whole.train.y[:19])
    with pytest.raises(metadr.UserError, match=r"Domain 'day' has 24 training and 6 test images .* too few"):
        domain_of(own_images, "day", num_val=24)


def test_settings_are_differences_in_a_recipe(own_images: Path) -> None:
    recipe = metadr.recipe("folder", root=own_images, side="32", fit="crop", **{"folder.test_share": 0.3})
    assert recipe.data == (("root", str(own_images)), ("side", 32), ("test_share", 0.3))
    assert benchmark_of(recipe).settings == Folder(str(own_images), 32, "crop", 0.3)
    assert metadr.recipe("digits", resize="lanczos").data == ()
    assert metadr.recipe("digits", resize="pad", num_val=9).data == (("num_val", 9), ("resize", "pad"))
    wrong = dataclasses.replace(recipe, data=(("rot", "x"),))
    with pytest.raises(metadr.UserError, match=r"No field 'rot' in the data of 'folder'. Closest: 'root'"):
        benchmark_of(wrong)
    with pytest.raises(metadr.UserError, match="No field 'resize'"):
        metadr.recipe("embedded", resize="pad")
