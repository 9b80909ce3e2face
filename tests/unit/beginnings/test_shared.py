"""Runs that begin alike are one run until they part: trained once, to the bits of each by itself."""

import dataclasses
import itertools
import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import metadr
from metadr.beginnings import FOLDER, keys_of, shared_domains
from metadr.benchmarks import BENCHMARKS, make_recipe, steps_of
from metadr.core import Split
from metadr.cost import estimate
from metadr.parts import PARTS, Replay
from metadr.parts.l2 import L2
from metadr.recipes import get_table
from metadr.run import advance, run
from metadr.store import RunDirectory
from metadr.sweep import Job, plan_jobs, sweep

pytestmark = pytest.mark.usefixtures("whole_ends")
STEPS = 3  # as the toys take by themselves


def steps_taken(out: Path) -> int:
    return sum(json.loads(path.read_text())["steps"] for path in out.rglob("done.json"))


def assert_as_alone(jobs: list[Job], tmp_path: Path, toys: Any, *, lanes: int = 1) -> int:
    """A sweep of these runs ends with the bits of each by itself; the steps that it took."""
    outcome = sweep(jobs, out=tmp_path / "swept", device="cpu", lanes=lanes)
    assert sorted(outcome.done, key=jobs.index) == jobs
    for job in jobs:
        run(*job, out=tmp_path / "alone", device="cpu")
        toys.assert_same_bits(toys.final(tmp_path / "swept", job), toys.final(tmp_path / "alone", job))
    return steps_taken(tmp_path / "swept")


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("method", ["naive", "dr+ewc", "er+meta-dr", "gem+l2"])
def test_orders_share_what_they_begin_with(method, lanes, registered_toys, toys, tmp_path):
    taken = assert_as_alone(toys.every_order(method), tmp_path, toys, lanes=lanes)
    assert taken == (3 + 6 + 6) * STEPS  # first domains, first two, and all three
    assert not (tmp_path / "swept" / FOLDER).exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling": "shuffled", "batch_size": 5, "steps": 7},
        {"sampling": "shuffled", "batch_size": 5, "steps": 7, "stream": True},
        {"stream": True},
        {"tested_by": "domains"},
        {"tested_by": "batch"},
        {"optimizer": "sgd", "momentum": 0.9},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
@pytest.mark.parametrize("benchmark", ["toy-shapes", "toy-masks"])
def test_however_they_are_trained_and_tested(benchmark, fields, registered_toys, toys, tmp_path):
    jobs = toys.every_order("er", benchmark, **fields)[:3]
    steps = fields.get("steps", STEPS)
    assert assert_as_alone(jobs, tmp_path, toys) == (2 + 3 + 3) * steps  # red-green, red-blue and green-red


def test_oracles_of_what_was_seen_so_far_share_too(registered_toys, toys, tmp_path):
    assert assert_as_alone(toys.every_order("oracle-cumulative"), tmp_path, toys) == (3 + 6 + 6) * STEPS


