"""Run directories: what a key depends on, what a write leaves behind, which checkpoints stay."""

import dataclasses
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import metadr
from metadr import store
from metadr.benchmarks import BENCHMARKS, make_recipe
from metadr.core import Benchmark, Recipe, Task, Training
from metadr.files import write_file
from metadr.parts import PARTS
from metadr.store import (
    Checkpoint,
    RunDirectory,
    description,
    finished_runs,
    identity,
    key_of,
    recipe_from_identity,
    whole_training,
)
from metadr.transforms import TRANSFORMS


def unread(name: str) -> typing.NoReturn:
    raise AssertionError("a key needs no data")


def benchmark(**changes: Any) -> Benchmark:
    settings: dict[str, Any] = {
        "name": "toy",
        "about": "no data",
        "task": Task(num_classes=3),
        "domains": ("a", "b"),
        "protocols": {"ab": ("a", "b")},
        "load": unread,
        "fingerprint": "toy 1",
        "training": Training(model="tiny_resnet", steps=4),
    }
    return Benchmark(**{**settings, **changes})


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BENCHMARKS, "toy", benchmark())


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    made = RunDirectory(tmp_path, metadr.recipe("toy"), 0)
    made.path.mkdir(parents=True)
    return made


def other(owner: type, name: str, value: Any) -> Any:
    """A value that the field allows, and that is not the one it has."""
    special: dict[str, Any] = {
        "transforms": "psi1",
        "model": "small_resnet",
        "batch_norm": "clean",
        "weights": "imagenet",
    }
    special |= {"norm_momentum": 0.5, "past": 0.5}
    if name in special:
        return special[name]
    if value is None:
        return 7
    hint = typing.get_type_hints(owner)[name]
    if typing.get_origin(hint) is Literal:
        return next(option for option in typing.get_args(hint) if option != value)
    return (not value) if isinstance(value, bool) else value + 1


PART_FIELDS = [f"{name}.{field.name}" for name, part in PARTS.items() for field in dataclasses.fields(part)]
# Weights are known by their content: tests/unit/test_weights.py.
TRAINING_FIELDS = [field.name for field in dataclasses.fields(Training) if field.name != "weights"]


def with_part(name: str, **fields: Any) -> Recipe:
    if PARTS[name].uses_memory:
        fields["memory_per_domain"] = 5
    return metadr.recipe("toy", name, **fields)


@pytest.mark.parametrize("name", PART_FIELDS)
def test_the_key_depends_on_every_field_of_every_part(name: str) -> None:
    part, _, field = name.partition(".")
    before = with_part(part)
    after = with_part(part, **{field: other(PARTS[part], field, getattr(before.method[0], field))})
    assert before != after
    assert key_of(before, 0) != key_of(after, 0)


@pytest.mark.parametrize("field", TRAINING_FIELDS)
def test_the_key_depends_on_every_field_of_training(field: str) -> None:
    value = other(Training, field, getattr(BENCHMARKS["toy"].training, field))
    needed = {"epochs": 3} if field in ("later_epochs", "kept_epoch") else {}
    method = "meta-dr" if field == "batch_norm" else "naive"
    before, after = (metadr.recipe("toy", method, **needed, **change) for change in ({}, {field: value}))
    assert key_of(before, 0) != key_of(after, 0)


def test_policies_of_batch_norm_that_are_one_have_one_key() -> None:
    """A method without passes of its own has the clean one alone, GEM its memories' beside it."""
    passes = ("all", "clean", "clean+recall+adapt", "inner+clean+recall+adapt", "inner+adapt", "memory", "none")
    for method, keys in (("naive", 2), ("dr+er+ewc+l2+lwf", 2), ("gem", 4), ("meta-dr", 5), ("gem+meta-dr", 7)):
        assert len({key_of(metadr.recipe("toy", method, batch_norm=each), 0) for each in passes}) == keys


