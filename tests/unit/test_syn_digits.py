"""Synthetic numbers: same pixels however they are made, labelled by the centre digit, in files like the release's."""

import hashlib
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import loadmat
from sklearn.linear_model import RidgeClassifier

from metadr.errors import UserError
from metadr.synthetic import fonts, syn_digits
from metadr.synthetic.fonts import FAMILIES, FONT_LIST_HASH, FontSet
from metadr.synthetic.syn_digits import RANGES, Plan, build, draw, labels, plan, render
from metadr.synthetic.syn_sheet import contact_sheet

VARIANTS = tuple(RANGES)
PAGE = (Path(__file__).parents[2] / "docs" / "syn.md").read_text()
INSTALLED = [family for family in FAMILIES if family.package == "matplotlib"]
BLACK, WHITE = (0, 0, 0), (255, 255, 255)


@pytest.fixture(scope="module")
def few() -> FontSet:
    """The fonts of the list that come with matplotlib: always there."""
    return fonts.find(INSTALLED)


def plans(few: FontSet, variant: str, count: int) -> list[Plan]:
    stream = np.random.default_rng(7)
    return [plan(index % 10, stream, RANGES[variant], len(few.paths)) for index in range(count)]


def names(font_set: FontSet) -> tuple[str, ...]:
    return tuple(str(path) for path in font_set.paths)


# Same pixels


def test_processes_change_nothing(few: FontSet) -> None:
    seen: list[int] = []
    alone, digits = render(600, split="train", fonts=few)
    shared, same_digits = render(600, split="train", fonts=few, processes=2, watch=seen.append)
    assert np.array_equal(alone, shared)
    assert np.array_equal(digits, same_digits)
    assert seen == [250, 500, 600]


def test_chunks_and_counts_change_nothing(few: FontSet, monkeypatch: pytest.MonkeyPatch) -> None:
    images, digits = render(75, split="test", seed=3, fonts=few)
    monkeypatch.setattr(syn_digits, "CHUNK", 7)
    again, _ = render(75, split="test", seed=3, fonts=few)
    fewer, fewer_digits = render(33, split="test", seed=3, fonts=few)
    assert np.array_equal(images, again)
    assert np.array_equal(images[:33], fewer)
    assert np.array_equal(digits[:33], fewer_digits)


def test_images_are_uint8_and_none_is_empty_or_twice(few: FontSet) -> None:
    images, digits = render(400, split="train", fonts=few)
    assert images.shape == (400, 32, 32, 3)
    assert images.dtype == np.uint8
    assert digits.dtype == np.int64
    assert all(np.ptp(image.reshape(-1, 3), axis=0).max() >= 10 for image in images)
    assert len({image.tobytes() for image in images}) == 400


def test_seed_split_variant_and_fonts_each_change_the_pixels(few: FontSet) -> None:
    other = FontSet(few.paths[1:], "other")
    made = [
        render(20, split="train", fonts=few),
        render(20, split="train", fonts=few, seed=1),
        render(20, split="test", fonts=few),
        render(20, split="train", fonts=few, variant="easy"),
        render(20, split="train", fonts=few, variant="hard"),
        render(20, split="train", fonts=other),
    ]
    assert len({images.tobytes() for images, _ in made}) == len(made)


# Labels


@pytest.mark.parametrize("split", ["train", "test"])
def test_classes_are_balanced_and_shuffled(split: syn_digits.Split) -> None:
    count = syn_digits.COUNTS[split]
    digits = labels(0, count, split=split)
    assert len(digits) == count
    assert np.ptp(np.bincount(digits, minlength=10)) <= 1
    assert abs(np.corrcoef(digits[1:], digits[:-1])[0, 1]) < 0.2
    assert np.array_equal(labels(123, 456, split=split), digits[123:456])


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_labelled_digit_lies_in_the_middle(few: FontSet, variant: str) -> None:
    """Alone, white on black and upright, its box is `height` high and `shift` from the middle of the image."""
    missed = []
    for drawn in plans(few, variant, 120):
        bare = drawn._replace(left=None, right=None, rim=None, ground=BLACK, ink=WHITE, blur=0)
        bare = bare._replace(degrees=0, slant=0, weight=0)
        # Smaller than planned, so that nothing is cut by the border and the box can be measured.
        bare = bare._replace(height=14, stretch=0.8)
        mask = np.asarray(draw(bare, names(few)))[:, :, 0] > 60
        for axis, shift in ((1, bare.shift[0]), (0, bare.shift[1])):
            where = np.flatnonzero(mask.any(axis=1 - axis))
            missed.append((where[0] + where[-1]) / 2 - 15.5 - shift)
            assert abs(shift) <= RANGES[variant].shift
        assert abs(np.flatnonzero(mask.any(axis=1)).size - 14) <= 1
    assert np.abs(missed).max() <= 0.8
    assert abs(np.mean(missed)) < 0.06