def test_other_rates_on_later_domains_share_the_first(registered_toys, toys, tmp_path):
    jobs = [Job(make_recipe("toy-shapes", "er", steps=STEPS, later_lr=rate), 0) for rate in (0.02, 0.05)]
    assert assert_as_alone(jobs, tmp_path, toys) == (1 + 2 + 2) * STEPS
    assert shared_domains(jobs) == [0, 1]


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("l2", [{"strength": 0.01}, {"strength": 10.0}, {"strength": 0.0}]),
        ("dr+l2", [{"anchors": "all"}, {"anchors": "last"}]),
        ("dr+ewc", [{"strength": 0.1}, {"strength": 1000.0}, {"strength": 0.0}]),
        ("ewc", [{"anchors": "all"}, {"anchors": "last"}]),
        ("gem", [{"margin": 0.5}, {"margin": 0.0}, {"margin": 0.0, "ridge": 0.1}]),
        ("dr+lwf", [{"lwf.strength": 1.0}, {"lwf.strength": 0.0}, {"lwf.temperature": 4.0}]),
        ("dr+er", [{"later_norm": "batch"}, {"later_norm": "fixed"}]),
        ("er+meta-dr", [{"replay_batch": 2}, {"replay_batch": 5}]),
        ("dr+er", [{"replayed": True}, {"replayed": False}]),
    ],
)
def test_what_parts_do_on_later_domains_alone_leaves_the_first_shared(
    method, settings, registered_toys, toys, tmp_path
):
    jobs = [Job(make_recipe("toy-shapes", method, steps=STEPS, **fields), 0) for fields in settings]
    assert assert_as_alone(jobs, tmp_path, toys) == (1 + 2 * len(jobs)) * STEPS
    ends = [toys.final(tmp_path / "swept", job) for job in jobs]
    for one, other in itertools.combinations(ends, 2):  # they are other runs after it
        assert any(not torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    ("acting", "fields", "lanes", "begun"),
    [
        ("", {}, 1, 1),
        ("", {"stream": True, "sampling": "shuffled", "batch_size": 5}, 4, 1),
        ("dr", {"tested_by": "domains"}, 4, 1),
        ("dr", {"later_norm": "fixed"}, 1, 1),
        ("meta-dr", {"batch_norm": "all"}, 4, 1),
        ("meta-dr", {}, 4, 2),  # those with GEM, whose memories move batch norm's statistics, keep others beside
    ],
)
def test_methods_share_the_first_domain_where_their_other_parts_need_a_past(
    acting, fields, lanes, begun, registered_toys, toys, tmp_path
):
    others = ("", "er", "gem", "average", "average+ewc+l2+lwf", "er+gem+l2")
    names = ["+".join(filter(None, (acting, other))) or "naive" for other in others]
    names += [] if acting else ["oracle-cumulative"]
    jobs = [Job(make_recipe("toy-shapes", name, steps=STEPS, **fields), 0) for name in names]
    for order in (jobs, jobs[::-1]):  # the one with most parts first, too
        folder = tmp_path / str(jobs.index(order[0]))
        assert assert_as_alone(order, folder, toys, lanes=lanes) == (begun + 2 * len(jobs)) * STEPS


def test_memories_of_several_sizes_share_the_first_domain(registered_toys, toys, tmp_path):
    memories = [{"memory_per_domain": 2}, {"memory_per_domain": 4}, {"memory_choice": "first"}]
    jobs = [Job(make_recipe("toy-shapes", "er", steps=STEPS, **each), 0) for each in memories]
    assert assert_as_alone(jobs, tmp_path, toys) == (1 + 2 * len(jobs)) * STEPS


class OwnReplay(Replay):
    """Made from a part: what it does on a first domain is not known."""

    name = "own-replay"


@dataclasses.dataclass(frozen=True)
class Souvenir(metadr.Part):
    """Keeps of a domain what a pass of training, and a draw from it, say at its end."""

    name: ClassVar[str] = "souvenir"
    needs_a_past: ClassVar[bool] = True

    def end_domain(self, domain, ctx):
        drawn = ctx.draw(replay=False)
        return {"seen": ctx.logits(drawn.x, role="beside").detach().mean(0)}

    def penalty(self, raw, batch, ctx):
        return (ctx.logits(raw.x, role="beside").mean(0) - ctx.state["seen"]).square().sum() if ctx.state else 0.0


@pytest.mark.parametrize("own", [OwnReplay(), Souvenir()], ids=["made from a part", "draws at the end"])
@pytest.mark.parametrize("norm", ["batch", "fixed"])
def test_parts_of_one_s_own_begin_as_if_alone(own, norm, registered_toys, toys, tmp_path, monkeypatch):
    monkeypatch.setitem(PARTS, own.name, type(own))
    usual = make_recipe("toy-shapes", "dr+er", steps=STEPS, later_norm=norm)
    jobs = [Job(recipe, 0) for recipe in (usual, dataclasses.replace(usual, method=(*usual.method, own)))]
    num_first = 2 if isinstance(own, OwnReplay) else 1
    assert assert_as_alone(jobs, tmp_path, toys) == (num_first + 2 * len(jobs)) * STEPS


def test_what_is_made_from_a_part_may_use_its_settings_earlier(registered_toys):
    class Eager(L2):
        name = "eager"

    recipes = [
        dataclasses.replace(make_recipe("toy-shapes", "l2", steps=STEPS), method=(kind(strength=strength),))
        for kind in (L2, Eager)
        for strength in (0.1, 1.0)
    ]
    usual, other, eager, another = (keys_of(recipe, 0)[0] for recipe in recipes)
    assert usual == other
    assert eager != another


def test_runs_on_other_domains_share_the_first_and_test_for_themselves(registered_toys, toys, tmp_path):
    orders = (("red", "green"), ("red", "blue"), ("red", "green", "blue"))
    jobs = [Job(make_recipe("toy-shapes", "dr+er", order=order, steps=STEPS), 0) for order in orders]
    assert assert_as_alone(jobs, tmp_path, toys) == (1 + 1 + 1 + 2) * STEPS


