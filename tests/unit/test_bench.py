"""What the benchmarks compare is the same step, and what they measure is whole."""

import copy
import importlib.util

import pytest
import torch

from metadr import models
from metadr.bench.fisher import bench_fisher
from metadr.bench.peers import Batches, Eager, Higher, Peer, draw_batches, peers_of
from metadr.bench.precision import bench_precision
from metadr.bench.step import bench_step
from metadr.bench.sweep import bench_sweep
from metadr.bench.timing import in_turn
from metadr.core import Batch, Recipe, Split, Task, Training
from metadr.engine.learner import Learner
from metadr.parts import MetaDR

CPU = torch.device("cpu")
HAS_HIGHER = importlib.util.find_spec("higher") is not None


@pytest.fixture
def train():
    rng = torch.Generator().manual_seed(0)
    return Split(
        torch.randint(256, (16, 3, 32, 32), generator=rng, dtype=torch.uint8),
        torch.randint(10, (16,), generator=rng),
    )


def peer_gradient(kind: type[Peer], module, train: Split, batches: Batches):
    peer = kind(copy.deepcopy(module), train, method="meta-dr", batch_size=16, precision="fp32")
    peer.backward(batches)
    return torch.cat([value.grad.flatten() for value in peer.module.parameters()])


@pytest.mark.parametrize(
    "kind",
    [Eager, pytest.param(Higher, marks=pytest.mark.skipif(not HAS_HIGHER, reason="higher is not installed"))],
)
def test_a_peer_takes_the_gradient_that_we_take(kind, train, monkeypatch):
    """In float64, on the same images, without randomness."""
    monkeypatch.setattr(Split, "sample", lambda split, num_images, rng: Batch(split.x, split.y))
    module = models.build("tiny_resnet", 10).double()
    recipe = Recipe("bench", ("images",), (MetaDR(transforms="identity"),))
    learner = Learner(recipe, Training(batch_size=16), Task(10), copy.deepcopy(module), seed=0, device=CPU)
    learner.begin_domain(train, first=True)
    ours = torch.cat([grad.flatten() for grad in learner.gradient()[1]])
    batches = draw_batches(train, 16, torch.Generator().manual_seed(0), transforms="identity")
    theirs = peer_gradient(kind, module, train, batches)
    assert ours.norm() > 0
    torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["naive", "dr", "meta-dr"])
def test_a_peer_trains(method, train):
    for kind in peers_of(method).values():
        module = models.build("tiny_resnet", 10)
        before = copy.deepcopy(module.state_dict())
        kind(module, train, method=method, batch_size=4, precision="bf16").steps(2)
        assert any(not torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_contenders_take_turns():
    calls = []
    measured = in_turn({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, CPU)
    assert calls == ["a", "b"] * 3  # the first turn warms up
    assert set(measured) == {"a", "b"}
    assert all(low <= values["ms"] <= high for values in measured.values() for low, high in [values["quartiles_ms"]])


def test_step_has_a_row_for_every_method_precision_and_contender():
    measured = bench_step(
        ("naive", "meta-dr"),
        model="tiny_resnet",
        batch=4,
        precisions=("fp32",),
        lanes=(1, 2),
        steps=1,
        repeats=2,
        device="cpu",
        images=8,
    )
    rows = {(row["method"], row["precision"], row["contender"]): row for row in measured["rows"]}
    ours = ("metadr", "metadr, 2 lanes", "eager")
    wanted = {(method, "fp32", name) for method in ("naive", "meta-dr") for name in ours}
    higher = {("meta-dr", "fp32", "higher")} if HAS_HIGHER else set()
    assert set(rows) == wanted | higher
    for row in rows.values():
        assert row["ms"] > 0
        assert row["gflop"] > 0
        assert row["share_of_limit"] > 0
        alone = rows[row["method"], row["precision"], "metadr"]
        assert row["ratio"] == pytest.approx(row["ms"] / alone["ms"])
    # Three more passes, and a second derivative.
    assert rows["meta-dr", "fp32", "metadr"]["gflop"] > 4 * rows["naive", "fp32", "metadr"]["gflop"]


def test_fisher_is_the_same_by_torch_func():
    measured = bench_fisher(model="tiny_resnet", size=16, images=40, repeats=2, device="cpu")
    ours, theirs = measured["rows"]
    assert (ours["contender"], theirs["contender"]) == ("metadr", "torch.func")
    assert (ours["off"], ours["ratio"]) == (0, 1)
    assert 0 < theirs["off"] < 1e-4
    assert theirs["ratio"] == pytest.approx(theirs["ms"] / ours["ms"])
    assert theirs["ms_an_image"] == pytest.approx(theirs["ms"] / 40)


def test_sweep_counts_every_run():
    measured = bench_sweep("naive", runs=2, steps=1, model="tiny_resnet", alone=1, device="cpu")
    assert [row["runs"] for row in measured["rows"]] == [1, 2, 1, 1]
    for row in measured["rows"]:
        assert row["seconds_a_run"] == pytest.approx(row["seconds"] / row["runs"])
        assert row["ms_a_step"] == pytest.approx(1000 * row["seconds_a_run"] / measured["steps"])


def test_precision_is_worse_with_fewer_bits():
    measured = bench_precision(at=(0, 2), batches=2, device="cpu", fields={"model": "tiny_resnet", "limit": 32})
    errors = {(row["step"], row["precision"]): row["error"] for row in measured["rows"]}
    assert set(errors) == {(step, precision) for step in (0, 2) for precision in ("fp32", "bf16")}
    for step in (0, 2):
        assert 0 < errors[step, "fp32"] < 1e-3 < errors[step, "bf16"]