@pytest.mark.parametrize("method", ["gem", "gem+meta-dr", "gem+rehearsal"])
def test_what_was_all_before_memories_counted_keeps_its_name(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rehearsal(metadr.Part):
        name = "rehearsal"

    monkeypatch.setitem(PARTS, "rehearsal", Rehearsal)
    policy = identity(metadr.recipe("toy", method), 0)["training"]["batch_norm"]
    assert policy.startswith("memory+")
    assert recipe_from_identity(identity(metadr.recipe("toy", method), 0)) == metadr.recipe("toy", method)


def test_a_part_of_one_s_own_may_make_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Rehearsal(metadr.Part):
        name = "rehearsal"

    class Extended(metadr.Randomize):
        """Made from one that has none."""

        name = "extended"

    for part in (Rehearsal, Extended):
        monkeypatch.setitem(PARTS, part.name, part)
        keys = {key_of(metadr.recipe("toy", part.name, batch_norm=each), 0) for each in ("all", "clean")}
        assert len(keys) == 2


def test_a_run_from_before_policies_were_one_is_read_as_what_it_is() -> None:
    content = identity(metadr.recipe("toy", "dr"), 0)
    older = {**content, "training": {**content["training"], "batch_norm": "all"}}
    assert whole_training(older) == whole_training(content)
    assert recipe_from_identity(older) == metadr.recipe("toy", "dr")
    of_meta_dr = {**older, "method": identity(metadr.recipe("toy", "meta-dr"), 0)["method"]}
    assert whole_training(of_meta_dr)["batch_norm"] == "all"


@pytest.mark.parametrize(
    "changes",
    [{"order": ("b", "a")}, {"order": ("a",)}, {"memory_per_domain": 6}, {"memory_choice": "first"}, {"access": "all"}],
    ids=str,
)
def test_the_key_depends_on_the_recipe(changes: dict[str, Any]) -> None:
    before = with_part("er")
    assert key_of(before, 0) != key_of(dataclasses.replace(before, **changes), 0)


def test_every_field_of_a_recipe_is_in_its_identity() -> None:
    """A field that is added to Recipe and forgotten here would let different runs share a folder."""
    stated = set(identity(metadr.recipe("toy", order=("a",), tested=("b",)), 0)) - {"format", "seed", "training"}
    assert stated == {field.name for field in dataclasses.fields(Recipe)} - {"overrides"}


def test_the_key_depends_on_what_is_tested_and_older_keys_hold() -> None:
    alone = metadr.recipe("toy", order=("a",))
    assert "tested" not in identity(alone, 0)
    assert key_of(alone, 0) != key_of(dataclasses.replace(alone, tested=("b",)), 0)


def test_the_key_depends_on_the_seed() -> None:
    assert len({key_of(metadr.recipe("toy"), seed) for seed in range(20)}) == 20


def test_the_key_depends_on_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key_of(metadr.recipe("toy", "dr+ewc"), 0)}
    monkeypatch.setattr(metadr.EWC, "revision", metadr.EWC.revision + 1)
    keys.add(key_of(metadr.recipe("toy", "dr+ewc"), 0))
    newer = dataclasses.replace(TRANSFORMS["rotate"], revision=TRANSFORMS["rotate"].revision + 1)
    monkeypatch.setitem(TRANSFORMS, "rotate", newer)
    keys.add(key_of(metadr.recipe("toy", "dr+ewc"), 0))
    monkeypatch.setattr(store, "FORMAT", store.FORMAT + 1)
    keys.add(key_of(metadr.recipe("toy", "dr+ewc"), 0))
    assert len(keys) == 4


def test_the_key_depends_on_the_data_and_on_the_benchmark_s_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {key_of(metadr.recipe("toy", "dr"), 0)}
    for changes in (
        {"fingerprint": "toy 2"},
        {"training": Training(model="tiny_resnet", steps=5)},
        {"part_defaults": {"dr": {"transforms": "psi1"}}},
    ):
        monkeypatch.setitem(BENCHMARKS, "toy", benchmark(**changes))
        keys.add(key_of(metadr.recipe("toy", "dr"), 0))
    assert len(keys) == 4


def test_runs_from_before_there_was_a_choice_of_precision_keep_their_keys() -> None:
    old = "495a17531d88"  # made by commit 18d719d, before both fields
    assert key_of(metadr.recipe("toy"), 0) == old
    assert key_of(metadr.recipe("toy", precision="fp32", deterministic=True), 0) == old
    keys = {
        key_of(metadr.recipe("toy", precision=precision, deterministic=deterministic), 0)
        for precision in ("fp32", "tf32", "bf16")
        for deterministic in (True, False)
    }
    assert len(keys) == 6


