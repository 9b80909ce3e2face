"""One run, tested by batch norm's statistics as other policies would have moved them."""

import dataclasses
import json
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest
import torch
from typer.testing import CliRunner

import metadr
from metadr.benchmarks import make_recipe
from metadr.cli import app
from metadr.cli_sweep import _has_own_runs as has_own_runs
from metadr.core import Part, Training
from metadr.errors import UserError
from metadr.parts import EWC, GEM, L2, LwF, MetaDR, Randomize, Replay
from metadr.policies import others_kept, settled
from metadr.recipes import Row, Table, get_table
from metadr.report import Record, compare, read_records
from metadr.report.records import pack_records, unpack_records
from metadr.report.write import write_report
from metadr.sequence import BY_PASSES
from metadr.store import description, recipe_from_identity
from metadr.sweep import Job

OTHERS = ("all", "clean", "inner+clean")  # Meta-DR's own is that of the simulated pass
METHODS = {
    "meta-dr": (MetaDR(),),
    "er+meta-dr": (Replay(), MetaDR()),
    "gem+meta-dr": (GEM(), MetaDR()),
    "adapt alone": (MetaDR(recall=0.0),),
}


def trained(toy, out, *parts, **settings):
    recipe = toy.recipe(*parts, overrides=tuple({"steps": 4, **settings}.items()))
    metadr.run(recipe, out=out, device="cpu")
    (record,) = read_records(out)
    return record


@dataclass(frozen=True)
class Unsaid(Part):
    """A part that does not say which passes it has."""


@dataclass(frozen=True)
class Simulating(Part):
    """A part of one's own with a simulated step."""

    passes: ClassVar[tuple[str, ...]] = ("inner",)


@dataclass(frozen=True)
class SimulatingLater(Part):
    """One that has it from the second domain on: on the first nothing would move statistics."""

    passes: ClassVar[tuple[str, ...]] = ("inner",)
    needs_a_past: ClassVar[bool] = True


@dataclass(frozen=True)
class Derived(MetaDR):
    """Made from one that says which passes it has, which is not inherited."""


@pytest.mark.parametrize(
    ("parts", "passes"),
    [
        ((), "memory+clean"),
        ((Randomize(), Replay()), "memory+clean"),
        ((GEM(), Randomize()), "memory+clean"),
        ((Unsaid(),), "all"),  # as it always was: its finished runs have that key
        ((Unsaid(), MetaDR()), "memory+inner"),
        ((Simulating(),), "memory+inner"),
        ((SimulatingLater(),), "memory+clean"),
        ((SimulatingLater(), MetaDR()), "memory+inner"),
        ((Derived(),), "all"),
        ((MetaDR(),), "memory+inner"),
        ((Replay(), MetaDR()), "memory+inner"),
        ((Randomize(), MetaDR(adapt=0.0)), "memory+inner"),
        ((MetaDR(recall=0.0, adapt=0.0),), "memory+clean"),
    ],
)
def test_first_is_the_simulated_pass_or_else_the_clean_one(parts, passes):
    assert settled(Training(), parts).batch_norm == passes
    assert settled(Training(batch_norm="all"), parts).batch_norm == "all"
    assert settled(Training(batch_norm="inner"), parts) == Training(batch_norm="inner")


@pytest.mark.parametrize(
    ("method", "as_ever"),
    [
        ("naive", "all"),
        ("dr+er", "all"),
        ("gem", "all"),
        ("l2+dr", "clean"),
        ("meta-dr", "inner"),
        ("gem+meta-dr", "memory+inner"),
    ],
)
def test_first_has_the_key_of_the_policy_that_it_means(method, as_ever):
    """What was run before there was 'first' counts where it was trained so."""
    usual, named = make_recipe("embedded", method), make_recipe("embedded", method, batch_norm=as_ever)
    assert description(usual) == description(named)
    assert recipe_from_identity(json.loads(json.dumps(description(named)))) == usual
    assert description(usual) != description(make_recipe("embedded", method, batch_norm="none"))


@pytest.mark.parametrize("name", METHODS)
def test_a_run_is_tested_by_each_policy_as_if_it_had_been_its_own(name, registered_toys, tmp_path):
    toy, parts = registered_toys["segmentation"], METHODS[name]
    usual, first = trained(toy, tmp_path / "usual", *parts), settled(Training(), parts).batch_norm
    finals = {usual.scores[-1][0]}
    for policy in OTHERS:
        own = trained(toy, tmp_path / policy, *parts, batch_norm=policy)
        found = usual.tested_by(policy)
        assert found.scores[-1] == own.scores[-1]
        assert found.scores[:-1] == usual.scores[:-1] and found.identity == usual.identity
        assert own.tested_by(policy) == own
        back = own.tested_by(first)  # of GEM's memories, whose passes begin on the second domain, none are kept
        assert back is None if name == "gem+meta-dr" else back.scores[-1] == usual.scores[-1]
        (as_own,) = [each for each in usual.of_other_policies if each.scores[-1] == own.scores[-1]][:1]
        assert recipe_from_identity(as_own.identity) == recipe_from_identity(own.identity)
        assert as_own.read_from is usual
        finals.add(own.scores[-1][0])
    assert len(finals) > 2  # they do differ


