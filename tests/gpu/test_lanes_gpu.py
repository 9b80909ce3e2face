"""Whole runs on a GPU, side by side: the same bits on any number of lanes, stopped or not, whatever others do."""

import dataclasses
import itertools
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from metadr import models
from metadr.benchmarks import make_recipe
from metadr.core import Batch, Context, Part
from metadr.domains import load_domains
from metadr.engine.ground import prepare_process
from metadr.packs import write_weights
from metadr.parts import L2, MetaDR, Randomize, Replay, parse_method
from metadr.run import advance, run
from metadr.store import RunDirectory
from metadr.sweep import Job, sweep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("whole_ends"),
]

CUDA = torch.device("cuda")
if torch.cuda.is_available():
    prepare_process()  # before any test multiplies matrices: cuBLAS and torch read it once


@dataclasses.dataclass(frozen=True)
class Greedy(Part):
    """A part that takes a GiB, then asks for more than any device has."""

    name: ClassVar[str] = "greedy"
    SIZE: ClassVar[int] = 1 << 30
    found: ClassVar[list[int]] = []  # bytes that were taken when it came

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor | float:
        self.found.append(torch.cuda.memory_allocated())
        taken = torch.ones(self.SIZE // 4, device=batch.x.device)
        return taken.sum() + torch.ones(1 << 45, device=batch.x.device).sum()


def final(out: Path, job: Job) -> dict[str, Tensor]:
    """What a finished run left: its scores and its network."""
    directory = RunDirectory(out, job.recipe, job.seed)
    assert directory.finished
    scores = torch.tensor([row["value"] for row in directory.read("rows.json")], dtype=torch.float64)
    left = load_file(directory.checkpoints()[0])  # a run by itself leaves more than one of a sweep
    return {"scores": scores, **{name: value for name, value in left.items() if name.startswith("model/")}}


@pytest.fixture
def short_turns(monkeypatch) -> None:
    """Looks after every step or three, so that short runs take many turns."""
    monkeypatch.setattr("metadr.sequence.CHUNK", 3)
    monkeypatch.setattr("metadr.sequence.LOOK_SECONDS", 0.0)


@pytest.fixture
def jobs(registered_toys, classification, toys, monkeypatch) -> list[Job]:
    """Sixteen runs, half of them of a network with dropout."""
    monkeypatch.setitem(models.MODELS, "toy_dropout", lambda num_classes: toys.with_dropout(classification))
    drops, steps = ("model", "toy_dropout"), ("steps", 6)
    recipes = {
        classification.recipe(overrides=(drops, steps)): 5,
        classification.recipe(Replay(), MetaDR(), overrides=(drops, steps)): 3,
        classification.recipe(MetaDR(), overrides=(steps,)): 3,
        classification.recipe(*parse_method("dr+ewc+gem+l2"), overrides=(steps,)): 2,
        classification.recipe(Randomize(), overrides=(steps, ("optimizer", "sgd"), ("momentum", 0.9))): 3,
    }
    return [Job(recipe, seed) for recipe, seeds in recipes.items() for seed in range(seeds)]


def test_a_sweep_gives_the_same_bits_on_any_number_of_lanes(jobs, short_turns, toys, tmp_path):
    for lanes in (1, 4, 16, "auto"):
        outcome = sweep(jobs, out=tmp_path / str(lanes), device="cuda", lanes=lanes)
        assert outcome.failed == []
        assert sorted(outcome.done, key=jobs.index) == jobs
    plain = [job for job in jobs if job.seed == 0]
    assert sweep(plain, out=tmp_path / "eager", device="cuda", lanes=3, capture=False).failed == []
    for job in jobs:
        wanted = final(tmp_path / "1", job)
        toys.assert_same_bits(final(tmp_path / "4", job), wanted)
        toys.assert_same_bits(final(tmp_path / "16", job), wanted)
        toys.assert_same_bits(final(tmp_path / "auto", job), wanted)
        if job in plain:
            toys.assert_same_bits(final(tmp_path / "eager", job), wanted)


@pytest.mark.parametrize("method", ["naive", "er+meta-dr", "dr+ewc+gem"])
def test_orders_that_begin_alike_are_trained_once_to_the_same_bits(
    method, registered_toys, short_turns, toys, tmp_path
):
    orders = itertools.permutations(("red", "green", "blue"))
    orders_of = [Job(make_recipe("toy-shapes", method, order=order, steps=6), 0) for order in orders]
    assert sweep(orders_of, out=tmp_path / "swept", device="cuda", lanes=4).failed == []
    assert sum(RunDirectory(tmp_path / "swept", *job).read("done.json")["steps"] for job in orders_of) == 15 * 6
    for job in orders_of:
        run(*job, out=tmp_path / "alone", device="cuda")
        toys.assert_same_bits(final(tmp_path / "swept", job), final(tmp_path / "alone", job))


@pytest.mark.parametrize(
    ("acting", "begun"),
    [("dr", 1), ("meta-dr", 2)],  # the one with GEM, whose memories move batch norm's statistics, keeps others beside
)
def test_methods_share_the_first_domain_to_the_same_bits(acting, begun, registered_toys, short_turns, toys, tmp_path):
    names = [acting, f"{acting}+er", f"{acting}+gem+l2", f"{acting}+average+ewc+lwf"]
    sharing = [Job(make_recipe("toy-shapes", name, steps=6), 0) for name in names]
    assert sweep(sharing, out=tmp_path / "swept", device="cuda", lanes=4).failed == []
    assert sum(RunDirectory(tmp_path / "swept", *job).read("done.json")["steps"] for job in sharing) == (begun + 8) * 6
    for job in sharing:
        run(*job, out=tmp_path / "alone", device="cuda")
        toys.assert_same_bits(final(tmp_path / "swept", job), final(tmp_path / "alone", job))


@pytest.mark.parametrize("method", ["average+dr+er+ewc+l2+lwf", "er+gem+meta-dr"])
def test_a_run_for_each_domain_is_the_run_over_all_of_them(method, registered_toys, toys, tmp_path):
    fields = {"steps": 6, "memory_per_domain": 5}
    whole = run(make_recipe("toy-shapes", method, **fields), out=tmp_path / "whole", device="cuda")
    for domain in whole.recipe.order:
        recipe = make_recipe("toy-shapes", method, order=(domain,), **fields)
        last = run(recipe, out=tmp_path / "runs", device="cuda")
        fields["weights"] = str(tmp_path / f"{domain}.safetensors")
        write_weights(last.path, fields["weights"], past=True)
    left = [load_file(next(each.path.glob("checkpoint-*"))) for each in (whole, last)]
    toys.assert_same_bits(*left)


def test_a_failing_lane_does_not_disturb_the_others(jobs, short_turns, classification, toys, tmp_path):
    sound = [job for job in jobs if job.seed == 0][:3]
    failing = Job(classification.recipe(toys.Looking(), overrides=(("steps", 6),)), 0)
    outcome = sweep([sound[0], failing, *sound[1:]], out=tmp_path / "beside", device="cuda", lanes=4)
    ((job, reason),) = outcome.failed
    assert job == failing
    assert "--eager" in reason
    assert sorted(outcome.done, key=jobs.index) == sound
    sweep(sound, out=tmp_path / "alone", device="cuda", lanes=1)
    for job in sound:
        toys.assert_same_bits(final(tmp_path / "beside", job), final(tmp_path / "alone", job))


def test_a_run_that_finds_no_memory_lets_the_others_end(jobs, short_turns, classification, toys, tmp_path):
    """It is tried beside others and alone; what it had allocated before is free again when the next one starts."""
    sound = [job for job in jobs if job.seed == 0][:4]
    greedy = Job(classification.recipe(Greedy(), overrides=(("steps", 6),)), 0)
    before = torch.cuda.memory_allocated()
    outcome = sweep([sound[0], greedy, *sound[1:]], out=tmp_path / "beside", device="cuda", lanes=3)
    ((job, reason),) = outcome.failed
    assert job == greedy
    assert "out of memory" in reason
    assert len(Greedy.found) == 3
    assert max(Greedy.found) - before < Greedy.SIZE
    assert sorted(outcome.done, key=jobs.index) == sound
    sweep(sound, out=tmp_path / "alone", device="cuda", lanes=1)
    for job in sound:
        toys.assert_same_bits(final(tmp_path / "beside", job), final(tmp_path / "alone", job))


def test_a_run_that_is_closed_again_and_again_gives_the_bits_of_a_whole_one(jobs, short_turns, toys, tmp_path):
    recipe = next(job.recipe for job in jobs if job.recipe.method_name == "er+meta-dr")
    job = Job(dataclasses.replace(recipe, overrides=(*recipe.overrides, ("steps", 20))), 0)
    run(job.recipe, out=tmp_path / "whole", device="cuda")
    closed, places = RunDirectory(tmp_path / "closed", job.recipe, 0), []
    for turns in itertools.islice(itertools.cycle((1, 2, 4)), 80):
        stages = advance(job.recipe, out=tmp_path / "closed", device="cuda")
        for _ in range(turns):
            next(stages, None)
        stages.close()
        if closed.finished:
            break
        checkpoint = closed.load()
        if checkpoint is not None:  # closed before it was tested untrained, it starts again
            places.append((checkpoint.position["stage"], checkpoint.position["step"]))
    assert places == sorted(set(places))  # each time further on
    assert {stage for stage, _ in places} >= {0, 1, 2}  # 3 where it was closed during the last test
    toys.assert_same_bits(final(tmp_path / "closed", job), final(tmp_path / "whole", job))


def test_a_sweep_that_is_stopped_goes_on_to_the_same_bits(jobs, short_turns, toys, tmp_path):
    some = [job for job in jobs if job.seed == 0]
    asked = iter(range(1000))
    outcome = sweep(some, out=tmp_path / "stopped", device="cuda", lanes=3, stop=lambda: next(asked) > 9)
    assert len(outcome.done) < len(some)
    assert outcome.failed == []
    left = [job for job in some if job not in outcome.done]
    assert sweep(left, out=tmp_path / "stopped", device="cuda", lanes=4).done
    sweep(some, out=tmp_path / "whole", device="cuda", lanes=1)
    for job in some:
        toys.assert_same_bits(final(tmp_path / "stopped", job), final(tmp_path / "whole", job))


def test_runs_share_the_images_on_the_device_and_never_write_to_them(
    registered_toys, classification, short_turns, tmp_path
):
    """A recorded step's own copy of its images is written over by the next domain's; the shared ones are not."""
    recipe = classification.recipe(MetaDR(), L2())
    shared = load_domains(recipe, CUDA)
    before = [each.domain.train.x.clone() for each in shared]
    torch.cuda.synchronize()
    sweep([Job(recipe, seed) for seed in range(2)], out=tmp_path, device="cuda", lanes=2)
    assert all(a is b for a, b in zip(load_domains(recipe, CUDA), shared, strict=True))
    assert all(torch.equal(each.domain.train.x, old) for each, old in zip(shared, before, strict=True))
