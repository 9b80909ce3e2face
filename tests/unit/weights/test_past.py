"""Runs that go on from what another run's method kept of its domains, whose data are gone."""

import dataclasses
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from metadr import models
from metadr.beginnings import keys_of
from metadr.benchmarks import make_recipe, steps_of, training_of
from metadr.cli import app
from metadr.core import Context, Domain, Part, Recipe
from metadr.errors import UserError
from metadr.packs import beginning, write_weights
from metadr.parts import EWC
from metadr.past import past_of
from metadr.report import group, read_records
from metadr.run import advance, run
from metadr.store import Checkpoint, RunDirectory, key_of
from metadr.sweep import Job, sweep

pytestmark = pytest.mark.usefixtures("registered_toys")
STEPS = 4


def toy(method: str = "naive", *order: str, **fields: Any) -> Recipe:
    memory = {"memory_per_domain": 5} if {"er", "gem"}.intersection(method.split("+")) else {}
    return make_recipe("toy-shapes", method, order=order, **{"steps": STEPS, **memory, **fields})


def left(path: Path, file: Path) -> str:
    write_weights(path, file, past=True)
    return str(file)


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("naive", {}),
        ("average+dr+er+ewc+l2+lwf", {}),
        ("er+gem", {"sampling": "shuffled", "batch_size": 5}),
        ("er+meta-dr", {"batch_norm": "first"}),
        ("dr+lwf", {"stream": True, "sampling": "shuffled", "batch_size": 5}),
        ("dr+ewc", {"tested_by": "domains"}),
        ("naive", {"tested_by": "domains", "steps": 200}),  # so many that by other statistics tests say otherwise
        ("er+lwf", {"later_norm": "fixed", "decay": "cosine", "optimizer": "sgd", "momentum": 0.9}),
        ("l2", {"kept_epoch": "last", "epochs": 2, "later_epochs": 3}),
    ],
)
def test_a_run_for_each_domain_is_the_run_over_all_of_them(method, fields, tmp_path: Path, toys) -> None:
    """With the same seed: every weight to the bit, and what is found on every domain."""
    whole = run(toy(method, "red", "green", "blue", **fields), 3, out=tmp_path / "whole", device="cpu")
    fields, ended, known = dict(fields), (), {}
    for number, domain in enumerate(("red", "green", "blue")):
        recipe = toy(method, domain, tested=ended, **fields)
        last = run(recipe, 3, out=tmp_path / "runs", device="cpu")
        for row in last.rows:
            known[domain if row["after"] == domain else f"before {domain}", row["on"]] = row["value"]
        ended = (*ended, domain)
        fields["weights"] = left(last.path, tmp_path / f"{number}.safetensors")
        found = past_of(training_of(toy(method, "red", **fields)))
        assert found.domains == ended and dict(found.learnt)[domain] == known[domain, domain]
    ours, theirs = (load_file(next(each.path.glob("checkpoint-*"))) for each in (last, whole))
    toys.assert_same_bits(ours, theirs)
    found = {(row["after"], row["on"]): row["value"] for row in whole.rows}
    assert [known["blue", each] for each in ended] == [found["blue", each] for each in ended]
    assert [known["before blue", each] for each in ended] == [found["green", each] for each in ended]


@pytest.fixture
def dr_er(tmp_path: Path) -> str:
    """What a run of dr+er on red and green left."""
    return left(run(toy("dr+er", "red", "green"), out=tmp_path / "before", device="cpu").path, tmp_path / "dr+er")


def test_another_seed_goes_on_from_the_same_and_draws_otherwise(dr_er: str, tmp_path: Path) -> None:
    ends = [
        load_file(next(run(toy("dr+er", "blue", weights=dr_er), seed, out=tmp_path, device="cpu").path.glob("check*")))
        for seed in (0, 1)
    ]
    for end in ends:  # five images of each domain, of those before too
        assert [end[f"memory/{n}/x"].shape[0] for n in range(3)] == [5, 5, 5]
    assert torch.equal(ends[0]["memory/1/x"], ends[1]["memory/1/x"])
    assert not torch.equal(ends[0]["memory/2/x"], ends[1]["memory/2/x"])