def test_the_key_does_not_depend_on_how_a_recipe_is_written() -> None:
    key = key_of(metadr.recipe("toy", "er+dr+ewc", memory_per_domain=5, lr=1.0), 0)
    assert key == key_of(metadr.recipe("toy/ab", "ewc+er+dr", memory_per_domain="5", lr=1), 0)
    assert key == key_of(metadr.recipe("toy", "dr+ewc+er", memory_per_domain=5, lr="1e0", steps=4), 0)
    parts = (metadr.EWC(), metadr.Replay(), metadr.Randomize())
    assert key == key_of(Recipe("toy", ("a", "b"), parts, memory_per_domain=5, overrides=(("lr", 1),)), 0)


def test_the_key_is_the_same_in_another_process() -> None:
    recipe = "metadr.recipe('embedded', 'er+meta-dr', inner_lr=0.1 + 0.2)"
    code = f"import metadr; from metadr.store import key_of; print(key_of({recipe}, 3))"
    source = str(Path(metadr.__file__).resolve().parents[1])
    env = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": source}  # another order of every set
    there = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert there.strip() == key_of(metadr.recipe("embedded", "er+meta-dr", inner_lr=0.1 + 0.2), 3)


def test_the_identity_survives_json() -> None:
    before = identity(metadr.recipe("toy", "er+meta-dr+gem", memory_per_domain=5), 0)
    assert json.loads(json.dumps(before)) == before


METHODS = [
    "naive",
    *PARTS,
    "dr+er+ewc+gem+l2+meta-dr",
    "oracle-all",
    "oracle-cumulative+dr",
]


@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_comes_back_from_its_identity(method: str) -> None:
    changes: dict[str, Any] = {"lr": 0.1 + 0.2, "order": ("b", "a"), "limit": 7, "memory_choice": "first"}
    memory = {"memory_per_domain": 5} if {"er", "gem"} & set(method.split("+")) else {}
    for fields in ({}, changes, {"precision": "bf16", "deterministic": False, "batch_norm": "none"}):
        before = metadr.recipe("toy", method, **{**fields, **memory})
        after = recipe_from_identity(json.loads(json.dumps(identity(before, 3))))
        assert after == before
        assert key_of(after, 3) == key_of(before, 3)


def test_domains_that_are_only_tested_on_come_back_from_the_identity() -> None:
    before = metadr.recipe("toy", "dr", order=("b",), tested=("a",))
    assert recipe_from_identity(json.loads(json.dumps(identity(before, 3)))) == before


@pytest.mark.parametrize("name", PART_FIELDS)
def test_every_field_of_every_part_comes_back_from_the_identity(name: str) -> None:
    part, _, field = name.partition(".")
    before = with_part(part, **{field: other(PARTS[part], field, getattr(with_part(part).method[0], field))})
    assert recipe_from_identity(json.loads(json.dumps(identity(before, 0)))) == before


def test_a_recipe_comes_back_with_the_values_that_it_was_run_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults that have changed since are no part of it; the key tells that something has."""
    content = identity(metadr.recipe("toy", "dr"), 0)
    monkeypatch.setitem(BENCHMARKS, "toy", benchmark(training=Training(model="small_resnet", steps=9)))
    after = recipe_from_identity(content)
    assert dict(after.overrides) == {"model": "tiny_resnet", "steps": 4}
    assert identity(after, 0) == content


def test_an_identity_of_what_is_not_known_here_is_refused() -> None:
    content = identity(metadr.recipe("toy", "dr"), 0)
    with pytest.raises(metadr.UserError, match="No part 'dream'"):
        recipe_from_identity({**content, "method": [{**content["method"][0], "part": "dream"}]})
    with pytest.raises(metadr.UserError, match=r"No benchmark 'toys'\. Closest: 'toy'"):
        recipe_from_identity({**content, "benchmark": "toys"})
    with pytest.raises(metadr.UserError, match="No field 'warmth' in Training"):
        recipe_from_identity({**content, "training": {**content["training"], "warmth": 1}})


def refuse(*_: object, **__: object) -> typing.NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt(*_: object, **__: object) -> typing.NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["metadr.files.os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    write_file(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(place, refuse)
        with pytest.raises(metadr.UserError, match=r"Cannot write .*rows\.json: No space left on device"):
            write_file(path, b"new and longer")
    assert [file.name for file in tmp_path.iterdir()] == ["rows.json"]
    assert path.read_bytes() == b"old"
    write_file(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_write_that_is_interrupted_leaves_the_old_file_and_the_leftover_of_a_kill_goes_with_the_next_claim(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write("rows.json", ["old"])
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupt)
        with pytest.raises(KeyboardInterrupt):
            directory.write("rows.json", ["new"])
    assert directory.read("rows.json") == ["old"]
    assert not list(directory.path.glob("*.part"))
    (directory.path / "rows.json.part").write_text('["ne')
    with directory.claimed():
        assert not list(directory.path.glob("*.part"))
        assert directory.read("rows.json") == ["old"]


def test_a_new_name_appears_only_when_its_content_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reader sees at the moment of the sync: the old file under its name, the new one under another."""
    path = tmp_path / "rows.json"
    path.write_bytes(b"old")
    seen: list[dict[str, bytes]] = []
    sync: Callable[[int], None] = os.fsync

    def look(handle: int) -> None:
        seen.append({re.sub(r"\w+\.part$", "part", file.name): file.read_bytes() for file in tmp_path.iterdir()})
        sync(handle)

    monkeypatch.setattr("metadr.files.os.fsync", look)
    write_file(path, b"new")
    assert seen == [{"rows.json": b"old", "rows.json.part": b"new"}, {"rows.json": b"new"}]


