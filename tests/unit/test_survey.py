"""What a dry run tells: duplicates between splits, and a cost that grows as a run does."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from metadr.benchmarks import make_recipe
from metadr.core import Domain, Found, Split
from metadr.engine.learner import Learner
from metadr.listing import files
from metadr.listing import survey as in_words
from metadr.run import run
from metadr.survey import TIMED_STEPS, Cost, Survey, Twins, survey, twins


def images(*values: int) -> Split:
    """An image of 2x2 in one shade for every value."""
    x = torch.tensor(values, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous()
    return Split(x, torch.zeros(len(values), dtype=torch.int64))


def test_twins_are_equal_images_in_different_splits() -> None:
    day = Domain("day", images(1, 2, 3, 3), images(4, 2, 2))
    fog = Domain("fog", images(5, 4), images(6, 3))
    files_of = {
        "day": Found(("a", "b", "c", "d"), ("e", "f", "g"), {}),
        "fog": Found(("h", "i"), ("j", "k"), {}),
    }
    found = [
        Twins("day/test", "day/train", 2, ("f", "b")),
        Twins("day/test", "fog/train", 1, ("e", "i")),
        Twins("fog/test", "day/train", 1, ("k", "c")),
    ]
    assert twins([day, fog], files_of) == found
    assert twins([day, fog], {}) == [each._replace(example=None) for each in found]
    assert twins([Domain("a", images(1, 1), images(2))], {}) == []


def test_the_time_is_that_of_all_steps_ends_and_tests() -> None:
    cost = Cost("cpu", 1, 2, step_seconds=(0.5, 0.25), end_seconds=3.0, test_seconds=4.0, steps=(100, 200))
    assert cost.seconds == 100 * 0.5 + 200 * 0.25 + 3 + 4


@pytest.mark.parametrize("method", ["naive", "er+meta-dr", "ewc+gem+dr", "oracle-all"])
def test_every_kind_of_method_is_timed(method: str, registered_toys, tmp_path: Path) -> None:
    recipe = make_recipe("toy-shapes", method, steps=TIMED_STEPS)
    seen = survey(recipe, {}, device="cpu")
    assert len(seen.cost.step_seconds) == 3 and all(seconds > 0 for seconds in seen.cost.step_seconds)
    assert math.isfinite(seen.cost.seconds) and seen.cost.test_seconds > 0
    assert seen.cost.image_bytes == 3 * (24 + 12) * (3 * 16 * 16 + 8)
    assert seen.counts == dict.fromkeys(("red", "green", "blue"), [(8, 4)] * 3)
    assert not list(tmp_path.rglob("*"))
    # It leaves nothing behind that would move a run.
    assert run(recipe, out=tmp_path / "a", device="cpu").rows == run(recipe, out=tmp_path / "b", device="cpu").rows


@pytest.mark.parametrize(("slow", "taken"), [(1e9, [1, TIMED_STEPS] * 3), (0.0, [1] * 3)])
def test_a_step_that_takes_seconds_is_timed_once(
    slow: float, taken: list[int], registered_toys, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    steps = Learner.steps

    def counted(self: Learner, count: int) -> object:
        counts.append(count)
        return steps(self, count)

    monkeypatch.setattr(Learner, "steps", counted)
    monkeypatch.setattr("metadr.survey.SLOW", slow, raising=False)
    cost = survey(make_recipe("toy-shapes", steps=TIMED_STEPS), {}, device="cpu").cost
    assert counts == taken and all(seconds > 0 for seconds in cost.step_seconds)


def test_a_limit_is_no_limit_of_what_is_counted(registered_toys) -> None:
    seen = survey(make_recipe("toy-shapes", limit=4), {}, device="cpu")
    assert seen.counts["red"] == [(8, 4)] * 3
    assert seen.cost.image_bytes == 3 * (4 + 4) * (3 * 16 * 16 + 8)


def test_masks_have_no_counts_by_class(registered_toys) -> None:
    seen = survey(make_recipe("toy-masks", tiny=True), {}, device="cpu")
    assert seen.counts == {} and seen.cost.seconds > 0
    assert any("Memory: " in str(line) for line in in_words(seen))


def test_sizes_are_told_by_area(registered_toys) -> None:
    table, *lines = files(
        {"day": Found(("a",), (), {"10x10": 3, "4x100": 1, "2x2": 1}, ("b: [cut]",), tuple("xyz" * 5))}
    )
    cells = [list(column.cells) for column in table.columns]
    assert cells[:5] == [["day"], ["5"], ["2x2"], ["10x10"], ["4x100"]]
    assert lines[1] == r"  day/b: \[cut]"  # as it is, not as markup
    assert "Not used, being no images or outside class folders:" in lines
    assert lines[-1] == "  and 5 more"
    assert files({}) == []


def test_images_in_no_list_are_told_from_what_is_no_image(registered_toys) -> None:
    found = {"day": Found(("a",), ("b",), {"2x2": 2}, unlisted=("c",)), "fog": Found((), (), {}, unused=("notes",))}
    table, *lines = files(found)
    counted = {str(column.header): list(column.cells) for column in table.columns}
    assert (counted["in no list"], counted["not used"]) == (["1", "0"], ["0", "1"])
    assert lines == [
        "In no list, and so not used:",
        "  day/c",
        "Not used, being no images or outside class folders:",
        "  fog/notes",
    ]
    assert "in no list" not in {str(column.header) for column in files({"fog": found["fog"]})[0].columns}


def test_words_of_a_survey(registered_toys) -> None:
    benchmark = dataclasses.replace(registered_toys["classification"].benchmark, classes=("0", "1", "[b]"))
    cost = Cost("cuda", 3_000_000_000, 4_500_000, (0.01, 0.02), 30.0, 60.0, (1000, 1000))
    counts = {"red": [(1, 2), (0, 0), (3, 0)]}
    twin = Twins("red/test", "red/train", 2, ("a.png", "b.png"))
    table, *lines = in_words(Survey(benchmark, counts, [twin], cost))
    assert [list(column.cells) for column in table.columns] == [
        ["0", "1", r"\[b]", "all"],
        ["1 + 2", "-", "3 + 0", "4 + 2"],
    ]
    assert lines == [
        "Duplicates, pixel for pixel:",
        "  2 of red/test also in red/train, such as a.png and b.png",
        "Memory: 3.0 GB of images on cuda; peak 4.5 MB while training.",
        "Time: about 2:00 on cuda, by a few steps of each domain: 1000 steps of 10.0 20.0 ms, 0:30 at the ends of "
        "domains, 1:00 of tests.",
    ]
    uneven = in_words(Survey(benchmark, counts, [], cost._replace(steps=(2000, 500))))[-1]
    assert "about 2:00 on cuda, by a few steps of each domain: 2000 500 steps of 10.0 20.0 ms" in uneven
    _, first, *_ = in_words(Survey(benchmark, counts, [], cost))
    assert first == "Duplicates, pixel for pixel: none."