def test_rotation_keeps_the_middle_and_turns_by_the_angle(few: FontSet) -> None:
    base = plans(few, "standard", 2)[1]._replace(
        left=None, right=None, rim=None, ground=BLACK, ink=WHITE, blur=0, shift=(0, 0), height=20, stretch=1
    )

    def slope(degrees: float) -> float:
        ink = np.asarray(draw(base._replace(degrees=degrees), names(few)).convert("L"), dtype=float)
        down, across = np.nonzero(ink > 100)
        assert abs((across.min() + across.max()) / 2 - 15.5) <= 2
        return float(np.rad2deg(0.5 * np.arctan2(2 * np.cov(across, down)[0, 1], across.var() - down.var())))

    turned = (slope(25) - slope(0) + 90) % 180 - 90
    assert abs(abs(turned) - 25) < 4


def test_neighbours_flank_the_label_and_do_not_move_it(few: FontSet) -> None:
    base = plans(few, "standard", 9)[8]._replace(
        left=None, right=None, rim=None, ground=BLACK, ink=WHITE, blur=0, degrees=0, shift=(0, 0), height=20, gap=0.1
    )
    alone = np.asarray(draw(base, names(few)))[:, :, 0]
    left = np.asarray(draw(base._replace(left=8), names(few)))[:, :, 0]
    right = np.asarray(draw(base._replace(right=8), names(few)))[:, :, 0]
    assert np.array_equal(left[:, 16:], alone[:, 16:])
    assert np.array_equal(right[:, :16], alone[:, :16])
    assert left[:, :6].max() > 200 > alone[:, :6].max()
    assert right[:, -6:].max() > 200 > alone[:, -6:].max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_plans_keep_to_their_ranges(few: FontSet, variant: str) -> None:
    ranges, made = RANGES[variant], plans(few, variant, 3000)
    for field in ("height", "stretch", "gap", "outline", "blur"):
        values = [getattr(one, field) for one in made]
        low, high = getattr(ranges, field)
        assert low <= min(values) <= low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) <= max(values) <= high
    assert 0.9 * ranges.degrees < max(abs(one.degrees) for one in made) <= ranges.degrees
    sizes = [1 + (one.left is not None) + (one.right is not None) for one in made]
    shares = np.bincount(sizes, minlength=4)[1:] / len(made)
    assert np.allclose(shares, ranges.digits, atol=0.03)
    assert abs(np.mean([one.rim is not None for one in made]) - ranges.outlined) < 0.03
    assert {one.font for one in made} == set(range(len(few.paths)))
    for one in made:
        touching = [(one.ground, one.ink)] + ([(one.ink, one.rim)] if one.rim else [])
        for a, b in touching:
            contrast = np.sqrt(np.mean((np.array(a, dtype=float) - b) ** 2))
            assert ranges.contrast[0] - 1e-9 <= contrast <= ranges.contrast[1] + 1e-9
            for colour in (a, b):
                assert max(colour) - min(colour) <= 2 * ranges.tint + 1
                assert max(0, ranges.grey[0] - ranges.tint) <= min(colour) + 1
                assert max(colour) - 1 <= min(255, ranges.grey[1] + ranges.tint)


# Files


