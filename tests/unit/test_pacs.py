"""The reader of PACS: its lists with their quirks, its split where there are none, its pixels against Pillow."""

import logging
import shutil
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from metadr.benchmarks import benchmark_of, make_recipe
from metadr.cli import app
from metadr.data import obtain, pacs
from metadr.data.catalog import get_set
from metadr.data.pacs import Reading, content_of, found_in, load
from metadr.data.pacs_scan import CLASSES, DOMAINS, LISTED, Scanned, scan
from metadr.errors import UserError
from metadr.progress import Work
from metadr.recipes import get_table
from metadr.report.figure5 import styles_figure
from metadr.report.frames import split_note
from metadr.report.records import Record
from metadr.report.write import write_picture
from metadr.run import run

PER_CLASS = 3


def picture(name: str, size: tuple[int, int] = (227, 227)) -> Image.Image:
    rng = np.random.default_rng(list(name.encode()))
    small = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
    return small.resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set in the official layout: of each class, the last image is for crossval."""
    root = tmp_path_factory.mktemp("published")
    for domain in DOMAINS:
        lists: dict[str, list[str]] = {"train": [], "crossval": [], "test": []}
        for label, name in enumerate(CLASSES, start=1):
            folder = root / "kfold" / domain / name
            folder.mkdir(parents=True)
            for number in range(PER_CLASS):
                file = f"pic_{number}.{'png' if domain == 'sketch' else 'jpg'}"
                picture(f"{domain}/{name}/{file}").save(folder / file)
                line = f"{domain}/{name}/{file} {label}\n"
                lists["test"].append(line)
                lists["train" if number + 1 < PER_CLASS else "crossval"].append(line)
        for part, lines in lists.items():
            (root / f"{domain}_{part}_kfold.txt").write_text("".join(lines))
    return root


@pytest.fixture
def root(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data root with a copy of it, under the test's own feet."""
    shutil.copytree(published, tmp_path / "root" / "pacs")
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "root"))
    pacs._told.clear()
    return tmp_path / "root"


def scanned(root: Path, domain: str) -> Scanned:
    return scan(pacs.locate(root / "pacs"), domain)