def test_parts_may_be_left_out_and_those_that_need_no_past_added(dr_er: str, tmp_path: Path) -> None:
    end = run(toy("meta-dr", "blue", weights=dr_er), out=tmp_path, device="cpu")
    assert not [name for name in load_file(next(end.path.glob("checkpoint-*"))) if name.startswith("memory/")]
    held = load_file(next(run(toy("dr+er+l2+lwf", "blue", weights=dr_er), out=tmp_path).path.glob("checkpoint-*")))
    assert (held["part/l2/weight.0.weight"] == 2).all()  # of the network that it came in with, and of its end
    changed = toy("dr+er", "blue", weights=dr_er, memory_per_domain=7, replay_batch=3)
    kept = load_file(next(run(changed, out=tmp_path, device="cpu").path.glob("checkpoint-*")))
    assert [kept[f"memory/{n}/y"].shape[0] for n in range(3)] == [5, 5, 7]


def test_a_run_that_goes_on_is_resumed_like_any_other(dr_er: str, tmp_path: Path, toys) -> None:
    recipe = toy("dr+er", "blue", weights=dr_er, steps=30)
    going = advance(recipe, out=tmp_path / "stopped", device="cpu")
    assert next(progress for progress in going if progress).step < 30
    going.close()
    ends = [run(recipe, out=tmp_path / name, device="cpu") for name in ("stopped", "whole")]
    toys.assert_same_bits(*(load_file(next(end.path.glob("checkpoint-*"))) for end in ends))
    assert ends[0].rows == ends[1].rows


def test_a_file_with_a_past_is_a_file_of_the_network_too(dr_er: str, tmp_path: Path) -> None:
    """The same network, another beginning: it is part of the key, and what begins so shares nothing with others."""
    alone = tmp_path / "alone"
    (before,) = (tmp_path / "before" / "toy-shapes").iterdir()
    write_weights(before, alone)
    state, held = load_file(alone), load_file(dr_er)
    assert {name for name in held if not name.startswith("past/")} == set(state)
    assert all(torch.equal(held[name], value) for name, value in state.items())
    recipes = [toy("dr+er", "blue", "red", weights=str(each)) for each in (alone, dr_er)]
    assert key_of(recipes[0], 0) != key_of(recipes[1], 0)
    assert len(keys_of(recipes[0], 0)) == 1 and keys_of(recipes[1], 0) == []
    built = models.build(training_of(recipes[1]).model, 3, dr_er).state_dict()
    assert all(torch.equal(built[name], value) for name, value in state.items())


def test_its_first_domain_is_a_later_one(dr_er: str) -> None:
    fields = {"epochs": 2, "later_epochs": 1, "batch_size": 8}
    assert steps_of(toy("dr+er", "blue", "red", **fields)) == (6, 3)
    assert steps_of(toy("dr+er", "blue", "red", weights=dr_er, **fields)) == (3, 3)


def test_what_was_not_kept_is_told(dr_er: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"Part 'ewc' builds on what it keeps of every domain, and .*dr\+er is of a run of"
    ):
        toy("dr+er+ewc", "blue", weights=dr_er)
    with pytest.raises(UserError, match=r"goes by the mean over all domains, and of red, green .* has 0 in its mean"):
        toy("dr+er", "blue", weights=dr_er, tested_by="domains")
    with pytest.raises(UserError, match="An oracle sees the data of all domains, and those of red, green are gone"):
        toy("oracle-cumulative", "blue", weights=dr_er)
    with pytest.raises(UserError, match="tells 3 classes apart, and here are 10"):
        make_recipe("embedded", "dr", model=training_of(toy("naive", "red")).model, weights=dr_er)
    oracle = run(toy("oracle-all", "red", "green"), out=tmp_path, device="cpu")
    with pytest.raises(UserError, match="is an oracle's"):
        write_weights(oracle.path, tmp_path / "w", past=True)
    going = advance(toy("l2", "red", "green"), out=tmp_path / "half", device="cpu")
    next(going)
    next(progress for progress in going if progress and progress.stage == 1)
    going.close()
    (half,) = (tmp_path / "half" / "toy-shapes").iterdir()
    with pytest.raises(UserError, match="has not ended: 1 of 2 domains have"):
        write_weights(half, tmp_path / "w", past=True)
    assert not (tmp_path / "w").exists()


