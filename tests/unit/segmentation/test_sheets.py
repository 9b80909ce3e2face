"""Sheets of what runs say of images: inputs, truths, predictions, and the titles that tell runs apart."""

import numpy as np
import pytest
from PIL import Image

from metadr import models
from metadr.benchmarks import get_benchmark, make_recipe
from metadr.engine.network import Network
from metadr.errors import UserError
from metadr.predictions import GAP, TEXT, enlarged, lay_out, prediction_sheet, spread_over, titles_of
from metadr.run import run
from metadr.store import RunDirectory, recipe_from_identity
from metadr.vkitti2_classes import CLASSES


def test_a_sheet_shows_inputs_truths_and_what_each_run_says(streets, tmp_path):
    order = ("scene02-clone", "scene01-fog")
    paths = []
    for method in ("naive", "dr"):
        recipe = make_recipe("vkitti2-rendered", method, tiny=True, order=order)
        paths.append(run(recipe, out=tmp_path, device="cpu").path)
    sheet = prediction_sheet(paths, num_images=1, device="cpu")
    pixels = np.asarray(sheet)
    domain = get_benchmark("vkitti2-rendered").load("scene02-clone")
    times = 4  # frames of 64x32 as 256x128
    wide, line = 64 * times + GAP, TEXT + GAP
    below = GAP + line + 2 * (32 * times + line)
    assert sheet.width == GAP + 4 * wide and sheet.height > below + line
    shown = {tuple(colour) for colour in pixels[below:].reshape(-1, 3).tolist()}
    assert shown >= {colour for _, colour in CLASSES}
    row = domain.test.num_images // 2

    def shown_at(left: int) -> np.ndarray:
        """A picture of the first row, in its own size: every pixel is a square."""
        picture = pixels[GAP + line :, left:][: 32 * times, : 64 * times]
        squares = picture.reshape(32, times, 64, times, 3)
        assert (squares == squares[:, :1, :, :1]).all()
        return squares[:, 0, :, 0]

    assert np.array_equal(shown_at(GAP), domain.test.x[row].permute(1, 2, 0).numpy())
    colours = np.array([*(colour for _, colour in CLASSES[:-1]), *[(0, 0, 0)] * 242], np.uint8)
    assert np.array_equal(shown_at(GAP + wide), colours[domain.test.y[row].numpy()])
    recipe = make_recipe("vkitti2-rendered", "dr", tiny=True, order=order)
    tensors = RunDirectory(tmp_path, recipe, 0).load().tensors
    network = Network(models.build("tiny_unet", 14), get_benchmark("vkitti2-rendered").task, scaling="imagenet")
    network.load({name.removeprefix("model/"): value for name, value in tensors.items() if name[:6] == "model/"})
    said = network.logits(domain.test.x[row : row + 1]).argmax(1)[0].numpy()
    assert np.array_equal(shown_at(GAP + 3 * wide), colours[said])


def test_frames_that_are_large_enough_are_shown_as_they_are():
    sizes = {256: 1, 416: 1, 255: 2, 208: 2, 104: 3, 16: 16}
    for width, times in sizes.items():
        (picture,) = enlarged({("fog", 0): [Image.new("RGB", (width, 8))]})[("fog", 0)]
        assert picture.size == (times * width, times * 8)


def test_runs_of_one_method_are_told_apart_on_a_sheet(registered_toys, tmp_path):
    def runs(*settings):
        for method, seed, fields in settings:
            recipe = make_recipe("toy-masks", method, tiny=True, **fields)
            directory = RunDirectory(tmp_path, recipe, seed)
            yield RunDirectory.at(directory.path, directory.identity), recipe_from_identity(directory.identity)

    usual = get_benchmark("toy-masks").training.model
    other = {"model": "tiny_unet"}
    assert titles_of([*runs(("naive", 0, {}), ("dr", 0, other))]) == ["naive", "dr"]
    two = [("naive", 0, {}), ("naive", 0, other), ("er", 0, {"memory_per_domain": 3})]
    assert titles_of([*runs(*two)]) == [f"naive (model {usual})", "naive (model tiny_unet)", "er"]
    assert titles_of([*runs(("dr", 1, {}), ("dr", 2, {}))]) == ["dr (seed 1)", "dr (seed 2)"]
    weighed = [*runs(("naive", 0, {}), ("naive", 0, {}))]
    other_file = {**weighed[1][0].identity, "data": "weights of another file"}
    weighed[1] = (RunDirectory.at(tmp_path, other_file), weighed[1][1])
    keys = [directory.key for directory, _ in weighed]
    assert keys[0] != keys[1] and titles_of(weighed) == [f"naive (run {key})" for key in keys]


def test_a_sheet_has_room_for_its_titles_and_what_its_colours_mean():
    picture, colours = Image.new("RGB", (60, 20)), {"Road": (1, 2, 3), "ignored": (0, 0, 0)}
    short, long, word = (
        lay_out([title], {"fog": [picture]}, colours) for title in ("naive", "naive (seed 1)", "n" * 40)
    )
    line = TEXT + GAP
    assert short.size == (60 + 2 * GAP, 3 * GAP + line + (20 + line) + 2 * line)  # two names, a line each
    assert long.size == (short.width, short.height + line)
    assert word.width > 40 * 5 and word.height == short.height - line  # wide enough for both names
    legend = np.asarray(short)[-GAP - 2 * line : -GAP].reshape(-1, 3).tolist()
    assert [1, 2, 3] in legend and [0, 0, 0] in legend


def test_sheets_that_cannot_be_made(registered_toys, tmp_path):
    masks = [run(make_recipe(f"toy-masks/{each}", tiny=True), out=tmp_path, device="cpu") for each in ("there", "back")]
    labels = run(make_recipe("toy-shapes", tiny=True), out=tmp_path, device="cpu")
    for runs, sentence in (
        ([labels.path], "is a run on labels; only predictions of masks"),
        ([each.path for each in masks], "is a run on blue, green, red, the runs before it are on others"),
        ([tmp_path], "No finished run in"),
    ):
        with pytest.raises(UserError, match=sentence):
            prediction_sheet(runs, device="cpu")
    assert prediction_sheet([masks[0].path], num_images=3, device="cpu").size[1] > 9 * 16


@pytest.mark.parametrize(("count", "rows"), [(1, [6]), (2, [3, 9]), (20, list(range(12)))])
def test_images_are_spread_over_a_split(count, rows, segmentation):
    assert spread_over(segmentation.domains[0].test, count) == rows
