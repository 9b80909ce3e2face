"""The engine on a CPU: what steps leave to look at, the memory, steps that are taken again, data that runs share."""

import dataclasses
import gc
import os
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from metadr.core import Batch, Context, Memory, Part, Split, Training
from metadr.domains import _RESIDENTS, load_domains
from metadr.engine import learner as learner_module
from metadr.engine.ground import Ground, _refusal, prepare_process
from metadr.engine.learner import Learner
from metadr.engine.log import LOOK_EVERY, Taken
from metadr.errors import UserError
from metadr.parts import EWC, GEM, L2, PARTS, MetaDR, Randomize, Replay
from metadr.run import advance, run
from metadr.store import RunDirectory

CPU = torch.device("cpu")


# What steps leave to look at.


def test_taken_is_one_row_a_step_and_a_word_on_the_weights():
    values = torch.tensor([3.0, 1.0, 2.0, 30.0, 10.0, 20.0, 1.0], dtype=torch.float64)
    rows, finite = Taken(("loss", "clean", "dr"), values).read()
    assert rows == [{"loss": 3.0, "clean": 1.0, "dr": 2.0}, {"loss": 30.0, "clean": 10.0, "dr": 20.0}]
    assert finite is True
    values[-1] = 0.0
    assert Taken(("loss", "clean", "dr"), values).read()[1] is False


def test_steps_tell_the_loss_and_its_terms_at_every_step(toy):
    learner, again = toy.learner(MetaDR(), L2()), toy.learner(MetaDR(), L2())
    toy.on_second_domain(learner)
    toy.on_second_domain(again)
    rows, finite = learner.steps(5).read()
    assert finite
    assert [list(row) for row in rows] == [["loss", "clean", "l2", "meta-dr"]] * 5
    for row in rows:
        assert row["loss"] == pytest.approx(row["clean"] + row["l2"] + row["meta-dr"], rel=1e-6)
        terms = again.step()
        assert row == {"loss": float(terms.loss), **{name: float(term) for name, term in terms.by_name.items()}}


def test_steps_may_be_taken_in_any_portions(toy, toys):
    whole, parts = toy.learner(MetaDR()), toy.learner(MetaDR())
    for each in (whole, parts):
        each.begin_domain(toy.domains[0].train, first=True)
    wanted = whole.steps(7).read()[0]
    first, second = parts.steps(3), parts.steps(4)  # the first is read after the second is on its way
    assert first.read()[0] + second.read()[0] == wanted
    toys.assert_same_bits(parts.state(), whole.state())


def test_steps_are_looked_at_in_time(classification):
    learner = classification.learner()
    learner.begin_domain(classification.domains[0].train, first=True)
    with pytest.raises(
        ValueError, match=rf"At most {LOOK_EVERY} steps may be taken before a look\. Got {LOOK_EVERY + 1}\."
    ):
        learner.steps(LOOK_EVERY + 1)
    rows, finite = learner.steps(LOOK_EVERY).read()
    assert len(rows) == LOOK_EVERY
    assert len({row["loss"] for row in rows}) > LOOK_EVERY / 2  # each in a row of its own
    assert finite


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_weights_that_are_not_finite_are_seen_though_the_loss_is(value, which, classification, monkeypatch):
    """The last update of a row shows in no loss of it."""
    learner = classification.learner()
    learner.begin_domain(classification.domains[0].train, first=True)
    update = learner.optimizer.step

    def poisoned() -> None:
        update()
        with torch.no_grad():
            list(learner.network.params.values())[which].view(-1)[1] = value

    monkeypatch.setattr(learner.optimizer, "step", poisoned)
    rows, finite = learner.steps(1).read()
    assert torch.tensor(rows[0]["loss"]).isfinite()
    assert not finite


@dataclasses.dataclass(frozen=True)
class Bursting(Part):
    """A part that makes every gradient infinite."""

    name: ClassVar[str] = "bursting"

    def gradient(self, grads: list[Tensor], ctx: Context) -> list[Tensor]:
        return [torch.full_like(grad, float("inf")) for grad in grads]


class Telling(Part):
    """A part whose penalty is told, and moves nothing."""

    name: ClassVar[str] = "telling"

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor:
        return torch.full((), 3.0)