def test_build_writes_the_layout_of_the_release(few: FontSet, tmp_path: Path) -> None:
    seen: list[int] = []
    record = build(tmp_path / "syn", seed=5, fonts=few, counts={"train": 40, "test": 30}, watch=seen.append)
    images, digits = render(40, split="train", seed=5, fonts=few)
    mat = loadmat(record.parent / "synth_train_32x32.mat")
    assert mat["X"].shape == (32, 32, 3, 40)
    assert mat["X"].dtype == np.uint8
    assert mat["y"].shape == (40, 1)
    assert np.array_equal(mat["X"].transpose(3, 0, 1, 2), images)
    assert sorted(set(mat["y"].ravel())) == list(range(1, 11))
    assert np.array_equal(mat["y"].ravel() % 10, digits)
    assert loadmat(record.parent / "synth_test_32x32.mat")["X"].shape == (32, 32, 3, 30)
    content = json.loads(record.read_text())
    assert (content["seed"], content["variant"], content["fonts"]) == (5, "standard", few.hash)
    assert (content["revision"], content["counts"]) == (syn_digits.REVISION, {"train": 40, "test": 30})
    expected = hashlib.sha256(images.tobytes() + digits.astype(np.uint8).tobytes()).hexdigest()
    assert content["pixels"]["train"] == expected
    assert seen == [40, 70]
    assert sorted(path.name for path in record.parent.iterdir()) == sorted([*syn_digits.FILES.values(), "syn.json"])