def test_two_who_write_one_file_at_once_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As do two processes that end one sweep: their reports have the same names."""
    path, replace = tmp_path / "table.md", Path.replace

    def after_the_other(part: Path, target: Path) -> Path:
        patch.undo()
        write_file(path, b"theirs")
        assert path.read_bytes() == b"theirs"
        return replace(part, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", after_the_other)
        write_file(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reading_that_is_the_usual_one_is_not_told() -> None:
    usual = make_recipe("digits/p1", "naive")
    assert description(dataclasses.replace(usual, data=(("resize", "lanczos"),))) == description(usual)
    padded = description(dataclasses.replace(usual, data=(("resize", "pad"),)))
    assert padded == {**description(usual), "reading": {"resize": "pad"}}


def moment(step: int) -> Checkpoint:
    return Checkpoint({"step": step}, {"model/x": torch.full((3,), float(step)), "stream": torch.arange(5)})


def test_only_the_newest_two_checkpoints_stay(directory: RunDirectory) -> None:
    for step in range(12):
        directory.save(moment(step))
        loaded = directory.load()
        assert loaded is not None
        assert loaded.position == {"key": directory.key, "step": step}
        assert torch.equal(loaded.tensors["model/x"], torch.full((3,), float(step)))
        assert loaded.tensors["stream"].dtype == torch.int64
    assert [path.name[:17] for path in directory.checkpoints()] == ["checkpoint-000012", "checkpoint-000011"]


def test_of_a_finished_run_the_newest_checkpoint_stays(directory: RunDirectory) -> None:
    for step in (1, 2):
        directory.save(moment(step))
    directory.settle()
    directory.keep_newest()
    loaded = directory.load()
    assert loaded is not None and loaded.position["step"] == 2
    assert [path.name[:17] for path in directory.checkpoints()] == ["checkpoint-000002"]


def test_a_checkpoint_that_cannot_be_written_costs_no_other(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(3):
        directory.save(moment(step))
    directory.settle()
    before = {path.name: path.read_bytes() for path in directory.path.iterdir()}
    monkeypatch.setattr("metadr.files.os.fsync", refuse)
    with pytest.raises(metadr.UserError, match="Nothing written before is lost"):
        directory.save(moment(3))
        directory.settle()
    assert {path.name: path.read_bytes() for path in directory.path.iterdir()} == before
    directory.settle()  # it has been told


def test_a_checkpoint_holds_the_moment_when_it_was_taken(directory: RunDirectory) -> None:
    """However long its writing takes: training goes on in the same tensors."""
    weights = torch.zeros(1 << 20)
    for step in range(5):
        weights.fill_(step)
        directory.save(Checkpoint({"step": step}, {"model/x": weights}))
        weights.fill_(-1)
        loaded = directory.load()
        assert loaded is not None
        assert loaded.tensors["model/x"].unique().tolist() == [step]


def test_a_forked_process_writes_checkpoints_of_its_own(directory: RunDirectory) -> None:
    directory.save(moment(1))
    directory.settle()
    child = os.fork()
    if child == 0:
        directory.save(moment(2))
        directory.settle()
        os._exit(0)
    deadline = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child waits for a thread that stayed with its parent")
        time.sleep(0.02)
    loaded = directory.load()
    assert loaded is not None
    assert loaded.position["step"] == 2


def test_a_run_is_not_let_go_of_before_its_checkpoint_is_written(directory: RunDirectory) -> None:
    with directory.claimed():
        directory.save(moment(7))
    assert len(list(directory.path.glob("checkpoint-*"))) == 1


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.save(moment(1))
    directory.save(moment(2))
    directory.settle()
    newest, older = directory.checkpoints()
    newest.write_bytes(newest.read_bytes()[:-1])
    loaded = directory.load()
    assert loaded is not None
    assert loaded.position["step"] == 1
    assert caplog.messages == [f"{newest} is damaged (its hash differs): trying the one before it."]
    older.write_bytes(b"")
    assert directory.load() is None
    assert caplog.messages[-1] == f"No checkpoint in {directory.path} is whole: starting afresh."
    directory.save(moment(3))
    loaded = directory.load()
    assert loaded is not None
    assert loaded.position["step"] == 3


def test_a_damaged_checkpoint_is_not_kept_in_the_place_of_a_whole_one(directory: RunDirectory) -> None:
    for step in (1, 2):
        directory.save(moment(step))
    directory.settle()
    damaged = directory.checkpoints()[0]
    damaged.write_bytes(b"")
    assert directory.load() is not None
    directory.save(moment(3))
    directory.settle()
    directory.checkpoints()[0].write_bytes(b"")
    loaded = directory.load()
    assert loaded is not None
    assert loaded.position["step"] == 1


def test_a_run_that_goes_on_elsewhere_says_so(directory: RunDirectory) -> None:
    here, there = {"torch": "2.11", "gpu": None}, {"torch": "2.15", "gpu": None}
    directory.goes_on_with(here)  # of a run that has no such file nothing is made up
    assert not (directory.path / "environment.json").exists()
    directory.write("environment.json", {**here, "data": {"toy": "1"}})
    for now, known in ((here, []), (there, [there]), (there, [there]), (here, [there, here])):
        directory.goes_on_with(now)
        assert directory.read("environment.json").get("resumed", []) == known


def test_a_fresh_run_has_no_checkpoint_and_no_warning(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    assert directory.load() is None
    assert not caplog.messages
    assert not directory.finished


def test_a_claim_is_exclusive_and_ends_with_its_block(directory: RunDirectory) -> None:
    with directory.claimed():
        assert directory.read("recipe.json") == directory.identity
        with pytest.raises(metadr.UserError, match=f"is being run by process {os.getpid()}"), directory.claimed():
            raise AssertionError("claimed twice")
    with directory.claimed():
        pass
    with pytest.raises(ZeroDivisionError), directory.claimed():
        raise ZeroDivisionError
    with directory.claimed():
        assert (directory.path / "lock").read_text() == str(os.getpid())


def test_finished_runs_are_those_with_the_last_file_written(tmp_path: Path) -> None:
    for name, files in {
        "whole": ("rows.json", "done.json"),
        "going": ("rows.json",),
        "odd": ("done.json",),
        "deep/er": ("rows.json", "done.json"),
    }.items():
        (tmp_path / name).mkdir(parents=True)
        for file in files:
            (tmp_path / name / file).write_text("[]")
    assert finished_runs(tmp_path) == [tmp_path / "deep/er", tmp_path / "whole"]
    assert finished_runs(tmp_path / "whole") == [tmp_path / "whole"]


@pytest.mark.parametrize(
    ("benchmark", "field", "value"),
    [("digits", "num_val", 5), ("pacs", "resize", "crop"), ("vkitti2", "size", "416x128"), ("vkitti2", "cameras", "0")],
)
def test_how_data_were_read_is_part_of_a_run_and_where_they_lie_is_not(
    benchmark: str, field: str, value: object, tmp_path: Path
) -> None:
    usual, other = description(make_recipe(benchmark)), description(make_recipe(benchmark, **{field: value}))
    assert "reading" not in usual, "the keys of older runs hold"
    assert other == {**usual, "reading": {field: value}}
    again = recipe_from_identity(other)
    assert dict(again.data) == {field: value} and description(again) == other
    if benchmark == "vkitti2":
        assert description(make_recipe(benchmark, root=str(tmp_path))) == usual