def test_a_memory_of_images_of_another_size_is_told(own_images: Path, tmp_path: Path) -> None:
    fields = {"root": str(own_images), "steps": 2, "model": "tiny_resnet", "memory_per_domain": 3}
    day = run(make_recipe("folder", "er", order="day", side=16, **fields), out=tmp_path, device="cpu")
    file = left(day.path, tmp_path / "day")
    run(make_recipe("folder", "er", order="fog", tested="day", side=16, weights=file, **fields), out=tmp_path)
    with pytest.raises(UserError, match="The memory of earlier domains has images of 16x16, and these are of 24x24"):
        run(make_recipe("folder", "er", order="fog", side=24, weights=file, **fields), out=tmp_path)


def test_runs_of_a_sweep_and_of_earlier_versions_keep_their_network_alone(tmp_path: Path) -> None:
    done = run(toy("er", "red"), out=tmp_path, device="cpu")
    directory = RunDirectory(tmp_path, done.recipe, 0)
    checkpoint = directory.load()
    network = {name: value for name, value in checkpoint.tensors.items() if name.startswith("model/")}
    position = {name: value for name, value in checkpoint.position.items() if name != "num_classes"}
    directory.save(Checkpoint(position, network))
    directory.settle()
    assert write_weights(done.path, tmp_path / "network").learnt == ("red",)
    swept = Job(toy("er", "red"), 1)
    sweep([swept], out=tmp_path, device="cpu", lanes=1)
    for path in (done.path, RunDirectory(tmp_path, *swept).path):
        with pytest.raises(UserError, match="kept its network alone, as those of a sweep and of earlier versions do"):
            write_weights(path, tmp_path / "w", past=True)


def test_seeds_that_each_go_on_from_their_own_are_one_row(tmp_path: Path) -> None:
    for seed in (0, 1):
        red = run(toy("er", "red"), seed, out=tmp_path / "before", device="cpu").path
        for method in ("er", "er+l2"):
            recipe = toy(method, "blue", tested=("red",), weights=left(red, tmp_path / f"{seed}"))
            run(recipe, seed, out=tmp_path / "after", device="cpu")
    run(toy("er", "blue", tested=("red",)), out=tmp_path / "after", device="cpu")
    groups = group(read_records(tmp_path / "after"))
    assert {sequence: [(each.title, len(each.records)) for each in those] for sequence, those in groups.items()} == {
        "toy-shapes: blue, after er on red, tested on red too": [("ER", 2), ("ER + L2", 2)],
        "toy-shapes: blue, tested on red too": [("ER", 1)],
    }


def test_runs_that_go_on_from_others_are_others(tmp_path: Path) -> None:
    """By what those before were, however far back, and with one seed too."""
    for number, (method, steps) in enumerate((("er", 4), ("er", 9), ("er+l2", 4))):
        first = left(
            run(toy(method, "red", steps=steps), out=tmp_path / "a", device="cpu").path, tmp_path / f"{number}"
        )
        then = run(toy("er", "green", weights=first), out=tmp_path / "b", device="cpu").path
        run(toy("er", "blue", weights=left(then, tmp_path / f"{number}-")), out=tmp_path / "c", device="cpu")
    for folder, past in (("b", ["after er on red", "after er+l2 on red"]), ("c", ["after er on red, green"])):
        records = read_records(tmp_path / folder)
        groups = group(records)
        assert sorted(groups) == [f"toy-shapes: {records[0].order[0]}, {each}" for each in past]
        assert sorted(len(each.records) for those in groups.values() for each in those) == [1, 1, 1]