def rewrite(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("domain", DOMAINS)
def test_pixels_and_labels_by_the_lists(domain: str, root: Path) -> None:
    read, names = load(domain), found_in(domain)
    for split, files, count in ((read.train, names.train, 14), (read.test, names.test, 7)):
        assert split.x.shape == (count, 3, 224, 224) and split.x.dtype == torch.uint8
        for image, label, name in zip(split.x, split.y.tolist(), files, strict=True):
            assert CLASSES[label] == name.split("/")[0]
            with Image.open(root / "pacs" / "kfold" / domain / name) as opened:
                wanted = np.asarray(opened.convert("RGB").resize((224, 224), Image.Resampling.BILINEAR))
            assert np.array_equal(image.permute(1, 2, 0).numpy(), wanted)
    assert {Path(name).stem for name in names.test} == {"pic_2"}
    assert names.sizes == {"227x227": 21}


def test_the_first_and_the_last_images_are_of_several_classes(root: Path) -> None:
    read = load("photo", Reading(num_val=7))
    assert read.val is not None and read.val.num_images == 7 and read.train.num_images == 7
    assert len(set(read.val.y.tolist())) > 2 and len(set(read.train.y.tolist())) > 2
    whole = load("photo").train
    assert torch.equal(torch.cat([read.train.x, read.val.x]), whole.x)


def test_what_is_tested_on_is_a_reading(root: Path) -> None:
    usual = load("photo")
    whole = load("photo", Reading(test_on="whole"))
    assert whole.test.num_images == 21 and torch.equal(whole.train.x, usual.train.x)
    held = load("photo", Reading(num_val=4, test_on="val"))
    assert torch.equal(held.test.x, usual.train.x[-4:]) and held.train.num_images == 10
    assert len(found_in("photo", Reading(num_val=4, test_on="val")).test) == 4
    with pytest.raises(UserError, match="test_on=val tests on held-out training images, but num_val is 0"):
        Reading(test_on="val")
    with pytest.raises(UserError, match=r"photo has 14 training images. Got num_val 14: hold out fewer"):
        load("photo", Reading(num_val=14))


@pytest.mark.parametrize("resize", ["bicubic", "lanczos", "crop"])
def test_how_images_become_smaller_is_a_reading(resize: str, root: Path) -> None:
    read, name = load("sketch", Reading(resize=resize)), found_in("sketch").train[0]
    with Image.open(root / "pacs" / "kfold" / "sketch" / name) as opened:
        if resize == "crop":
            wanted = np.asarray(opened)[1:225, 1:225]
        else:
            wanted = np.asarray(opened.resize((224, 224), getattr(Image.Resampling, resize.upper())))
    assert np.array_equal(read.train.x[0].permute(1, 2, 0).numpy(), wanted)
    assert content_of("sketch", Reading(resize=resize)) != content_of("sketch")


# The lists.


def test_the_quirks_of_the_published_lists(root: Path) -> None:
    """A line that is there twice counts once, an image in no list is not used, and one label 0 is a dog's."""
    for part in ("crossval", "test"):
        rewrite(root / "pacs" / f"art_painting_{part}_kfold.txt", "dog/pic_2.jpg", "dog/pic_225.jpg")
    folder = root / "pacs" / "kfold" / "art_painting" / "dog"
    (folder / "pic_2.jpg").rename(folder / "pic_225.jpg")
    crossval = root / "pacs" / "art_painting_crossval_kfold.txt"
    rewrite(crossval, "dog/pic_225.jpg 1", "dog/pic_225.jpg 0")
    crossval.write_text(crossval.read_text() + "art_painting/house/pic_2.jpg 6\n")
    rewrite(root / "pacs" / "art_painting_train_kfold.txt", "art_painting/dog/pic_0.jpg 1\n", "")
    read = load("art_painting")
    assert (read.train.num_images, read.test.num_images) == (13, 7)
    assert sorted(read.test.y.tolist()) == list(range(7))
    found = found_in("art_painting")
    assert (found.unlisted, found.unused) == (("dog/pic_0.jpg",), ())
    whole = found_in("art_painting", Reading(test_on="whole"))
    assert not whole.unlisted and "dog/pic_0.jpg" in whole.test


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("photo/dog/pic_1.jpg 1", "photo/dog/pic_1.jpg 2", "line 2 gives label 2 to a dog, which is 1"),
        ("photo/dog/pic_1.jpg 1", "photo/dog/pic_1.jpg 0", "line 2 gives label 0 to a dog, which is 1"),
        ("photo/dog/pic_1.jpg 1", "photo/dog/pic_1.jpg", "line 2 is not 'photo/CLASS/NAME LABEL'"),
        ("photo/dog/pic_1.jpg 1", "../../dog/pic_1.jpg 1", "line 2 is not 'photo/CLASS/NAME LABEL'"),
        ("photo/dog/pic_1.jpg 1", "sketch/dog/pic_1.jpg 1", "line 2 is not 'photo/CLASS/NAME LABEL'"),
        (
            "photo/dog/pic_1.jpg 1",
            "photo/dog/pic_9.jpg 1",
            "1 of the images that .* not there, such as photo/dog/pic_9",
        ),
        ("photo/dog/pic_1.jpg 1", "photo/dog/pic_2.jpg 1", "it names dog/pic_2.jpg, which photo_train_kfold.txt names"),
    ],
)
def test_lists_that_are_wrong(old: str, new: str, told: str, root: Path) -> None:
    rewrite(root / "pacs" / "photo_train_kfold.txt", old, new)
    with pytest.raises(UserError, match=told):
        load("photo")
    standing = get_set("pacs").status(root)
    assert standing.state == "broken" and len(standing.problems) == 1


def test_one_list_without_the_other(root: Path) -> None:
    (root / "pacs" / "photo_crossval_kfold.txt").unlink()
    with pytest.raises(UserError, match=r"there is .*photo_train_kfold.txt, but no photo_crossval_kfold.txt. Put both"):
        load("photo")


def without_lists(root: Path) -> None:
    for path in (root / "pacs").glob("*.txt"):
        path.unlink()


