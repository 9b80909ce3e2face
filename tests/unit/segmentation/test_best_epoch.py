"""The best epoch of a domain, by images held out, is what a run goes on with, also where it was stopped."""

import dataclasses
import itertools

import pytest

from metadr import benchmarks
from metadr.benchmarks import make_recipe
from metadr.core import Domain, Split
from metadr.engine.network import Network
from metadr.errors import UserError
from metadr.evaluate import confusion, score
from metadr.run import run
from metadr.store import RunDirectory


@pytest.fixture
def validated(registered_toys, monkeypatch):
    """The toy masks with the last training images held out."""
    toy = registered_toys["segmentation"]

    def load(name: str) -> Domain:
        whole = toy.benchmark.load(name)
        return whole._replace(train=whole.train.first(18), val=Split(whole.train.x[18:], whole.train.y[18:]))

    monkeypatch.setitem(benchmarks.BENCHMARKS, "toy-masks", dataclasses.replace(toy.benchmark, load=load))
    return toy


EPOCHS = {"epochs": 5, "later_epochs": 3, "sampling": "shuffled", "kept_epoch": "best"}


def test_the_best_epoch_on_the_images_held_out_goes_on(validated, tmp_path):
    """Runs of one epoch, of two and so on are the beginnings of one: their best on val is what is kept."""
    order = ("red",)
    best = run(make_recipe("toy-masks", order=order, **EPOCHS, lr=0.05), out=tmp_path, device="cpu")
    values, finals = [], []
    held_out = benchmarks_load("red").val
    for epochs in range(1, 6):
        fields = {**EPOCHS, "epochs": epochs, "kept_epoch": "last", "lr": 0.05}
        recipe = make_recipe("toy-masks", order=order, **fields)
        result = run(recipe, out=tmp_path, device="cpu")
        tensors = RunDirectory(tmp_path, recipe, 0).load().tensors
        network = Network(validated.module(), validated.task)
        network.load({name.removeprefix("model/"): value for name, value in tensors.items() if name[:6] == "model/"})
        values.append(score(network.task, confusion(network, held_out)))
        finals.append(result.rows[-1]["value"])
    chosen = values.index(max(values))
    assert best.rows[-1]["epoch"] == chosen + 1 and best.rows[-1]["value"] == finals[chosen]
    assert "epoch" not in best.rows[0]
    assert len(set(values)) > 1  # there was something to choose


def benchmarks_load(name: str) -> Domain:
    return benchmarks.BENCHMARKS["toy-masks"].load(name)


@pytest.mark.parametrize("after", [2, 3])
def test_a_run_of_best_epochs_goes_on_to_the_same_bits(after, validated, tmp_path, monkeypatch, toys):
    monkeypatch.setattr("metadr.sequence.CHUNK", 2)
    recipe = make_recipe("toy-masks", "dr", **EPOCHS, order=("red", "green"))
    whole = run(recipe, out=tmp_path / "whole", device="cpu")

    class Enough(Exception):
        pass

    looks = itertools.count(1)

    def watch(now) -> None:
        if next(looks) == after:
            raise Enough

    with pytest.raises(Enough):
        run(recipe, out=tmp_path / "cut", device="cpu", watch=watch)
    cut = run(recipe, out=tmp_path / "cut", device="cpu")
    assert cut.rows == whole.rows
    loaded = [RunDirectory(tmp_path / name, recipe, 0).load().tensors for name in ("whole", "cut")]
    states = [dict(sorted(tensors.items())) for tensors in loaded]
    toys.assert_same_bits(*states)
    assert not [name for name in states[0] if name.startswith("best/")]  # gone with the domain


def test_the_best_epoch_needs_images_held_out(registered_toys, tmp_path):
    with pytest.raises(UserError, match=r"kept_epoch=best chooses by images held out.*'red' has none"):
        run(make_recipe("toy-masks", **EPOCHS), out=tmp_path, device="cpu")