@pytest.mark.parametrize("parts", METHODS.values(), ids=METHODS)
def test_what_is_kept_beside_goes_on_from_a_checkpoint_to_the_same_bits(parts, toy, toys):
    whole, first, second = (toy.on_second_domain(toy.learner(*parts)) for _ in range(3))
    whole.steps(4)
    first.steps(2)
    stored = first.state()
    second.load({name: stored[name].clone() for name in sorted(stored)})  # a file has them in another order
    second.steps(2)
    assert set(OTHERS) <= {*whole.network.beside} | {"all"} and len(whole.network.beside) >= len(OTHERS)
    for policy, running in whole.network.beside.items():
        toys.assert_same_bits(second.network.beside[policy], running)
        assert not all(torch.equal(value, running[name]) for name, value in whole.network.norms.copy().items())


def test_the_run_itself_is_the_same_bits(toy, toys):
    """What is kept beside moves nothing else."""
    plain, usual = toy.learner(MetaDR(), tested_by="batch"), toy.learner(MetaDR())
    assert not plain.network.beside and usual.network.beside
    for learner in (plain, usual):
        toy.on_second_domain(learner).steps(2)
    mine, theirs = plain.state(), usual.state()
    toys.assert_same_bits(mine, {name: theirs[name] for name in mine})
    assert {name.partition("/")[0] for name in theirs.keys() - mine.keys()} == {"beside"}


def test_a_checkpoint_of_an_earlier_version_ends_untested_by_them(toy):
    learner, older = (toy.on_second_domain(toy.learner(MetaDR())) for _ in range(2))
    learner.load({name: value for name, value in older.state().items() if not name.startswith("beside/")})
    assert learner.network.beside == {}
    learner.steps(1)


@pytest.mark.parametrize(
    "parts", [(), (Randomize(),), (L2(), EWC(), LwF()), (Replay(),), (GEM(),)], ids=lambda parts: len(parts)
)
def test_methods_with_one_kind_of_pass_have_one_policy(parts, toy):
    assert others_kept(toy.training(), parts) == ()
    assert not toy.learner(*parts).network.beside


@pytest.mark.parametrize(
    "settings",
    [{"tested_by": "batch"}, {"tested_by": "domains"}, {"later_norm": "fixed"}, {"kept_epoch": "best", "epochs": 1}],
    ids=lambda settings: next(iter(settings)),
)
def test_where_training_or_tests_go_by_statistics_none_are_kept_beside(settings, toy):
    assert others_kept(toy.training(**settings), (MetaDR(),)) == ()


def test_methods_of_one_pass_are_read_as_they_are_by_any_policy(registered_toys, tmp_path):
    record = trained(registered_toys["classification"], tmp_path, Randomize())
    assert record.tested_by("inner") is record and record.of_other_policies == []
    assert not any(BY_PASSES in row for row in record.rows)


def test_records_keep_them_in_files(registered_toys, tmp_path):
    record = trained(registered_toys["classification"], tmp_path / "runs", MetaDR())
    (packed,) = unpack_records(json.loads(pack_records([record])))
    assert [row[BY_PASSES] for row in packed.last_rows] == [row[BY_PASSES] for row in record.last_rows]
    write_report([record], tmp_path / "report")
    (written,) = read_records(tmp_path / "report.json")
    assert written == record


def test_records_of_masks_keep_classes_and_matrices_of_the_last_test(registered_toys, tmp_path):
    record = trained(registered_toys["segmentation"], tmp_path)
    (packed,) = unpack_records(json.loads(pack_records([record])))
    assert packed.last_rows == record.last_rows
    assert all({"iou", "confusion", "micro", "suite"} <= set(row) for row in packed.last_rows)
    assert not any("confusion" in row for row in packed.rows[:-3])  # only of the last: files stay small


def of(recipe, value: float, beside: dict[str, float], seed: int = 0) -> Record:
    """A run with one score everywhere, and others by what it kept."""
    rows = [
        {"after": after, "on": on, "metric": "accuracy", "value": value, "images": 100}
        for after in ("untrained", *recipe.order)
        for on in recipe.order
    ]
    for row in rows[-len(recipe.order) :] if beside else ():
        row[BY_PASSES] = beside
    environment = {"gpu": "abacus", "threads": 2, "torch": "2.0", "metadr": "0.1", "commit": "c0ffee", "dirty": False}
    identity = json.loads(json.dumps({**description(recipe), "data": "pixels", "seed": seed}))
    return Record(identity, environment, 36.0, rows)