def test_a_copy_without_lists_is_split_by_names_and_says_so(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    listed = benchmark_of(make_recipe("pacs")).fingerprint_of(("photo",))
    without_lists(root)
    with caplog.at_level(logging.WARNING):
        read = load("photo")
        load("photo")
    assert [record.getMessage() for record in caplog.records] == [
        "pacs/photo: no *_kfold.txt lists: split here by names, 10% of each class for testing. "
        "Scores are not those of the official split."
    ]
    assert Counter(read.test.y.tolist()) == dict.fromkeys(range(7), 1), "of three images, one"
    names = found_in("photo")
    assert not set(names.train) & set(names.test) and len(names.train) == 14
    assert get_set("pacs").status(root).origin.startswith("no *_kfold.txt lists")
    fingerprint = benchmark_of(make_recipe("pacs")).fingerprint_of(("photo",))
    assert fingerprint.endswith("split here") and fingerprint != listed
    # It depends on nothing but the names.
    (root / "pacs" / "kfold").rename(root / "pacs" / "elsewhere")
    assert found_in("photo") == names


def test_a_split_made_here_is_about_as_large_as_the_official_one() -> None:
    for domain in DOMAINS:
        made = Scanned(domain, (), (), (), False, ()).expected
        assert sum(made) == sum(LISTED[domain]) + (domain == "art_painting"), "one painting is in no list"
        assert abs(made.test - LISTED[domain].test) <= 8


# The set.


def test_only_the_domains_of_an_order_need_be_there(root: Path) -> None:
    shutil.rmtree(root / "pacs" / "kfold" / "photo")
    assert load("sketch").train.num_images == 14
    with pytest.raises(UserError, match=r"pacs: no photo in .* Run 'metadr data fetch pacs'"):
        load("photo")
    standing = get_set("pacs").status(root)
    assert standing.state == "partial" and standing.problems == ("Without photo.",)


def test_where_an_import_stands_is_told_in_sentences(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "root"))
    for domain in ("sketch", "photo"):
        shutil.copytree(published / "kfold" / domain, tmp_path / "some" / domain)
    told = CliRunner().invoke(app, ["data", "import", "pacs", str(tmp_path / "some")])
    assert told.exit_code == 0
    words = " ".join(told.output.replace("│", " ").split())
    assert "of each class for testing. Without cartoon, art_painting." in words


def test_a_domain_without_a_class_or_with_other_files(root: Path) -> None:
    folder = root / "pacs" / "kfold" / "photo"
    (folder / "dog" / "notes.txt").write_text("mine")
    (folder / "more").mkdir()
    assert found_in("photo").unused == ("more", "dog/notes.txt")
    shutil.rmtree(folder / "horse")
    with pytest.raises(UserError, match="there is no folder horse in"):
        load("photo")


def test_decoded_once_and_again_where_a_file_was_replaced(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Work] = []
    first = load("photo", watch=seen.append)
    assert seen[-1] == Work("decoding photo", 21, 21)
    before = content_of("photo")
    with monkeypatch.context() as patched:
        patched.setattr(pacs, "square", None)
        assert torch.equal(load("photo", checked=True).train.x, first.train.x)
    path = root / "pacs" / "kfold" / "photo" / "dog" / "pic_0.jpg"
    picture("another").save(path)
    assert not torch.equal(load("photo").train.x, first.train.x)
    pacs._content.cache_clear()  # as in another process
    assert content_of("photo") != before


def test_an_import_of_one_domain_with_a_broken_image_says_so(published: Path, tmp_path: Path) -> None:
    """That the others are missing is no reason to keep quiet."""
    source = tmp_path / "source"
    shutil.copytree(published / "kfold" / "photo", source / "kfold" / "photo")
    for lists in published.glob("photo_*_kfold.txt"):
        shutil.copy(lists, source)
    image = next((source / "kfold" / "photo" / "dog").iterdir())
    image.write_bytes(image.read_bytes()[:300])
    now = obtain.bring("pacs", source, root=tmp_path / "data")
    assert now.state == "broken"
    assert image.name in now.problems[0]


def test_a_broken_image_is_an_error(root: Path) -> None:
    path = root / "pacs" / "kfold" / "photo" / "dog" / "pic_0.jpg"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(
        UserError,
        match=r"pacs: photo/dog/pic_0.jpg cannot be read \(.*\)\. Replace it by a sound copy, or the whole set\. Run",
    ):
        load("photo")
    assert not list((root / "cache").glob("*photo*.safetensors")), "nothing half-read is kept"


