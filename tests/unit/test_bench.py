"""What the benchmarks compare is the same step, and what they measure is whole."""

import copy
import sys
from typing import Any

import pytest
import torch

from metadr import listing, models
from metadr.bench import work
from metadr.bench.fisher import bench_fisher
from metadr.bench.peers import Eager, Higher, peers_of
from metadr.bench.precision import bench_precision
from metadr.bench.step import bench_step
from metadr.bench.sweep import bench_sweep
from metadr.bench.timing import in_turn
from metadr.bench.work import Work, noise, parts_of, size_of, task_of, training_on
from metadr.core import Batch, Part, Recipe, Split, Task, Training
from metadr.engine.learner import Learner
from metadr.errors import UserError
from metadr.parts import MetaDR, parse_method

CPU = torch.device("cpu")


LABELS = ("tiny_resnet", Task(10), MetaDR(transforms="identity"), {})
MASKS = (
    "tiny_unet",
    Task(4, "miou"),
    MetaDR(transforms="identity", inner_lr=0.01, recall=10.0, adapt=10.0),
    {"scaling": "imagenet"},
)


def made_work(model: str, task: Task, *parts: Part, batch: int = 16, **settings: Any) -> Work:
    train = noise(task, (34, 30), 16, 16, CPU)
    if task.on_masks:
        train.y[:, :3] = 255
    return Work(parts, Training(model=model, batch_size=batch, **settings), task, train)


@pytest.mark.parametrize(
    "kind",
    [Eager, Higher],
)
@pytest.mark.parametrize(("model", "task", "part", "settings"), [LABELS, MASKS], ids=["labels", "masks"])
def test_a_peer_takes_the_gradient_that_we_take(model, task, part, settings, kind, monkeypatch):
    """In float64, on the same images, without randomness."""
    monkeypatch.setattr(Split, "sample", lambda split, num_images, rng: Batch(split.x, split.y))
    made = made_work(model, task, part, **settings)
    module = models.build(model, task.num_classes).double()
    recipe = Recipe("bench", ("images",), made.parts)
    learner = Learner(recipe, made.training, task, copy.deepcopy(module), seed=0, device=CPU)
    learner.begin_domain(made.train, first=True)
    ours = torch.cat([grad.flatten() for grad in learner.gradient()[1]])
    peer = kind(copy.deepcopy(module), made)
    peer.backward(peer.draw_batches(part), part)
    theirs = torch.cat([value.grad.flatten() for value in peer.module.parameters()])
    assert ours.norm() > 0
    torch.testing.assert_close(theirs, ours, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["naive", "dr", "meta-dr"])
@pytest.mark.parametrize(("model", "task"), [LABELS[:2], MASKS[:2]], ids=["labels", "masks"])
def test_a_peer_trains(method, model, task):
    made = made_work(model, task, *parse_method(method), batch=4, precision="bf16", mirror=True)
    for kind in peers_of(made.parts).values():
        module = models.build(model, task.num_classes)
        before = copy.deepcopy(module.state_dict())
        kind(module, made).steps(2)
        assert any(not torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize("method", ["l2", "dr+meta-dr", "er+meta-dr"])
def test_a_step_that_a_peer_would_not_take_has_none(method):
    assert peers_of(parse_method(method)) == {}


def test_a_meta_dr_step_in_two_has_no_peer():
    assert peers_of([MetaDR()])
    assert peers_of([MetaDR(inner_steps=2)]) == peers_of([MetaDR(adapt=0.0)]) == {}


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
    higher = {("meta-dr", "fp32", "higher")}
    assert set(rows) == wanted | higher
    for row in rows.values():
        assert row["ms"] > 0
        assert row["gflop"] > 0
        assert row["share_of_limit"] > 0
        alone = rows[row["method"], row["precision"], "metadr"]
        assert row["ratio"] == pytest.approx(row["ms"] / alone["ms"])
    # Three more passes, and a second derivative.
    assert rows["meta-dr", "fp32", "metadr"]["gflop"] > 4 * rows["naive", "fp32", "metadr"]["gflop"]


def test_step_of_a_benchmark_has_its_settings_and_its_kind_of_labels():
    seen = {}
    measured = bench_step(
        ("meta-dr",),
        benchmark="vkitti2",
        model="tiny_unet",
        size="38x21",
        batch=2,
        steps=1,
        repeats=2,
        device="cpu",
        images=3,
        variants=("recomputed", "not deterministic"),
        so_far=seen.update,
    )
    assert seen == measured
    assert (measured["benchmark"], measured["model"]) == ("vkitti2", "tiny_unet")
    assert (measured["size"], measured["batch"], measured["left_out"]) == ("38x21", 2, [])
    ours = ["metadr", "metadr, recomputed", "metadr, not deterministic"]
    assert [row["contender"] for row in measured["rows"]] == [*ours, "eager", "higher"]
    assert "tiny_unet, 38x21, batch of 2" in str(listing.step_speeds(measured).title)
    part, usual = parts_of("vkitti2", "meta-dr")[0], training_on("vkitti2")
    assert (part.transforms, part.inner_lr, part.recall, part.adapt) == ("psi4", 0.01, 10.0, 10.0)
    assert (usual.model, usual.batch_size, usual.mirror, usual.scaling) == ("unet_resnet34", 8, True, "imagenet")
    assert task_of("vkitti2").on_masks and task_of(None) == Task(10)


def test_without_higher_it_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "higher", None)
    setting = {"model": "tiny_resnet", "batch": 2, "steps": 1, "repeats": 2, "device": "cpu", "images": 4}
    (left_out,) = bench_step(("meta-dr",), **setting)["left_out"]
    assert left_out["contender"] == "higher"
    assert left_out["reason"] == "higher is not installed; pip install 'metadr[bench]'"
    whole = bench_sweep("meta-dr", model="tiny_resnet", runs=1, steps=1, lanes=1, repeats=1, device="cpu")
    assert whole["left_out"] == {"higher": "higher is not installed; pip install 'metadr[bench]'"}
    assert [row["sweep"] for row in whole["rows"]][-1] == "eager, one after another"