def test_a_penalty_that_needs_no_gradient_is_only_told(toy):
    told, plain = toy.learner(Telling()), toy.learner()
    for learner in (told, plain):
        learner.begin_domain(toy.domains[0].train, first=True)
    (terms, grads), (_, wanted) = told.gradient(), plain.gradient()
    assert terms.loss == terms.by_name["clean"] + 3
    assert all(map(torch.equal, grads, wanted))


def test_a_run_whose_last_update_breaks_the_weights_says_so(registered_toys, classification, tmp_path):
    recipe = classification.recipe(Bursting(), overrides=(("optimizer", "sgd"), ("steps", 1)))
    with pytest.raises(UserError, match="The weights are no longer finite after step 1 of domain 'red'"):
        run(recipe, out=tmp_path, device="cpu")
    assert RunDirectory(tmp_path, recipe, 0).load().position["step"] == 0  # the last good one


# The memory.


def images(start: int, num_images: int) -> Batch:
    """Images that are told apart by their colour."""
    colours = torch.arange(start, start + num_images)
    return Batch(colours.to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2).contiguous(), colours)


def test_a_memory_samples_every_filled_row_and_no_other():
    memory, rng = Memory(room=12), torch.Generator().manual_seed(0)
    for start, count in ((1, 4), (5, 4), (9, 2)):
        memory.add(images(start, count))
        drawn = memory.sample(500, rng)
        assert drawn.replayed == 500
        assert set(drawn.y.tolist()) == set(range(1, start + count))  # never the 0 of an empty row
        assert torch.equal(drawn.x[:, 0, 0, 0].long(), drawn.y)
        assert memory.num_images == start + count - 1
    assert torch.equal(memory.pool.y, torch.arange(1, 11))


@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_the_largest_number_that_is_drawn_is_a_filled_row(count, monkeypatch):
    memory = Memory(room=2 * count)
    memory.add(Batch(torch.zeros(count, 3, 1, 1, dtype=torch.uint8), torch.arange(1, count + 1)))
    largest = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: largest)
    assert memory.sample(2, torch.Generator()).y.tolist() == [1, count]


def test_a_memory_gives_every_row_as_large_a_share(monkeypatch):
    """Numbers spread evenly over [0, 1) fall on every row equally often."""
    memory = Memory(room=10)
    memory.add(images(1, 5))
    even = torch.arange(1000, dtype=torch.float64) / 1000
    monkeypatch.setattr(torch, "rand", lambda *shape, **options: even)
    assert memory.sample(1000, torch.Generator()).y.bincount().tolist() == [0, 200, 200, 200, 200, 200]


def test_a_memory_stays_where_it_is_and_earlier_batches_stay_as_they_are():
    memory = Memory(room=6)
    memory.add(images(1, 3))
    place = memory.pool.x.data_ptr()
    first = memory.batches[0].x.clone()
    memory.add(images(4, 3))
    assert memory.pool.x.data_ptr() == memory.batches[0].x.data_ptr() == place
    assert torch.equal(memory.batches[0].x, first)
    assert [batch.replayed for batch in memory.batches] == [3, 3]


def test_a_memory_is_neither_overfull_nor_sampled_empty():
    memory = Memory(room=4)
    assert memory.pool is None
    with pytest.raises(RuntimeError, match="sampled an empty memory"):
        memory.sample(1, torch.Generator())
    memory.add(images(1, 3))
    with pytest.raises(RuntimeError, match="a memory with room for 4 images was given 5"):
        memory.add(images(4, 2))
    assert memory.num_images == 3


def test_a_domain_smaller_than_its_share_of_the_memory_fills_less_of_it(classification):
    learner = classification.learner(Replay(), memory=100)
    classification.play(learner, num_domains=3)
    assert learner.memory.num_images == 3 * 24
    assert learner.memory.room == 300


# Steps that are taken again. A recording that calls the step stands in for a CUDA graph: what must be right on a CPU
# too is which recordings are kept, and that all a kept one reads has been written over.


class Recording:
    """Counts what a graph would record; replayed, it takes the step."""

    made = 0

    def __init__(self, function, generators) -> None:
        Recording.made += 1
        self.function, self.generators = function, list(generators)

    def replay(self) -> None:
        self.function()


