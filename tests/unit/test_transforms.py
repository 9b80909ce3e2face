"""Sets, grids, draws, noise, contact sheets and the sentences of their errors."""

import math
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import stats

from metadr import transforms
from metadr.errors import UserError
from metadr.transforms import SETS, TRANSFORMS, Choice, TransformSet, draw, get_set, register_set, workers

SHORT = {
    "brightness": (0.2, 1.8, 90),
    "color": (0.2, 1.8, 90),
    "contrast": (0.2, 1.8, 90),
    "rgb_rand": (1, 120, 90),
    "solarize": (255, 75, 90),
    "grayscale": (0, 0, 1),
    "invert": (0, 0, 1),
    "rotate": (-60, 60, 30),
    "gaussian_noise": (0, 30, 30),
    "blur": (0, 0, 1),
}
PSI = {
    "psi1": "brightness color contrast solarize grayscale invert",
    "psi2": "brightness color contrast solarize grayscale invert rotate",
    "psi3": "brightness color contrast solarize grayscale invert rotate gaussian_noise blur",
    "psi4": "brightness color contrast rgb_rand",
}


@pytest.fixture
def rng():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def images(rng):
    return torch.randint(256, (48, 3, 20, 16), generator=rng, dtype=torch.uint8)


@pytest.mark.parametrize("name", PSI)
def test_sets_hold_what_the_table_of_the_paper_says(name):
    expected = tuple((member, *SHORT[member]) for member in PSI[name].split())
    assert tuple((c.name, c.low, c.high, c.levels) for c in get_set(name).choices) == expected
    assert get_set(name).compositions == 2
    assert get_set(name) is SETS[name]


@pytest.mark.parametrize("name", SHORT)
def test_grids_include_both_ends(name):
    low, high, levels = SHORT[name]
    grid = Choice.of(name).grid()
    assert len(grid) == levels
    assert (grid[0], grid[-1]) == (low, high)
    step = (high - low) / max(1, levels - 1)
    exact = [low + step * number for number in range(levels)]
    assert np.allclose(grid, [int(level) for level in exact] if TRANSFORMS[name].whole else exact, atol=1e-9)


def test_grids_as_the_paper_implies():
    assert 1.0 not in Choice.of("brightness").grid()
    assert 0.0 not in Choice.of("rotate").grid()
    assert 0.0 in Choice.of("gaussian_noise").grid()
    assert Choice.of("solarize").grid()[:3] == (255.0, 252.0, 250.0)
    assert Choice.of("rgb_rand").grid()[:3] == (1.0, 2.0, 3.0)


def test_get_set_reads_text():
    own = get_set("brightness+rotate:-30:30:7+invert")
    assert own.choices == (Choice.of("brightness"), Choice("rotate", -30, 30, 7), Choice.of("invert"))
    assert own.choices[1].grid() == (-30.0, -20.0, -10.0, 0.0, 10.0, 20.0, 30.0)
    assert get_set("rotate:30:30:1").choices[0].grid() == (30.0,)
    assert get_set("+".join(choice.spec for choice in own.choices)).spec == own.spec
    assert get_set("identity").choices == (Choice.of("identity"),)


def test_spec_tells_sets_apart_by_content(monkeypatch):
    assert get_set("brightness+invert").spec == "2*(brightness@1:0.2:1.8:90+invert@1)"
    assert TransformSet("other", SETS["psi1"].choices).spec == SETS["psi1"].spec
    assert TransformSet("psi1", SETS["psi1"].choices, compositions=3).spec != SETS["psi1"].spec
    assert get_set("rotate:-30:30:7").spec != get_set("rotate:-30:30:8").spec
    assert get_set("rotate:-0:30:7").spec == get_set("rotate:0:30:7").spec
    before = SETS["psi1"].spec
    monkeypatch.setitem(
        TRANSFORMS, "invert", TRANSFORMS["invert"].__class__(**vars(TRANSFORMS["invert"]) | {"revision": 2})
    )
    assert SETS["psi1"].spec == before.replace("invert@1", "invert@2")


