"""Keys and identities of runs: what they depend on, and that a recipe comes back from them."""

import dataclasses
import json
import os
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any, Literal

import pytest

import metadr
from metadr import store
from metadr.benchmarks import BENCHMARKS, make_recipe
from metadr.core import Benchmark, Recipe, Training
from metadr.parts import PARTS
from metadr.store import (
    description,
    identity,
    key_of,
    recipe_from_identity,
    whole_training,
)
from metadr.transforms import TRANSFORMS


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


# Weights are known by their content: tests/unit/weights/test_runs.py.
TRAINING_FIELDS = [field.name for field in dataclasses.fields(Training) if field.name != "weights"]


def with_part(name: str, **fields: Any) -> Recipe:
    if PARTS[name].uses_memory:
        fields["memory_per_domain"] = 5
    return metadr.recipe("toy", name, **fields)


# Keys.


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


def test_the_key_depends_on_the_data_and_on_the_benchmark_s_own_settings(
    toy: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {key_of(metadr.recipe("toy", "dr"), 0)}
    for changes in (
        {"fingerprint": "toy 2"},
        {"training": Training(model="tiny_resnet", steps=5)},
        {"part_defaults": {"dr": {"transforms": "psi1"}}},
    ):
        monkeypatch.setitem(BENCHMARKS, "toy", dataclasses.replace(toy, **changes))
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


# Identities.


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


def test_a_recipe_comes_back_with_the_values_that_it_was_run_with(
    toy: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defaults that have changed since are no part of it; the key tells that something has."""
    content = identity(metadr.recipe("toy", "dr"), 0)
    monkeypatch.setitem(BENCHMARKS, "toy", dataclasses.replace(toy, training=Training(model="small_resnet", steps=9)))
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


def test_a_reading_that_is_the_usual_one_is_not_told() -> None:
    usual = make_recipe("digits/p1", "naive")
    assert description(dataclasses.replace(usual, data=(("resize", "lanczos"),))) == description(usual)
    padded = description(dataclasses.replace(usual, data=(("resize", "pad"),)))
    assert padded == {**description(usual), "reading": {"resize": "pad"}}


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