def test_average_comes_in_by_the_statistics_of_the_last_domain(tmp_path: Path, toys) -> None:
    """Not by the mean that tests went by: as if it had been there and done nothing."""
    ends = []
    for method, fields in (("average", {"past": 0.0}), ("naive", {})):
        first = run(toy(method, "red", "green", tested_by="domains", **fields), out=tmp_path / method, device="cpu")
        weights = left(first.path, tmp_path / f"{method}.safetensors")
        blue = toy("average", "blue", tested_by="domains", past=0.9, weights=weights)
        ends.append(toys.final(tmp_path / method, Job(run(blue, out=tmp_path / method, device="cpu").recipe, 0)))
    toys.assert_same_bits(*ends)


def test_what_a_part_of_one_s_own_keeps(tmp_path: Path) -> None:
    """One number for each weight is no sign of images of another size; who derives from EWC needs what it keeps."""

    @dataclass(frozen=True)
    class Norms(Part):
        name: ClassVar[str] = "norms"

        def end_domain(self, domain: Domain, ctx: Context) -> dict[str, torch.Tensor]:
            return {f"norm.{name}": value.detach().norm() for name, value in ctx.params.items()}

    @dataclass(frozen=True)
    class Mine(EWC):
        name: ClassVar[str] = "mine"

    red = run(dataclasses.replace(toy("naive", "red"), method=(Norms(),)), out=tmp_path, device="cpu")
    weights = ("weights", left(red.path, tmp_path / "red"))
    blue = toy("naive", "blue")
    on = dataclasses.replace(blue, method=(Norms(),), overrides=(*blue.overrides, weights))
    assert run(on, out=tmp_path, device="cpu").rows
    with pytest.raises(UserError, match="Part 'mine' builds on what it keeps of every domain"):
        run(dataclasses.replace(on, method=(Mine(),)), out=tmp_path, device="cpu")


def test_streams_go_on_where_a_part_comes_in(tmp_path: Path) -> None:
    """Else the next domain would be drawn from as the first was."""
    er = left(run(toy("er", "red"), out=tmp_path, device="cpu").path, tmp_path / "er")
    ends = [run(toy(method, "green", weights=er), out=tmp_path, device="cpu").path for method in ("er", "dr+er")]
    streams = [load_file(next(path.glob("checkpoint-*")))["stream/outer"] for path in ends]
    assert torch.equal(*streams)


def test_a_past_that_lost_something_is_refused(dr_er: str, tmp_path: Path) -> None:
    held, file = load_file(dr_er), tmp_path / "changed"
    with safe_open(dr_er, framework="pt") as opened:
        told = opened.metadata()
    without_one = {name: value for name, value in held.items() if name != "past/memory/0/y"}
    for tensors, metadata in ((held, None), (held, {**told, "past": "3"}), (without_one, told)):
        save_file(tensors, file, metadata=metadata)
        with pytest.raises(UserError, match="holds something of a run's past, and does not say what, or not all of it"):
            toy("dr+er", "blue", weights=str(file))
        file.unlink()
    network = {name: value for name, value in held.items() if not name.startswith("past/")}
    save_file(network, file, metadata={"past": "of another program", "classes": "3", "learnt": "imagenet"})
    recipe = toy("dr+er", "blue", weights=str(file))
    assert past_of(training_of(recipe)) is None and beginning(recipe, 0) == ""
    l2 = left(run(toy("l2", "red"), out=tmp_path, device="cpu").path, tmp_path / "l2")
    with safe_open(l2, framework="pt") as opened:
        told = opened.metadata()
    nan = {name: value * torch.nan if "/mean." in name else value for name, value in load_file(l2).items()}
    save_file(nan, file, metadata=told)
    with pytest.raises(UserError, match=r"'part/l2/mean\..*' of what .* has numbers that are not finite. Restore it"):
        run(toy("l2", "blue", weights=str(file)), out=tmp_path, device="cpu")