def test_an_import_does_not_take_the_place_of_what_it_lacks(
    published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "root"))
    obtain.bring("pacs", published)
    before = sorted((tmp_path / "root" / "pacs").rglob("*"))
    shutil.copytree(tmp_path / "root" / "pacs" / "sketch", tmp_path / "one" / "sketch")
    with pytest.raises(UserError, match=r"holds .*photo.*, which the pacs to import lacks, and was kept. Move it away"):
        obtain.bring("pacs", tmp_path / "one")
    assert sorted((tmp_path / "root" / "pacs").rglob("*")) == before


def test_import_decodes_for_the_first_run(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "root"))
    archive = tmp_path / "pacs.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(published.rglob("*.*")):
            packed.write(path, Path("deep") / path.relative_to(published))
    standing = obtain.bring("pacs", archive)
    assert standing.found == (4 * 14, 4 * 7) and standing.state == "partial"  # a hundredth of the published images
    assert {path.name for path in (tmp_path / "root" / "pacs").iterdir()} == {
        *DOMAINS,
        *(f"{domain}_{part}_kfold.txt" for domain in DOMAINS for part in ("train", "crossval", "test")),
    }
    monkeypatch.setattr(pacs, "square", None)
    assert load("photo").train.num_images == 14


def test_verify_counts_classes_and_reads_every_image(root: Path) -> None:
    found = get_set("pacs").verify(root)
    assert not found.sound and found.content
    assert len(found.status.problems) == 4 * (7 + 2)  # classes, and the lists that are cut short
    assert any(
        "photo_train_kfold.txt should name 1,499 images, and names 14." in each for each in found.status.problems
    )
    assert "photo: expected 189 images of class dog, found 3." in found.status.problems[-9]
    path = root / "pacs" / "kfold" / "sketch" / "dog" / "pic_0.png"
    path.write_bytes(path.read_bytes()[:-60])
    assert "sketch/dog/pic_0.png cannot be read" in get_set("pacs").verify(root).status.problems[-1]


def test_a_run_on_it(root: Path, toys) -> None:
    result = run(make_recipe("pacs", "er+meta-dr", tiny=True, order="sketch,photo"), out=root / "runs", device="cpu")
    assert len(result.rows) == 3 * 2 and {row["images"] for row in result.rows} == {7}


def test_a_tiny_search_for_its_schedule(root: Path, toys) -> None:
    recipes = get_table("pacs-schedule", tiny=True).recipes
    rows = [run(recipe, out=root / "runs", device="cpu").rows for recipe in recipes]
    assert {(row["on"], row["images"]) for each in rows for row in each} == {("sketch", 8)}  # those held out
    assert len([*(root / "runs" / "pacs").iterdir()]) == len(recipes) == 9


def test_figure_5_shows_one_class_in_four_styles(root: Path, tmp_path: Path) -> None:
    panels = styles_figure().axes
    assert len(panels) == 4 * 6
    for row, domain in enumerate(DOMAINS):
        train = load(domain).train
        dogs = train.x[train.y == CLASSES.index("dog")]
        shown = [panel.images[0].get_array() for panel in panels[6 * row : 6 * row + 6] if panel.images]
        assert np.array_equal(np.stack(shown), dogs.permute(0, 2, 3, 1).numpy()) and len(shown) == 2
    for kind, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        path = tmp_path / f"figure5.{kind}"
        assert write_picture("figure5", path, kind) == [path]
        first = path.read_bytes()
        assert first.startswith(magic)
        write_picture("figure5", path, kind)
        assert path.read_bytes() == first


def test_fetch_unpacks_what_was_downloaded(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METADR_DATA", str(tmp_path / "root"))
    asked = []

    def fetch(files, parts: Path, **how) -> list[Path]:
        asked.extend(files)
        parts.mkdir(parents=True)
        return [Path(shutil.make_archive(str(parts / "pacs"), "zip", published))]

    monkeypatch.setattr(obtain, "fetch", fetch)
    assert obtain.download("pacs").found == (4 * 14, 4 * 7)
    assert [file.name for file in asked] == ["pacs.zip"] and asked[0].urls[0].startswith("https://")
    assert not (tmp_path / "root" / "downloads" / "pacs").exists()


def test_a_table_tells_that_images_were_split_here():
    def run_on(data: str) -> Record:
        return Record({"data": data}, {}, 1.0, [])

    official, own = run_on("photo 0123, sketch 4567"), run_on("photo 0123, sketch 4567 split here")
    assert split_note([official]) == []
    assert "not the paper's split" in split_note([official, own])[0]