def test_what_decides_a_run_decides_its_beginnings(registered_toys, toys):
    usual = make_recipe("toy-shapes", "dr", order=toys.ORDERS[0], steps=STEPS)
    others = {
        "seed": (usual, 1),
        "method": (make_recipe("toy-shapes", "dr+meta-dr", order=toys.ORDERS[0], steps=STEPS), 0),
        "part": (make_recipe("toy-shapes", "dr", order=toys.ORDERS[0], steps=STEPS, compositions=1), 0),
        "training": (make_recipe("toy-shapes", "dr", order=toys.ORDERS[0], steps=STEPS, lr=0.5), 0),
        "precision": (make_recipe("toy-shapes", "dr", order=toys.ORDERS[0], steps=STEPS, precision="bf16"), 0),
        "first domain": (make_recipe("toy-shapes", "dr", order=("green", "red", "blue"), steps=STEPS), 0),
    }
    keys = set(keys_of(usual, 0))
    assert len(keys) == 2  # the end of the last domain is the end of the run
    for what, other in others.items():
        assert not keys & set(keys_of(*other)), what
    assert shared_domains([(usual, 0), *others.values()]) == [0] * 7


def test_who_sees_all_domains_or_chooses_an_epoch_begins_alone(registered_toys):
    assert keys_of(make_recipe("toy-shapes", "oracle-all"), 0) == []
    assert keys_of(make_recipe("toy-shapes", sampling="shuffled", epochs=2, kept_epoch="best"), 0) == []


def after_a_few_turns() -> Callable[[], bool]:
    turns = iter(range(6))
    return lambda: next(turns, None) is None


def test_a_stopped_sweep_goes_on_from_what_was_left(registered_toys, toys, tmp_path):
    jobs, out = toys.every_order("er+meta-dr"), tmp_path / "stopped"
    done, calls = 0, 0
    while (missing := plan_jobs(jobs, out).missing) and calls < 60:
        done += len(sweep(missing, out=out, device="cpu", stop=after_a_few_turns()).done)
        calls += 1
    assert (done, calls > 3) == (6, True)
    assert steps_taken(out) == 15 * STEPS
    assert not (out / FOLDER).exists()
    for job in jobs:
        run(*job, out=tmp_path / "alone", device="cpu")
        toys.assert_same_bits(toys.final(out, job), toys.final(tmp_path / "alone", job))


SIZES = {"red": 24, "green": 17, "blue": 12}


@pytest.fixture
def odd(registered_toys, toys, monkeypatch):
    """Domains of unequal sizes, each known by its own fingerprint, in a benchmark that can be changed."""

    def register(load=None, told=lambda name: SIZES[name], **changes):
        def usual(name):
            domain = toys.load_labelled(name)
            return domain._replace(train=domain.train.first(SIZES[name]))

        def fingerprint(order):
            return ", ".join(f"{name} {told(name)}" for name in sorted(order))

        changes = {"name": "odd", "load": load or usual, "fingerprint": fingerprint, **changes}
        monkeypatch.setitem(BENCHMARKS, "odd", dataclasses.replace(toys.CLASSIFICATION.benchmark, **changes))

    register()
    return register


@pytest.mark.parametrize("stream", [False, True])
def test_domains_of_unequal_sizes_have_turns_of_their_own(stream, odd, toys, tmp_path):
    fields = {"sampling": "shuffled", "batch_size": 5, "epochs": 2, "later_epochs": 1, "stream": stream}
    jobs = [Job(make_recipe("odd", "er+ewc", order=order, **fields), 0) for order in toys.ORDERS]
    whole = sum(sum(steps_of(job.recipe)) for job in jobs)
    assert assert_as_alone(jobs, tmp_path, toys) < whole


def test_runs_on_other_domains_share_where_each_has_a_fingerprint(odd, toys, tmp_path):
    orders = (("red", "green"), ("red", "blue"))
    jobs = [Job(make_recipe("odd", "er", order=order, steps=STEPS), 0) for order in orders]
    assert assert_as_alone(jobs, tmp_path, toys) == 3 * STEPS