def test_register_set(monkeypatch):
    monkeypatch.setattr("metadr.transforms.sets.SETS", SETS | {})
    mine = register_set(TransformSet("mine", (Choice.of("blur"),), compositions=1))
    assert register_set(mine) is mine
    assert get_set("mine") is mine
    with pytest.raises(UserError, match=r"^Another transformation set 'mine' exists already"):
        register_set(TransformSet("mine", (Choice.of("invert"),)))
    for name in ("a+b", "a:b", "blur", ""):
        with pytest.raises(UserError, match=r"^The name of a transformation set must have no"):
            register_set(TransformSet(name, (Choice.of("blur"),)))


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("psi33", "No transformation set 'psi33'. Closest: 'psi3'. List all with 'metadr list transforms'."),
        (
            "brightnes",
            "No transformation set 'brightnes'. Closest: 'brightness'. List all with 'metadr list transforms'.",
        ),
        (
            "blur+rotat:1:2:3",
            "No transformation 'rotat' in transformation set 'blur+rotat:1:2:3'. Closest: 'rotate'. "
            "List all with 'metadr list transforms'.",
        ),
        (
            "rotate:1:2",
            "The grid of 'rotate' must be name:low:high:levels in numbers, as in 'rotate:-30:30:7'. "
            "Got 'rotate:1:2' instead.",
        ),
        (
            "rotate:a:2:3",
            "The grid of 'rotate' must be name:low:high:levels in numbers, as in 'rotate:-30:30:7'. "
            "Got 'rotate:a:2:3' instead.",
        ),
        (
            "rotate:1:2:3.5",
            "The grid of 'rotate' must be name:low:high:levels in numbers, as in 'rotate:-30:30:7'. "
            "Got 'rotate:1:2:3.5' instead.",
        ),
        (
            "rotate:1:2:0",
            "The grid of 'rotate' must be two finite numbers and a whole number of levels >= 1, "
            "as in 'rotate:-30:30:7'. Got '1.0:2.0:0' instead.",
        ),
        (
            "rotate:nan:2:3",
            "The grid of 'rotate' must be two finite numbers and a whole number of levels >= 1, "
            "as in 'rotate:-30:30:7'. Got 'nan:2.0:3' instead.",
        ),
        ("invert:0:1:3", "The grid of 'invert' must be left out: it has no levels. Got '0.0:1.0:3' instead."),
        (
            "rotate:1:2:1",
            "The grid of 'rotate' must be a single number twice if it has one level, as in 'rotate:30:30:1'. "
            "Got '1.0:2.0:1' instead.",
        ),
    ],
)
def test_error_sentences(spec, sentence):
    with pytest.raises(UserError) as error:
        get_set(spec)
    assert str(error.value) == sentence


@pytest.mark.parametrize(
    "grid", [("x", 1, 2), (0, math.inf, 2), (0, 1, 2.5), (0, 1, math.nan), (0, 1, None), (0, 1, -1)]
)
def test_bad_grids_in_python(grid):
    with pytest.raises(UserError, match=r"^The grid of 'rotate' must be two finite numbers"):
        Choice("rotate", *grid)


def test_other_refusals(rng, images):
    with pytest.raises(UserError, match="must have at least one transformation"):
        TransformSet("none", ())
    with pytest.raises(UserError, match="'compositions' of transformation set 'zero' must be"):
        TransformSet("zero", (Choice.of("blur"),), compositions=0)
    with pytest.raises(UserError, match=r"'per' parameter of draw must be 'image' or 'batch'\. Got 'step' instead\."):
        draw(SETS["psi1"], 1, rng, per="step", pick="pair")
    with pytest.raises(UserError, match="'pick' parameter of draw must be"):
        draw(SETS["psi1"], 1, rng, per="batch", pick="level")
    drawn = draw(SETS["psi2"], 3, rng, per="image", pick="operation")
    with pytest.raises(UserError, match=r"^A draw from 'psi2' for 3 images cannot transform 48"):
        drawn.apply(images)
    with pytest.raises(UserError, match=r"^A draw from 'psi2' on cpu cannot transform images on meta"):
        drawn.apply(images[:3].to("meta"))
    for masks in (torch.zeros(3, 20, 17, dtype=torch.long), torch.zeros(3, 20, 16), torch.zeros(2, 20, 16).long()):
        with pytest.raises(UserError, match=r"^The masks of 'psi2' must be \(B, H, W\) whole numbers"):
            drawn.apply(images[:3], rng, masks)
    with pytest.raises(UserError, match=r"^A transformation 'blur' exists already"):
        transforms.transform()(transforms.blur)