def recording(learner: Learner) -> Learner:
    """The learner as it is on a GPU: it records, and its learning rate is a tensor."""
    learner._capturing = True
    return with_tensor_rate(learner)


def with_tensor_rate(learner: Learner) -> Learner:
    original = learner._new_optimizer

    def new_optimizer(lr: float) -> torch.optim.Optimizer:
        optimizer = original(lr)
        for group in optimizer.param_groups:
            group["lr"], group["foreach"] = torch.tensor(lr), False
        return optimizer

    learner._new_optimizer = new_optimizer
    return learner


@pytest.fixture
def recordings(monkeypatch) -> type[Recording]:
    monkeypatch.setattr(learner_module, "Captured", Recording)
    monkeypatch.setattr(Recording, "made", 0)
    return Recording


METHODS = {
    # How often a step is recorded over three domains of one shape.
    "naive": ((), 1),
    "dr": ((Randomize(),), 1),
    "meta-dr": ((MetaDR(),), 1),
    "l2": ((L2(),), 2),  # its penalty begins with the second domain
    "ewc": ((EWC(),), 2),
    "er": ((Replay(),), 2),  # its memory does
    "er+meta-dr": ((Replay(), MetaDR()), 2),
    "gem": ((GEM(),), 3),  # a constraint more on every domain
    "all six": (tuple(part() for part in PARTS.values()), 3),
}


@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "sgd"}], ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_a_recorded_step_is_kept_as_long_as_it_fits_and_comes_to_the_same(
    method, settings, classification, toys, recordings
):
    toy, (parts, most) = classification, METHODS[method]
    eager = with_tensor_rate(toy.learner(*parts, **settings))
    wanted = toy.play(eager, num_domains=3, num_steps=3)
    learner = recording(toy.learner(*parts, **settings))
    assert toy.play(learner, num_domains=3, num_steps=3) == wanted
    assert recordings.made == most
    toys.assert_same_bits(learner.state(), eager.state())


def test_what_a_recorded_step_reads_is_written_over_in_place(classification, recordings):
    learner = recording(classification.learner(L2()))
    red, green, blue = (domain.train for domain in classification.domains)
    classification.on_second_domain(learner)
    learner.steps(1)
    read = {name: value.data_ptr() for name, value in learner._read.items()}
    learner.end_domain(classification.domains[1])
    state = {name: value.clone() for name, value in learner.part_state["l2"].items()}
    learner.begin_domain(blue, first=False)
    assert {name: value.data_ptr() for name, value in learner._read.items()} == read
    assert torch.equal(learner._read["train/x"], blue.x)
    assert torch.equal(learner._read["train/y"], blue.y)
    assert state.keys() == learner.part_state["l2"].keys()
    for name, value in learner.part_state["l2"].items():
        assert value.data_ptr() == read[f"part/l2/{name}"]
        assert torch.equal(value, state[name])
    for original in (red, green):  # which other runs read
        assert not torch.equal(original.x, blue.x)


@pytest.mark.parametrize(
    "other",
    [
        lambda train: train.first(20),
        lambda train: Split(train.x[:, :, :12], train.y),
        lambda train: Split(train.x, train.y.int()),
    ],
    ids=["fewer images", "smaller images", "another type"],
)
def test_a_domain_of_another_shape_is_recorded_anew(other, classification, recordings):
    learner = recording(classification.learner())
    learner.begin_domain(classification.domains[0].train, first=True)
    learner.steps(1)
    changed = other(classification.domains[1].train)
    learner.begin_domain(changed, first=False)
    assert learner._captured is None
    assert torch.equal(learner._train.x, changed.x)


def test_a_recorded_step_is_not_kept_across_a_load(classification, recordings, toys):
    """A graph reads the tensors that it was recorded with, and loading makes others."""
    learner = recording(classification.learner(Replay()))
    classification.on_second_domain(learner)
    learner.steps(2)
    saved = toys.clone_state(learner)
    learner.load(saved)
    assert learner._captured is None
    toys.assert_same_bits(learner.state(), saved)
    made = recordings.made
    learner.steps(1)
    assert recordings.made == made + 1


def test_nothing_is_recorded_on_a_cpu(classification, recordings):
    learner = classification.learner(MetaDR())
    classification.play(learner, num_domains=3)
    assert recordings.made == 0
    assert learner._train.x is classification.domains[2].train.x  # nor copied


