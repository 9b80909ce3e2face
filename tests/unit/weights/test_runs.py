"""Runs that start from a file of weights: their keys, rows that are found again, and a run's network as a file."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from metadr import models
from metadr.asked import as_asked
from metadr.benchmarks import make_recipe, training_of
from metadr.domains import read_domains
from metadr.errors import UserError
from metadr.models import FROM_A_FILE
from metadr.packs import Written, unlike_images, write_weights
from metadr.recipes import Row, Table, get_table
from metadr.report.comparison import compare
from metadr.report.records import read_records
from metadr.run import advance, run
from metadr.store import RunDirectory, content_of, description, key_of, recipe_from_identity


def test_the_key_is_of_the_content_and_not_of_the_name(file: Path, tmp_path: Path, tiny_state, tiny) -> None:
    (tmp_path / "copy.safetensors").write_bytes(file.read_bytes())
    save_file(tiny_state(seed=2), tmp_path / "other.safetensors")
    keys = [key_of(tiny(each), 0) for each in (file, tmp_path / "copy.safetensors", tmp_path / "other.safetensors")]
    assert keys[0] == keys[1] != keys[2]
    assert key_of(tiny(None), 0) not in keys
    assert "weights" not in description(tiny(None))["training"], "the keys of older runs hold"
    changed = tiny(file)
    save_file(tiny_state(seed=3), file)
    assert key_of(changed, 0) not in keys


def test_runs_start_from_the_file_and_are_told_apart_and_found_again(
    registered_toys, file: Path, tmp_path: Path, tiny_state
) -> None:
    recipes = {
        each: make_recipe("toy-shapes", tiny=True, model="tiny_resnet", lr=1e-9, later_lr=1e-9, weights=each)
        for each in (None, str(file))
    }
    results = {each: run(recipe, out=tmp_path / "runs", device="cpu") for each, recipe in recipes.items()}
    file = str(file)
    assert results[None].path != results[file].path
    left = {each: RunDirectory.at(result.path, {}).checkpoints()[0] for each, result in results.items()}
    for each, checkpoint in left.items():  # at that rate, training leaves them where they were
        same = [
            torch.allclose(load_file(checkpoint)[f"model/{name}"], value, atol=1e-6)
            for name, value in tiny_state().items()
            if name.endswith("body.0.weight")
        ]
        assert same == [each is not None] * 2
    identity = json.loads((results[file].path / "recipe.json").read_text())
    assert identity["training"]["weights"] == "file" and file not in json.dumps(identity)
    again = recipe_from_identity(identity)
    assert description(again) == description(recipes[file])
    with pytest.raises(UserError, match=r"starts from weights in a file. Name it with --weights FILE"):
        content_of(again)
    made = compare(Table("demo", "one row", (Row("Naive", (again,)),)), read_records(tmp_path / "runs"))
    assert [record.identity for record in made.records] == [identity]


# Rows of tables.


def test_a_file_is_for_the_rows_that_start_from_weights(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_check_fits", lambda name, weights, content: None)  # it is a small network's

    def given(*names: str, rows: tuple[str, ...] = ()) -> set[tuple[str, str | None]]:
        made = as_asked([get_table(name) for name in names], list(rows), {}, str(file), tiny=False)
        return {(each.model, each.weights) for table in made for each in map(training_of, table.recipes)}

    assert given("vkitti2-rendered") == {("unet_resnet50_v1", str(file)), ("unet_resnet34", None)}
    assert given("pacs-schedule") == {("resnet50_v1", str(file))}
    assert {weights for _, weights in given("demo")} == {str(file)}  # where none does, it is for all
    some = given("suspects", "strengths")  # of which only the first has such rows
    named = {"resnet18", "resnet50_v1"}
    assert {model for model, weights in some if weights} == named and ("resnet18", None) in some
    asked = given("suspects", rows=("*, ResNet-18 from a file of weights",))
    assert {model for model, weights in asked if weights == str(file)} == {"resnet18"}
    assert ("resnet50_v1", FROM_A_FILE) in asked  # a row of another network that is not asked for stays as it is
    assert given("pacs-resnet50", rows=("Naive",)) == {
        ("resnet50_v1", str(file))
    }  # else finished rows would not be found
    assert as_asked([get_table("demo")], [], {}, None, tiny=False) == [get_table("demo")]


def test_rows_from_weights_and_from_scratch_are_both_found_in_a_report(
    registered_toys, file: Path, tmp_path: Path
) -> None:
    """Their runs differ in what they read, though their domains are the same."""
    recipes = [make_recipe("toy-shapes", tiny=True, model="tiny_resnet", weights=each) for each in (None, str(file))]
    for recipe in recipes:
        run(recipe, out=tmp_path / "runs", device="cpu")
    rows = tuple(Row(title, (recipe,)) for title, recipe in zip(("scratch", "file"), recipes, strict=True))
    made = compare(Table("demo", "two rows", rows), read_records(tmp_path / "runs"))
    assert len(made.records) == 2 and all(cell.complete for cell in made.cells.values())


def test_settings_of_a_sweep_are_for_the_rows_that_have_them() -> None:
    """Of data and of a memory too: not every method has one."""
    (table,) = as_asked([get_table("table1")], [], {"memory_per_domain": "7", "digits.resize": "pad"}, None, tiny=False)
    assert {recipe.data for recipe in table.recipes} == {(("resize", "pad"),)}
    assert {bool(recipe.memory_per_domain): recipe.memory_per_domain for recipe in table.recipes} == {False: 0, True: 7}
    (some,) = as_asked([get_table("table1")], ["P1 ER"], {"memory_per_domain": "7"}, None, tiny=False)
    assert sorted({recipe.memory_per_domain for recipe in some.recipes}) == [0, 7, 100]


# The network of a run as a file.


def test_a_run_goes_on_from_the_network_of_another(tmp_path: Path, tiny) -> None:
    """Before it has learnt anything it scores what the other did at its end, and so does torch's own module."""
    first = run(tiny(None, order=("handwritten", "blended")), out=tmp_path, device="cpu")
    written = write_weights(first.path, tmp_path / "first.safetensors")
    order = ("handwritten", "blended")
    assert written == Written("tiny_resnet", order, order, classes=(), images="32x32 x / 255")
    write_weights(first.path, tmp_path / "new" / "again.safetensors")
    assert (tmp_path / "new" / "again.safetensors").read_bytes() == (tmp_path / "first.safetensors").read_bytes()
    at_its_end = {row["on"]: row["value"] for row in first.rows if row["after"] == "blended"}

    then = run(tiny(tmp_path / "first.safetensors", order=("street",), tested=("handwritten", "blended")), out=tmp_path)
    before = {row["on"]: row["value"] for row in then.rows if row["after"] == "untrained"}
    assert {name: before[name] for name in at_its_end} == at_its_end
    (record,) = read_records(then.path)
    assert unlike_images(str(tmp_path / "first.safetensors"), record.identity, record.environment) == ""
    larger = {**record.environment, "images": [48, 64]}
    told = unlike_images(str(tmp_path / "first.safetensors"), record.identity, larger)
    assert told == "Note: its weights were made with images of 32x32 x / 255, and here they are of 64x48 x / 255."

    module = models.build("tiny_resnet", 10)
    module.load_state_dict(load_file(tmp_path / "first.safetensors"))
    test = read_domains(first.recipe)[1].test
    with torch.no_grad():
        right = module.eval()(test.x / 255).argmax(1) == test.y
    assert 100 * right.double().mean().item() == pytest.approx(at_its_end["blended"])


def test_a_run_that_has_not_ended_has_a_network_as_well(tmp_path: Path, tiny) -> None:
    stages = advance(tiny(None, order=("handwritten", "blended")), out=tmp_path, device="cpu")
    while next(stages).stage == 0:
        pass
    stages.close()
    (path,) = (tmp_path / "embedded").iterdir()
    assert write_weights(path, tmp_path / "w.safetensors").learnt == ("handwritten",)


def test_where_there_is_no_network_nothing_is_written(tmp_path: Path, tiny) -> None:
    with pytest.raises(UserError, match=r"No run in .*nowhere.*Give a run's directory"):
        write_weights(tmp_path / "nowhere", tmp_path / "w.safetensors")
    done = run(tiny(None, order=("handwritten",)), out=tmp_path, device="cpu")
    for checkpoint in done.path.glob("checkpoint-*"):
        checkpoint.unlink()
    with pytest.raises(UserError, match="has no checkpoint, and so no weights"):
        write_weights(done.path, tmp_path / "w.safetensors")
    assert not (tmp_path / "w.safetensors").exists()