def test_draw_by_operation_gives_each_transformation_its_share(rng):
    drawn = draw(SETS["psi3"], 40_000, rng, per="image", pick="operation")
    assert drawn.operation.shape == drawn.level.shape == (2, 40_000)
    assert (drawn.operation.dtype, drawn.level.dtype) == (torch.int64, torch.float64)
    for slot in range(2):
        counts = torch.bincount(drawn.operation[slot], minlength=9)
        assert stats.chisquare(counts).pvalue > 1e-4
    pairs = torch.bincount(9 * drawn.operation[0] + drawn.operation[1], minlength=81)
    assert stats.chisquare(pairs).pvalue > 1e-4  # The slots are independent, with replacement.
    for index, choice in enumerate(SETS["psi3"].choices):
        levels = drawn.level[drawn.operation == index]
        values, counts = levels.unique(return_counts=True)
        assert values.tolist() == sorted(set(choice.grid()))
        assert len(counts) == 1 or stats.chisquare(counts).pvalue > 1e-4
    invert = (drawn.operation == 5).double().mean()
    assert abs(invert - 1 / 9) < 0.005


def test_draw_by_pair_gives_each_level_its_share(rng):
    drawn = draw(SETS["psi3"], 100_000, rng, per="image", pick="pair")
    counts = torch.bincount(drawn.operation.flatten(), minlength=9).double()
    share = torch.tensor([90, 90, 90, 90, 1, 1, 30, 30, 1]) / 423
    assert stats.chisquare(counts, share.double() / share.double().sum() * 200_000).pvalue > 1e-4
    assert abs(counts[5] / 200_000 - 0.0024) < 0.0006
    rotations = drawn.level[drawn.operation == 6].unique(return_counts=True)
    assert rotations[0].tolist() == list(Choice.of("rotate").grid())
    assert stats.chisquare(rotations[1]).pvalue > 1e-4


@pytest.mark.parametrize("pick", ["operation", "pair"])
def test_one_draw_per_batch_or_per_image(rng, pick):
    batch = draw(SETS["psi3"], 64, rng, per="batch", pick=pick)
    assert all(len(row.unique()) == 1 for row in (*batch.operation, *batch.level))
    image = draw(SETS["psi3"], 64, rng, per="image", pick=pick)
    assert all(len(row.unique()) > 2 for row in (*image.operation, *image.level))
    assert draw(SETS["psi3"], 0, rng, per="image", pick=pick).operation.shape == (2, 0)