def test_anchors_of_smaller_images_are_told(own_images: Path, tmp_path: Path) -> None:
    """A network that sees larger ones has weights that no image reached before."""
    fields = {"root": str(own_images), "steps": 1, "batch_size": 2, "model": "resnet18"}
    day = run(make_recipe("folder", "l2", order="day", side=16, **fields), out=tmp_path, device="cpu")
    file = left(day.path, tmp_path / "day")
    with pytest.raises(UserError, match=r"What part 'l2' keeps in .* was made with images of another size"):
        run(make_recipe("folder", "l2", order="fog", side=64, weights=file, **fields), out=tmp_path, device="cpu")


@pytest.fixture
def metadr(tmp_path: Path):
    """The command line: what it says, if all went well."""

    def call(*words: object) -> str:
        said = CliRunner().invoke(app, [*map(str, words)])
        assert said.exit_code == 0, said.output
        return " ".join(said.output.split())

    return call


def test_the_command_says_what_a_run_begins_with(metadr, own_images: Path, tmp_path: Path) -> None:
    run_ = ("run", "folder", "--data", own_images, "--tiny", "--device", "cpu", "--out", tmp_path / "runs")
    words = (*run_, "--method", "er", "--order")
    assert "It goes on" not in metadr(*words, "day,fog") and "It begins" not in metadr(*words, "day,fog")
    (path,) = (tmp_path / "runs" / "folder").iterdir()
    assert "--past brings that too" in metadr("results", "weights", path, "-o", tmp_path / "alone")
    assert "a run goes on from there" in metadr("results", "weights", path, "--past", "-o", tmp_path / "past")
    said = metadr(*words, "rain,fog", "--weights", tmp_path / "past", "--seed", 1, "--dry-run")
    assert "It goes on from what 'er' kept of day, fog, at later_lr. It draws anew, with seed 1 instead of 0." in said
    assert "It learns fog a second time. It is not tested on day (--set tested=)." in said
    said = metadr(*run_, "--order", "rain", "--weights", tmp_path / "past")
    assert "The memory of 16 images is dropped: 'naive' has no use for it." in said
    said = metadr(*words, "rain", "--weights", tmp_path / "alone")
    assert "It begins anew, at lr, with a network that learnt day, fog, and nothing else is kept of these" in said


def test_a_month_without_images_of_a_class(metadr, own_images: Path, tmp_path: Path) -> None:
    """And of which the earlier domains' images are gone but for one test set: nobody has to name that."""
    run_ = ("run", "folder", "--data", own_images, "--tiny", "--device", "cpu", "--out", tmp_path / "runs")
    metadr(*run_, "--order", "day", "--method", "er")
    (path,) = (tmp_path / "runs" / "folder").iterdir()
    metadr("results", "weights", path, "--past", "-o", tmp_path / "day")
    for name in ("day", "rain", "fog/bus"):
        shutil.rmtree(own_images / name)
    go_on = (*run_, "--method", "er", "--weights", tmp_path / "day")
    told = CliRunner().invoke(app, [*map(str, go_on)])
    assert told.exit_code == 1
    assert "tells 3 classes apart, and here are 2 (missing here: bus)" in " ".join(str(told.exception).split())
    metadr(*go_on, "--set", "classes=bike,bus,car")
    shutil.move(own_images / "fog" / "bike", own_images / "day" / "test" / "bus")
    (own_images / "day" / "train").mkdir()
    shutil.copytree(own_images / "fog" / "car", own_images / "fog" / "bike")
    said = metadr(*go_on, "--set", "tested=")
    assert "folder: fog, after er on day method" in said  # and no order has to be named
    said = metadr(*go_on)
    assert "folder: fog, after er on day, tested on day too" in said and "when learnt" in said
    assert "With the domains before: ACC" in said