def test_who_cannot_take_the_step_is_left_out_with_the_reason(monkeypatch):
    def refuse(peer, batches, part):
        raise RuntimeError("no such layer\nand so on")

    monkeypatch.setattr(Eager, "backward", refuse)
    setting = {"model": "tiny_resnet", "batch": 2, "steps": 1, "repeats": 2, "device": "cpu", "images": 4}
    measured = bench_step(("meta-dr",), **setting)
    told = {"method": "meta-dr", "precision": "fp32", "contender": "eager", "reason": "no such layer"}
    assert measured["left_out"] == [told]
    assert "eager" not in [row["contender"] for row in measured["rows"]]
    monkeypatch.setattr(Learner, "steps", lambda learner, num_steps: refuse(learner, num_steps, None))
    with pytest.raises(RuntimeError, match="no such layer"):  # ours is not left out, whatever happens
        bench_step(("meta-dr",), **setting)


def test_a_network_that_does_not_fit_is_refused_in_one_sentence(monkeypatch):
    with pytest.raises(
        UserError, match="Model 'tiny_resnet' gives every image a label, and in these data every pixel has one"
    ):
        bench_step(("naive",), benchmark="vkitti2", model="tiny_resnet", size="20x16", batch=2, device="cpu", images=2)
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    with pytest.raises(UserError, match=r"needs segmentation-models-pytorch.* pip install 'metadr\[seg\]'"):
        bench_step(("naive",), benchmark="vkitti2", size="32", batch=2, device="cpu", images=2)


def test_sizes_in_words():
    assert size_of("224") == (224, 224)
    assert size_of("1242x375") == (1242, 375)
    for wrong in ("7", "0x9", "12x", "x12", "wide", "-8", "100x4"):
        with pytest.raises(UserError, match="The size of images must be a side, as 224, or WIDTHxHEIGHT"):
            size_of(wrong)


def test_noise_is_no_more_than_half_a_gib_holds(monkeypatch):
    assert noise(Task(10), (32, 32), 64, None, CPU).num_images == 2000
    monkeypatch.setattr(work, "MOST_BYTES", 3 * 40 * 20 * 5)
    masked = noise(Task(4, "miou"), (40, 20), 2, None, CPU)
    assert (masked.x.shape, masked.y.shape, masked.y.dtype) == ((5, 3, 20, 40), (5, 20, 40), torch.uint8)
    assert noise(Task(4, "miou"), (40, 20), 8, None, CPU).num_images == 8


def test_fisher_is_the_same_by_torch_func():
    measured = bench_fisher(model="tiny_resnet", size=16, images=40, repeats=2, device="cpu")
    ours, theirs = measured["rows"]
    assert (ours["contender"], theirs["contender"]) == ("metadr", "torch.func")
    assert (ours["off"], ours["ratio"]) == (0, 1)
    assert 0 < theirs["off"] < 1e-4
    assert theirs["ratio"] == pytest.approx(theirs["ms"] / ours["ms"])
    assert theirs["ms_an_image"] == pytest.approx(theirs["ms"] / 40)


def test_sweep_counts_every_run():
    measured = bench_sweep("naive", runs=2, steps=1, model="tiny_resnet", lanes=2, device="cpu")
    assert [row["runs"] for row in measured["rows"]] == [1, 2, 1, 1]
    assert [row["n"] for row in measured["rows"]] == [1, 2, 2, 2]
    names = ["first run", "2 lanes", "one after another", "eager, one after another"]
    assert [row["sweep"] for row in measured["rows"]] == names
    lanes = measured["rows"][1]["seconds_a_run"]
    assert [row["ratio"] for row in measured["rows"]] == [row["seconds_a_run"] / lanes for row in measured["rows"]]
    for row in measured["rows"]:
        assert row["seconds_a_run"] == pytest.approx(row["seconds"] / row["runs"])
        low, high = row["quartiles_s"]
        assert low <= row["seconds"] <= high
        assert row["ms_a_step"] == pytest.approx(1000 * row["seconds_a_run"] / measured["steps"])


def test_precision_is_worse_with_fewer_bits():
    measured = bench_precision(at=(0, 2), batches=2, device="cpu", fields={"model": "tiny_resnet", "limit": 32})
    errors = {(row["step"], row["precision"]): row["error"] for row in measured["rows"]}
    assert set(errors) == {(step, precision) for step in (0, 2) for precision in ("fp32", "bf16")}
    for step in (0, 2):
        assert 0 < errors[step, "fp32"] < 1e-3 < errors[step, "bf16"]