def test_images_of_another_size_are_another_beginning(odd, toys, tmp_path):
    """What an image cannot reach is not trained, so that a wider one elsewhere changes the whole run."""

    def load(name):
        domain = toys.load_labelled(name)
        wider = [Split(torch.cat([each.x, each.x], 3), each.y) for each in (domain.train, domain.test)]
        return domain if name != "blue" else domain._replace(train=wider[0], test=wider[1])

    odd(load)
    orders = (("red", "green"), ("red", "blue"), ("red", "blue", "green"))
    jobs = [Job(make_recipe("odd", "ewc", order=order, steps=STEPS), 0) for order in orders]
    assert assert_as_alone(jobs, tmp_path, toys) == (2 + 2 + 3) * STEPS


def test_data_and_classes_are_part_of_a_beginning(odd, toys):
    def keys():
        return keys_of(make_recipe("odd", "dr", order=toys.ORDERS[0]), 0)

    first, second = keys()
    odd(told=lambda name: f"{name} of today")
    assert not {first, second} & set(keys())
    odd(told=lambda name: "other" if name == "blue" else SIZES[name])
    assert keys()[0] == first and keys()[1] != second  # whose tests on it would be others
    odd(classes=("square", "disc", "cross"))
    assert not {first, second} & set(keys())


def test_rows_on_images_that_have_changed_are_tested_again(odd, toys, begin, tmp_path):
    jobs = [Job(make_recipe("odd", "dr", order=order, steps=STEPS), 0) for order in toys.ORDERS[:2]]
    beginnings = begin(jobs, tmp_path)
    deque(advance(*jobs[0], out=tmp_path, device="cpu", beginnings=beginnings), maxlen=0)

    def load(name):
        domain = toys.load_labelled(name)
        kept = domain._replace(train=domain.train.first(SIZES[name]))
        return kept if name != "blue" else kept._replace(test=Split(255 - kept.test.x, kept.test.y))

    odd(load, told=lambda name: "inverted" if name == "blue" else SIZES[name])
    changed = begin(jobs, tmp_path)
    assert not changed.waits(jobs[1], [])
    deque(advance(*jobs[1], out=tmp_path, device="cpu", beginnings=changed), maxlen=0)
    run(*jobs[1], out=tmp_path / "alone", device="cpu")
    toys.assert_same_bits(toys.final(tmp_path, jobs[1]), toys.final(tmp_path / "alone", jobs[1]))
    assert RunDirectory(tmp_path, *jobs[1]).read("done.json")["steps"] == 2 * STEPS


@pytest.mark.parametrize("full", [False, True], ids=["no links", "no room"])
def test_a_disk_that_keeps_no_beginnings_keeps_nobody_waiting(
    full, registered_toys, toys, begin, tmp_path, monkeypatch
):
    def refuse(*arguments: Any) -> None:
        raise OSError("not here")

    monkeypatch.setattr("metadr.beginnings.os.link", refuse)
    if full:
        monkeypatch.setattr("metadr.beginnings.shutil.copyfile", refuse)
    jobs = toys.every_order("er")
    assert assert_as_alone(jobs, tmp_path, toys, lanes=6) <= 18 * STEPS
    if not full:
        assert steps_taken(tmp_path / "swept") == 15 * STEPS
    beginnings = begin(jobs, tmp_path / "again")
    beginnings.start(*jobs[0])
    leave = beginnings.leaves(*jobs[0], 1)
    leave(RunDirectory(tmp_path / "alone", *jobs[0]).checkpoints()[0])
    assert not beginnings.waits(jobs[1], [jobs[0]])
    assert (beginnings.find(*jobs[1], lambda begun: True) is None) == full


@pytest.mark.parametrize(
    ("name", "trained"),
    [("table11", 3 * 4 + 5 * (12 + 24 + 24)), ("figure4", 3 * (4 + 33 + 33)), ("pacs-resnet50", 2 * (3 + 8 * 3 + 4))],
)
def test_the_paper_s_orders_and_scenes_share_as_the_pages_say(name, trained):
    """GEM and ER have one first domain, and both with DR; PACS has three, and Oracle (all) its own."""
    jobs = [Job(recipe, seed) for recipe, seeds in get_table(name).seeds_of.items() for seed in seeds]
    domains = [len(job.recipe.order) - shared for job, shared in zip(jobs, shared_domains(jobs), strict=True)]
    assert sum(domains) == trained


def test_what_is_shared_is_paid_for_once(registered_toys, toys, tmp_path):
    jobs = toys.every_order()
    assert shared_domains(jobs) == [0, 1, 0, 1, 0, 1]
    assert estimate(jobs, tmp_path, torch.device("cpu")).steps == (3 + 6 + 6) * STEPS