def test_rows_of_a_grid_share_runs():
    """Sixteen points with three seeds are four recipes to train."""
    table = get_table("calibration3n")
    assert len(table.rows) == len(table.read.recipes) == 16
    assert len(table.recipes) == 4
    recall = [row for row in table.rows if row.title.startswith("recall, one a batch")]
    assert [row.by for row in recall] == ["all", "clean", "inner+clean", ""]
    (recipe,) = {each for row in recall for each in row.recipes}
    own = recall[1].read.recipes[0]  # trained by 'clean', as earlier versions did
    runs = [of(recipe, 50.0, {"all": 52.0, "clean": 51.0, "inner+clean": 53.0}), of(own, 54.0, {}, seed=1)]
    made = compare(table, runs)
    values = {row.by: made.cells[row.title, "MNIST"].values for row in recall}
    assert values == {"": (50.0,), "all": (52.0,), "clean": (51.0, 54.0), "inner+clean": (53.0,)}
    assert made.records == runs  # each once, as it was trained
    again = compare(table, unpack_records(json.loads(pack_records(made.records))))
    assert again.cells == made.cells


def test_a_run_of_its_own_goes_before_what_another_kept():
    table = get_table("calibration3n")
    usual, clean = (row.read.recipes[0] for row in table.rows[:2])
    made = compare(table, [of(usual, 50.0, {"clean": 51.0}), of(clean, 54.0, {"all": 55.0})])
    assert made.cells[table.rows[1].title, "MNIST"].values == (54.0,)
    assert made.cells[table.rows[0].title, "MNIST"].values == (50.0,)


def test_rows_have_runs_of_their_own_where_none_would_keep_their_policy():
    table = get_table("calibration3n")
    changed = table.changed(
        lambda recipe: dataclasses.replace(recipe, overrides=(*recipe.overrides, ("later_norm", "fixed")))
    )
    assert {row.by for row in changed.rows} == {""}
    assert len(changed.recipes) == 16


def test_rows_have_runs_of_their_own_where_a_finished_run_is_too_old_to_have_kept_their_policy(
    registered_toys, tmp_path
):
    toy = registered_toys["classification"]
    recipe = toy.recipe(MetaDR())
    rows = (Row("usual", (recipe,), 2), Row("by the clean pass", (recipe,), 2, by="clean"))
    own_runs = partial(has_own_runs, tmp_path, set())
    assert len(Table("toy", "", rows).with_own_runs(own_runs).recipes) == 1  # nothing is finished
    finished = metadr.run(recipe, out=tmp_path, device="cpu").path
    assert len(Table("toy", "", rows).with_own_runs(own_runs).recipes) == 1
    older = json.loads((finished / "rows.json").read_text())
    for row in older:
        row.pop(BY_PASSES, None)
    (finished / "rows.json").write_text(json.dumps(older))
    own = Table("toy", "", rows).with_own_runs(own_runs)
    assert [dict(each.overrides).get("batch_norm") for each in own.recipes] == [None, "clean"]


def test_what_has_been_run_or_is_to_be_run_by_a_policy_is_not_run_again_by_another(registered_toys, tmp_path):
    """Such as Meta-DR as it was first read, which is published, and is a row of other tables of the sweep."""
    toy = registered_toys["classification"]
    recipe = toy.recipe(MetaDR())
    as_first_read = dataclasses.replace(recipe, overrides=(("batch_norm", "all"),))
    table = Table("toy", "", (Row("usual", (recipe,)), Row("by all passes", (recipe,), 2, by="all")))
    shared, own = table.recipes, table.read.recipes
    assert shared == (recipe,) and own == (recipe, as_first_read)
    planned = {Job(recipe, 0), Job(as_first_read, 0)}
    assert table.with_own_runs(partial(has_own_runs, tmp_path, planned)).recipes == shared  # one seed of two
    assert table.with_own_runs(partial(has_own_runs, tmp_path, {*planned, Job(as_first_read, 1)})).recipes == own
    metadr.run(as_first_read, out=tmp_path, device="cpu")
    assert table.with_own_runs(partial(has_own_runs, tmp_path, set())).recipes == own
    for seed in (0, 1):
        metadr.run(recipe, seed=seed, out=tmp_path, device="cpu")
    assert table.with_own_runs(partial(has_own_runs, tmp_path, set())).recipes == shared


def test_published_runs_that_kept_none_are_missing_by_other_policies():
    """Naive has one policy and stays; Meta-DR's rows of an earlier version are left out, and the table says so."""
    ended = CliRunner().invoke(app, ["report", "table3", "--tested-by", "inner"])
    assert ended.exit_code == 0
    naive, *others = [line for line in ended.output.splitlines() if "| ours |" in line]
    assert "missing" not in naive
    assert len(others) == 3 and all(line.count("missing") == 4 for line in others)
    assert "as passes 'inner' alone move them" in ended.output


def test_a_table_of_such_runs_alone_is_refused_by_other_policies():
    ended = CliRunner().invoke(app, ["report", "table8", "--tested-by", "inner"])
    assert isinstance(ended.exception, UserError)
    assert "None of 9 runs was tested by the statistics of 'inner'" in str(ended.exception)
    assert "Leave --tested-by out, or run them again." in str(ended.exception)