def test_a_build_that_stops_is_known_and_can_be_repeated(
    few: FontSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: dict[syn_digits.Split, int] = {"train": 10, "test": 10}
    build(tmp_path, fonts=few, counts=counts)
    before = (tmp_path / "synth_train_32x32.mat").read_bytes()

    def stop(images: object, digits: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(syn_digits, "to_mat", stop)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, seed=1, fonts=few, counts=counts)
    assert json.loads((tmp_path / "syn.json").read_text())["pixels"] is None
    assert (tmp_path / "synth_train_32x32.mat").read_bytes() == before
    monkeypatch.undo()
    assert json.loads(build(tmp_path, seed=1, fonts=few, counts=counts).read_text())["pixels"]


def test_files_from_elsewhere_are_not_overwritten(few: FontSet, tmp_path: Path) -> None:
    official = tmp_path / "synth_train_32x32.mat"
    official.write_bytes(b"Ganin's")
    with pytest.raises(UserError, match=r"holds synth_train_32x32\.mat but no syn\.json"):
        build(tmp_path, fonts=few, counts={"train": 1, "test": 1})
    assert official.read_bytes() == b"Ganin's"


def test_a_variant_is_a_set_of_its_own(few: FontSet, tmp_path: Path) -> None:
    counts: dict[syn_digits.Split, int] = {"train": 10, "test": 10}
    record = build(tmp_path / "syn_hard", variant="hard", fonts=few, counts=counts)
    assert record.name == "syn_hard.json"
    content = json.loads(record.read_text())
    assert content["variant"] == "hard"
    assert content["what"].startswith("synthetic numbers, hard to read, rendered after")
    with pytest.raises(UserError, match=r"but no syn\.json: files from elsewhere"):
        build(tmp_path / "syn_hard", fonts=few, counts=counts)


def test_easier_is_easier_to_read_and_harder_is_harder(few: FontSet) -> None:
    """By a linear reader of edges, whatever their colours: far from a network, and far apart."""

    def edges(images: np.ndarray) -> np.ndarray:
        down, across = np.gradient(images.mean(axis=-1), axis=(1, 2))
        strength = np.hypot(down, across).reshape(len(images), 16, 2, 16, 2).mean(axis=(2, 4)).reshape(len(images), -1)
        return strength / np.linalg.norm(strength, axis=1, keepdims=True)

    right = {}
    for variant in VARIANTS:
        (train, digits), (test, asked) = (
            render(count, split=split, variant=variant, fonts=few) for split, count in (("train", 800), ("test", 300))
        )
        reader = RidgeClassifier(alpha=0.1).fit(edges(train), digits)
        right[variant] = reader.score(edges(test), asked)
    assert right["easy"] > right["standard"] + 0.1 > right["hard"] + 0.2
    assert right["hard"] > 0.15  # a tenth would be chance


def test_a_sheet_shows_every_variant(few: FontSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syn_digits, "find", lambda: few)
    sheet = np.asarray(contact_sheet(seed=4))
    assert sheet.shape == (2 * (3 * 2 * 32 + 2 * 4), 2 * 20 * 32, 3)
    for place, variant in enumerate(VARIANTS):
        top = 2 * place * (2 * 32 + 4)
        images, _ = render(21, split="train", seed=4, variant=variant, fonts=few)
        assert np.array_equal(sheet[top : top + 64 : 2, 64:128:2], images[1])
        assert np.array_equal(sheet[top + 64 : top + 128 : 2, 0:64:2], images[20])


def test_the_same_build_writes_the_same_bytes(few: FontSet, tmp_path: Path) -> None:
    counts: dict[syn_digits.Split, int] = {"train": 10, "test": 10}
    first, second = (build(tmp_path / name, fonts=few, counts=counts).parent for name in "ab")
    for name in (*syn_digits.FILES.values(), "syn.json"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


# Fonts


def test_list_of_fonts_is_varied_and_hashed() -> None:
    listed = [item for family in FAMILIES for item in family.files.items()]
    assert len(FAMILIES) >= 8
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    assert len(dict(listed)) == len(listed)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for _, digest in listed)
    assert {family.package for family in FAMILIES} == {"matplotlib", *fonts.VERSIONS}
    text = "".join(f"{name} {digest}\n" for name, digest in sorted(listed))
    assert hashlib.sha256(text.encode()).hexdigest() == FONT_LIST_HASH


def test_hash_changes_when_a_font_changes(few: FontSet, tmp_path: Path) -> None:
    for path in few.paths[:2]:
        shutil.copy(path, tmp_path)
    before = fonts.in_folder(tmp_path)
    assert fonts.in_folder(tmp_path) == before
    shutil.copytree(tmp_path, tmp_path.parent / "elsewhere")
    assert fonts.in_folder(tmp_path.parent / "elsewhere").hash == before.hash
    shutil.copy(few.paths[2], tmp_path / few.paths[0].name)
    assert fonts.in_folder(tmp_path).hash != before.hash
    items = [("a.ttf", "1"), ("b.ttf", "2")]
    assert fonts.hash_of(items) == fonts.hash_of(items[::-1]) != fonts.hash_of([("a.ttf", "1"), ("b.ttf", "3")])


def test_every_listed_font_is_found_where_its_package_is_installed() -> None:
    try:
        found = fonts.find()
    except UserError as error:
        pytest.skip(f"the fonts extra is not installed: {error}")
    assert found.hash == FONT_LIST_HASH
    for path in found.paths:
        fonts._check_digits(path)
    assert render(28, split="train", fonts=found)[0].shape == (28, 32, 32, 3)


def test_fonts_are_found_in_the_folders_of_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "truetype").mkdir()
    font = tmp_path / "truetype" / "Far.ttf"
    font.write_bytes(b"a font")
    digest = hashlib.sha256(b"a font").hexdigest()
    family = fonts.Family("Far", "sans", "font-no-such-package", "OFL 1.1", {"Far.ttf": digest})
    monkeypatch.setattr(fonts, "SYSTEM_FOLDERS", (tmp_path,))
    assert fonts.find([family]).paths == (font,)
    font.write_bytes(b"another font")
    with pytest.raises(UserError, match=r"Far\.ttf \(.*Far\.ttf: not the content that is listed\).*--force-reinstall"):
        fonts.find([family])


def test_missing_fonts_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fonts, "SYSTEM_FOLDERS", ())
    monkeypatch.setitem(fonts.VERSIONS, "font-not-here", "1.2")
    family = fonts.Family("Not Here", "sans", "font-not-here", "OFL 1.1", {"B.ttf": "0", "A.ttf": "1"})
    with pytest.raises(UserError) as told:
        fonts.find([*INSTALLED, family])
    assert str(told.value) == (
        "Missing fonts: A.ttf, B.ttf. Install them with 'pip install font-not-here==1.2', or draw with your own by "
        "--fonts DIR."
    )