@pytest.mark.parametrize("size", [16, 80])  # On the calling thread, and spread over workers.
def test_equal_seeds_give_equal_results(size):
    many = torch.randint(256, (64, 3, size, size), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    results = []
    for seed in (5, 5, 6):
        rng = torch.Generator().manual_seed(seed)
        drawn = draw(get_set("gaussian_noise+rgb_rand+blur+rotate"), 64, rng, per="image", pick="operation")
        results.append(drawn.apply(many, rng))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("per", ["image", "batch"])
@pytest.mark.parametrize("spec", ["psi2", "rotate+blur", "identity", "invert"])
def test_strategies_agree(rng, images, spec, per):
    masks = torch.randint(15, (48, 20, 16), generator=rng)
    before = images.clone()
    for _ in range(6):
        drawn = draw(get_set(spec), 60, rng, per=per, pick="operation")
        gathered = drawn.apply(images, rng, masks, 255, strategy="gather")
        masked = drawn.apply(images, rng, masks, 255, strategy="masked")
        assert torch.equal(gathered[0], masked[0])
        assert torch.equal(gathered[1], masked[1])
        assert torch.equal(drawn.apply(images[:7]), gathered[0][:7])  # The first columns serve a smaller batch.
        assert torch.equal(images, before)


def test_strategies_agree_in_distribution_on_noise(rng, images):
    drawn = draw(get_set("gaussian_noise:20:20:1"), 48, rng, per="image", pick="operation")
    grey = torch.full_like(images, 128)
    results = [drawn.apply(grey, rng, strategy=strategy).double() for strategy in ("gather", "masked")]
    for result in results:  # Two slots: the variances add, and each rounding adds a twelfth.
        assert abs(result.mean() - 128) < 0.5
        assert abs(result.std() - math.sqrt(2 * 400 + 2 / 12)) < 0.5


@pytest.mark.parametrize("strategy", ["gather", "masked"])
@pytest.mark.parametrize("spec", ["gaussian_noise:9:9:1", "rgb_rand:90:90:1"])
def test_noise_is_drawn_per_image_and_slot_even_with_one_draw_per_batch(rng, spec, strategy):
    grey = torch.full((6, 3, 8, 8), 128, dtype=torch.uint8)
    once = TransformSet("once", get_set(spec).choices, compositions=1)
    result = draw(once, 6, rng, per="batch", pick="operation").apply(grey, rng, strategy=strategy)
    assert len(result.flatten(1).unique(dim=0)) == 6
    twice = draw(get_set(spec), 400, rng, per="batch", pick="operation")
    fields = twice.apply(grey[:1].expand(400, -1, -1, -1), rng, strategy=strategy).double()[:, 0, 0, 0] - 128
    single = 9.0 if "noise" in spec else 90 / math.sqrt(3)
    assert abs(fields.std() / (single * math.sqrt(2)) - 1) < 0.2  # The same field twice would make this sqrt(2).


def test_workers_keep_the_number_of_threads_and_raise_what_a_task_raises():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        done: list[tuple[int, int]] = []
        workers.run_all([lambda i=i: done.append((i, torch.get_num_threads())) for i in range(20)])
        assert sorted(done) == [(i, 1) for i in range(20)]
        assert torch.get_num_threads() == 2
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [2]
        with pytest.raises(IndexError, match="inside"):
            workers.run_all([_raise])
    finally:
        torch.set_num_threads(before)


def _raise() -> None:
    raise IndexError("inside")


def test_apply_works_in_inference_mode(rng):
    with torch.inference_mode():
        large = torch.randint(256, (8, 3, 224, 224), generator=rng, dtype=torch.uint8)
        drawn = draw(SETS["psi3"], 8, rng, per="image", pick="operation")
        assert drawn.apply(large, rng).shape == large.shape


def test_contact_sheet(tmp_path):
    rng = np.random.default_rng(0)
    sources = [Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)) for size in (32, 150)]
    sheet = transforms.contact_sheet("psi3", sources, columns=4)
    assert sheet.mode == "RGB"
    assert sheet.width >= 4 * 96
    assert sheet.height >= 2 * 96
    assert sheet.tobytes() == transforms.contact_sheet("psi3", sources, columns=4).tobytes()
    assert sheet.tobytes() != transforms.contact_sheet("psi3", sources, columns=4, seed=1).tobytes()
    for number, mode in enumerate(("L", "RGBA", "P")):
        sources[0].convert(mode).save(tmp_path / f"{number}.png")
    out = transforms.write_contact_sheet("blur+invert", tmp_path, tmp_path / "sheet.png", columns=3)
    with Image.open(out) as written:
        assert written.width < written.height


def test_contact_sheet_refusals(tmp_path):
    with pytest.raises(UserError, match="must have at least one image"):
        transforms.contact_sheet("psi1", [])
    with pytest.raises(
        UserError, match=r"The 'columns' of a contact sheet must be a whole number >= 2\. Got 1 instead"
    ):
        transforms.contact_sheet("psi1", [Image.new("RGB", (4, 4))], columns=1)
    with pytest.raises(UserError, match=r"^No folder '"):
        transforms.write_contact_sheet("psi1", tmp_path / "missing", tmp_path / "a.png")
    with pytest.raises(UserError, match=r"^No images in '"):
        transforms.write_contact_sheet("psi1", tmp_path, tmp_path / "a.png")
    Image.new("RGB", (9, 5)).save(tmp_path / "a.png")
    for out in (tmp_path / "a.png" / "sheet.png", tmp_path / "sheet.nothing", tmp_path):
        with pytest.raises(UserError, match=r"^Cannot write the picture '"):
            transforms.write_contact_sheet("psi1", tmp_path, out)
    (tmp_path / "b.png").write_bytes(b"not an image")
    with pytest.raises(UserError, match=r"^Cannot read the image '"):
        transforms.write_contact_sheet("psi1", tmp_path, tmp_path / "sheet.png")