# The ground that a run stands on.


def switches() -> list[object]:
    return [
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    ]


def test_the_ground_of_a_cpu_run_turns_no_switch():
    before = switches()
    with Ground(Training(), CPU).held():
        assert switches() == before
    assert switches() == before


def test_tf32_needs_a_gpu():
    with pytest.raises(UserError, match="Precision 'tf32' needs a GPU, and this run is on cpu"):
        Ground(Training(precision="tf32"), CPU)


def test_an_operation_that_cannot_be_repeated_is_told_in_a_sentence():
    torch_says = "grid_sampler_2d_backward_cuda does not have a deterministic implementation, but you set 'torch.use"
    assert str(_refusal(RuntimeError(torch_says))) == (
        "The network or a part uses grid_sampler_2d_backward_cuda, which gives other bits each time on a GPU. "
        "Use --set deterministic=false, or another layer."
    )
    assert _refusal(RuntimeError("CUDA error: out of luck")) is None


def test_what_a_user_has_set_for_cuda_is_kept(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    prepare_process()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS") == "32"


@pytest.mark.parametrize("parts", [(), (MetaDR(),), (Replay(), GEM(), EWC())], ids=["naive", "meta-dr", "memory"])
def test_bf16_trains_near_fp32_with_weights_in_fp32(parts, toy):
    half, full = (toy.learner(*parts, precision=precision) for precision in ("bf16", "fp32"))
    losses = [[row["loss"] for row in toy.play(each, num_steps=3)] for each in (half, full)]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert {value.dtype for value in half.network.params.values()} == {torch.float32}
    for ours, theirs in zip(half.network.params.values(), full.network.params.values(), strict=True):
        assert not torch.equal(ours, theirs)


def test_the_fisher_is_in_full_precision_whatever_the_run_s(toy):
    """Its batch norms, under vmap, refuse a mixture of types; and it squares small numbers."""
    half, full = (toy.learner(EWC(), precision=precision) for precision in ("bf16", "fp32"))
    fishers = []
    for learner in (half, full):
        learner.begin_domain(toy.domains[0].train, first=True)
        fishers.append(EWC().fisher(toy.domains[0].train, learner._context(learner.recipe.method[0])))
    for name, value in fishers[0].items():
        assert torch.equal(value, fishers[1][name])


# Data that runs share.


def test_runs_share_the_domains_that_they_read(registered_toys, classification):
    recipe = classification.recipe()
    first, second = load_domains(recipe, CPU), load_domains(recipe, CPU)
    assert [each is other for each, other in zip(first, second, strict=True)] == [True] * 3
    assert [each.domain.name for each in first] == ["red", "green", "blue"]


def test_domains_of_another_limit_order_or_device_are_told_apart(registered_toys, classification):
    recipe, few = classification.recipe(), classification.recipe(overrides=(("limit", 5),))
    whole, limited = load_domains(recipe, CPU), load_domains(few, CPU)
    assert [each.domain.train.num_images for each in (whole[0], limited[0])] == [24, 5]
    assert whole[0].fingerprint != limited[0].fingerprint
    assert load_domains(recipe, torch.device("meta"))[0] is not whole[0]


def resident(toys) -> int:
    """How many domains of the toys are held."""
    gc.collect()
    return sum(each.domain.name in toys.GROUNDS for each in list(_RESIDENTS.values()))


def test_domains_go_with_the_last_run_that_reads_them(registered_toys, toys, tmp_path):
    """Two paused runs hold one copy; when both are closed, nobody does."""
    assert resident(toys) == 0
    first, second = (advance(toys.CLASSIFICATION.recipe(), seed, out=tmp_path, device="cpu") for seed in (0, 1))
    next(first), next(second)
    assert resident(toys) == 3
    first.close()
    assert resident(toys) == 3
    second.close()
    assert resident(toys) == 0


def test_no_run_writes_to_what_it_shares(registered_toys, classification, tmp_path):
    recipe = classification.recipe(*(part() for part in PARTS.values()))
    shared = load_domains(recipe, CPU)
    before: list[Tensor] = [each.domain.train.x.clone() for each in shared]
    run(recipe, out=tmp_path, device="cpu")
    assert all(torch.equal(each.domain.train.x, old) for each, old in zip(shared, before, strict=True))