def test_folder_of_fonts_is_checked(few: FontSet, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No folder .*nowhere"):
        fonts.in_folder(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"No \.ttf or \.otf file"):
        fonts.in_folder(tmp_path)
    broken = tmp_path / "broken.TTF"
    broken.write_bytes(b"not a font")
    with pytest.raises(UserError, match=r"Cannot draw with the font .*broken\.TTF"):
        fonts.in_folder(tmp_path)
    broken.unlink()
    symbols = few.paths[0].with_name("STIXSizTwoSymReg.ttf")  # large brackets: no digits among them
    shutil.copy(symbols, tmp_path)
    with pytest.raises(UserError, match=r"STIXSizTwoSymReg\.ttf' lacks some of the digits"):
        fonts.in_folder(tmp_path)


# Mistakes


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"count": 0}, "The 'count' of the synthetic numbers must be an integer >= 1. Got 0 instead."),
        ({"seed": -1}, "The 'seed' of the synthetic numbers must be an integer >= 0. Got -1 instead."),
        ({"processes": 0}, "The 'processes' of the synthetic numbers must be an integer >= 1. Got 0 instead."),
        ({"variant": "hrad"}, "No variant 'hrad' of the synthetic numbers. Closest: 'hard'."),
        ({"split": "trian"}, "No split 'trian'. Closest: 'train'."),
    ],
)
def test_bad_arguments(few: FontSet, wrong: dict, sentence: str) -> None:
    given = {"count": 1, "split": "train", "fonts": few, **wrong}
    with pytest.raises(UserError) as told:
        render(given.pop("count"), **given)
    assert str(told.value) == sentence


def test_a_mistake_leaves_no_folder(few: FontSet, tmp_path: Path) -> None:
    with pytest.raises(UserError):
        build(tmp_path / "syn", seed=-1, fonts=few)
    assert not (tmp_path / "syn").exists()


def test_a_file_in_place_of_the_folder(few: FontSet, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    with pytest.raises(UserError, match="Cannot write the folder"):
        build(file, fonts=few, counts={"train": 1, "test": 1})
    assert file.read_text() == "kept"


def test_standard_images_have_the_statistics_of_the_released_ones() -> None:
    """Means and deviations of their channels, as public code that normalises by them states."""
    try:
        found = fonts.find()
    except UserError as error:
        pytest.skip(f"the fonts extra is not installed: {error}")
    pixels = render(4000, split="train", fonts=found)[0] / 255
    assert np.allclose(pixels.mean((0, 1, 2)), (0.4717, 0.4729, 0.4749), atol=0.02)
    assert np.allclose(pixels.std((0, 1, 2)), (0.3002, 0.2990, 0.3008), atol=0.01)


# docs/syn.md


def written(value: float | tuple[float, ...]) -> str:
    if not isinstance(value, tuple):
        return f"{value:g}"
    return (" to " if len(value) == 2 else " / ").join(f"{item:g}" for item in value)


def rows(head: str) -> list[list[str]]:
    """The rows of the page's table whose first column is called `head`."""
    lines = PAGE[PAGE.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_page_has_the_ranges_of_the_code() -> None:
    table = {row[0]: row[2:] for row in rows("range")}
    expected = {
        field: [written(getattr(RANGES[name], field)) for name in VARIANTS] for field in syn_digits.Ranges._fields
    }
    assert table == expected


def test_page_has_the_fonts_of_the_code() -> None:
    assert [row[0] for row in rows("family")] == [family.name for family in FAMILIES]
    for row, family in zip(rows("family"), FAMILIES, strict=True):
        version = fonts.VERSIONS.get(family.package)
        package = family.package if version is None else f"{family.package} {version}"
        assert row[1:] == [family.style, package, family.licence]
    listed = {row[0]: row[1] for row in rows("file")}
    assert listed == {name: digest for family in FAMILIES for name, digest in family.files.items()}
    assert FONT_LIST_HASH in PAGE


def test_a_drawn_image_can_be_saved_as_png(few: FontSet) -> None:
    """Drawing gives a plain RGB image: what a sheet of samples is made of."""
    image = draw(plans(few, "standard", 1)[0], names(few))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    assert np.array_equal(np.asarray(Image.open(buffer)), np.asarray(image))
