"""What every registered part promises, on labels and on masks. A new part is picked up without another line."""

import dataclasses
import itertools
import json
import math
import types
import typing
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from metadr.core import Batch, Domain, Split
from metadr.parts import PARTS, Randomize
from metadr.training import STATISTICS_ORDER, statistics_passes

POLICIES = ("none", "clean", "memory", "inner+adapt", "all")


def every_tensor(*holders: Any) -> dict[str, Tensor]:
    """All tensors of these mappings and tuples, by where they are."""
    found = {}
    for index, holder in enumerate(holders):
        entries = holder.items() if isinstance(holder, dict) else enumerate(holder)
        found |= {f"{index}/{name}": value for name, value in entries if isinstance(value, Tensor)}
    return found


def other_value(part: Any, field: dataclasses.Field) -> Any:
    """A valid value of this field that is not the one it has."""
    hint, value = typing.get_type_hints(type(part))[field.name], getattr(part, field.name)
    if field.name == "transforms":
        return "psi2" if value != "psi2" else "psi3"
    if typing.get_origin(hint) is Literal:
        return next(option for option in typing.get_args(hint) if option != value)
    if isinstance(hint, types.UnionType):
        return 7 if value is None else None
    if field.metadata["below"] is not None:
        return (value + field.metadata["below"]) / 2
    return {bool: lambda: not value, int: lambda: value + 1, float: lambda: 2 * value + 1}[hint]()


def check_is_a_value_without_state(part, toy, toys):
    fresh = type(part)()
    assert dataclasses.is_dataclass(part)
    assert part == fresh
    assert hash(part) == hash(fresh)
    with pytest.raises(dataclasses.FrozenInstanceError):
        part.strength = 1.0
    fields = {field.name for field in dataclasses.fields(part)}
    assert set(vars(part)) == fields
    toy.play(toy.learner(part))
    assert part == fresh
    assert vars(part) == vars(fresh)


def check_a_copy_in_use_knows_nothing_of_another(part, toy, toys):
    """The same object in two learners, in turns, gives what it gives in each alone."""
    alone = toy.learner(part)
    toy.play(alone)
    first, second = toy.learner(part), toy.learner(part, seed=1)
    for index, domain in enumerate(toy.domains[:2]):
        for learner in (first, second):
            learner.begin_domain(domain.train, first=index == 0)
            learner.steps(2)
            learner.end_domain(domain)
    toys.assert_same_bits(first.state(), alone.state())


def check_does_nothing_before_there_is_a_past(part, toy, toys):
    domain = toy.domains[0]
    learner, naive = toy.learner(part), toy.learner()
    for each in (learner, naive):
        each.begin_domain(domain.train, first=True)
    ctx = learner._context(part)
    raw = domain.train.sample(6, torch.Generator().manual_seed(0))
    grads = [torch.randn_like(param) for param in ctx.params.values()]
    assert part.extend(raw, ctx) is raw
    assert part.view(raw, ctx) is raw
    assert part.penalty(raw, raw, ctx) == 0.0
    assert part.gradient(grads, ctx) is grads
    assert learner.steps(3).read() == naive.steps(3).read()
    toys.assert_same_bits(learner.network.state(), naive.network.state())


def check_leaves_its_inputs_alone(part, toy, toys):
    learner = toy.on_second_domain(toy.learner(part))
    learner.steps(1)
    ctx, domain = learner._context(part), toy.domains[1]
    raw = domain.train.sample(6, torch.Generator().manual_seed(0))
    if part.uses_memory:
        raw = Batch.stack(raw, learner.memory.pool)
    grads = [torch.randn_like(param) for param in ctx.params.values()]
    seen = every_tensor(
        *(raw, domain.train, domain.test, dict(ctx.params), dict(ctx.state), learner.network.buffers, grads),
        *learner.memory.batches,
    )
    versions = {name: tensor._version for name, tensor in seen.items()}
    values = {name: tensor.detach().clone() for name, tensor in seen.items()}
    before_state = dict(ctx.state)

    batch = part.view(part.extend(raw, ctx), ctx)
    penalty = part.penalty(raw, batch, ctx)
    if isinstance(penalty, Tensor):
        assert penalty.requires_grad
        assert penalty.shape == ()
    part.gradient(grads, ctx)
    part.end_domain(domain, ctx)

    assert {name: tensor._version for name, tensor in seen.items()} == versions
    assert all(torch.equal(seen[name], value) for name, value in values.items())
    assert dict(ctx.state) == before_state
    assert all(param.grad is not None for param in ctx.params.values())  # the last step's own
    assert raw.x.dtype == batch.x.dtype == torch.uint8


def check_moves_batch_norm_as_the_policy_says(part, toy, toys):
    for policy in POLICIES:
        learner = toy.on_second_domain(toy.learner(part, batch_norm=policy), num_steps=1)
        expected = {name: value.clone() for name, value in learner.network.buffers.items()}
        passes = toys.record_passes(learner)
        learner.steps(1)
        moving = [seen for seen in passes if seen.role in statistics_passes(policy)]
        for seen in sorted(moving, key=lambda seen: STATISTICS_ORDER.index(seen.role)):
            statistics = toys.batch_statistics(learner, seen)
            for name, value in statistics.items():
                layer = learner.network.module.get_submodule(name.rpartition(".")[0])
                expected[name] = (1 - layer.momentum) * expected[name] + layer.momentum * value
        for name, value in learner.network.buffers.items():
            if name.endswith("num_batches_tracked"):
                assert value == expected[name] + len(moving)
            else:
                torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def check_end_of_a_domain_moves_no_statistics(part, toy, toys):
    learner = toy.learner(part, batch_norm="all")
    learner.begin_domain(toy.domains[0].train, first=True)
    learner.steps(2)
    before = {name: value.clone() for name, value in learner.network.state().items()}
    learner.end_domain(toy.domains[0])
    toys.assert_same_bits(learner.network.state(), before)
    learner.network.settle()
    toys.assert_same_bits(learner.network.state(), before)


def check_same_seed_same_result(part, toy, toys):
    first, second, other = toy.learner(part), toy.learner(part), toy.learner(part, seed=1)
    losses = [toy.play(learner, num_steps=3) for learner in (first, second, other)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]
    toys.assert_same_bits(first.state(), second.state())


def check_draws_only_from_its_own_stream(part, toy, toys):
    learner = toy.on_second_domain(toy.learner(part))
    others = [name for name in learner.streams if name not in (part.name, "outer")]
    before = {name: learner.streams[name].get_state() for name in others}
    global_before = torch.get_rng_state()
    learner.steps(2)
    assert all(torch.equal(learner.streams[name].get_state(), before[name]) for name in others)
    assert torch.equal(torch.get_rng_state(), global_before)


def check_state_survives_save_and_load(part, toy, toys):
    """A learner of another seed takes over everything: what it does next, across a domain's end, has the same bits."""
    for optimizer in ({"optimizer": "adam"}, {"optimizer": "sgd", "momentum": 0.9}):
        learner = toy.on_second_domain(toy.learner(part, **optimizer))
        learner.steps(2)
        stored = toys.clone_state(learner)
        other = toy.learner(part, seed=5, **optimizer)
        other.begin_domain(toy.domains[1].train, first=False)
        other.load(stored)
        toys.assert_same_bits(other.state(), learner.state())
        for each in (learner, other):
            each.steps(2)
            each.end_domain(toy.domains[1])
            each.begin_domain(toy.domains[2].train, first=False)
            each.steps(2)
        toys.assert_same_bits(other.state(), learner.state())


def check_shows_batches_of_the_same_form(part, toy, toys):
    """On masks too: images and labels stay together, labels stay in range, ignored pixels stay a label of their own."""
    learner = toy.on_second_domain(toy.learner(part))
    passes = toys.record_passes(learner)
    terms, _ = learner.steps(3).read()
    learner.end_domain(toy.domains[1])
    assert all(math.isfinite(term["loss"]) for term in terms)
    assert passes
    for seen in passes:
        x, y, replayed = seen.batch
        assert (x.dtype, y.dtype) == (torch.uint8, torch.int64)
        assert x.shape[1:] == (3, toys.SIDE, toys.SIDE)
        assert y.shape == ((len(x), toys.SIDE, toys.SIDE) if toy.task.on_masks else (len(x),))
        assert 0 <= replayed <= len(x)
        allowed = {*range(toy.task.num_classes), *([toy.task.ignore_index] if toy.task.on_masks else [])}
        assert set(y.unique().tolist()) <= allowed


def check_content_says_all_that_matters(part, toy, toys):
    content = part.content()
    assert json.loads(json.dumps(content)) == content
    assert content == type(part)().content()
    assert (content["part"], content["revision"]) == (type(part).name, type(part).revision)
    for field in dataclasses.fields(part):
        changed = dataclasses.replace(part, **{field.name: other_value(part, field)})
        assert changed != part
        assert json.dumps(changed.content()) != json.dumps(content), field.name


def check_every_field_runs(part, toy, toys):
    """No field, set away from its default, stops a step."""
    for field in dataclasses.fields(part):
        changed = dataclasses.replace(part, **{field.name: other_value(part, field)})
        terms = toy.play(toy.learner(changed), num_steps=1)
        assert all(math.isfinite(term["loss"]) for term in terms), field.name


CHECKS = [value for name, value in list(globals().items()) if name.startswith("check_")]
# Known exceptions are strict: once a check starts to pass, the stale entry fails the suite.
KNOWN_EXCEPTIONS = {
    ("dr", check_does_nothing_before_there_is_a_past): "DR transforms the first batch already: that is its definition",
    ("meta-dr", check_does_nothing_before_there_is_a_past): "Meta-DR looks at futures, which the first domain has too",
}


def cases():
    for name, check in itertools.product(PARTS, CHECKS):
        reason = KNOWN_EXCEPTIONS.get((name, check))
        marks = pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError) if reason else ()
        yield pytest.param(name, check, marks=marks, id=f"{name}-{check.__name__.removeprefix('check_')}")


@pytest.mark.parametrize(("name", "check"), list(cases()))
def test_part(name, check, toy, toys):
    check(PARTS[name](), toy, toys)


@pytest.mark.parametrize("name", PARTS)
def test_part_bears_a_domain_without_any_labelled_pixel(name, segmentation):
    learner = segmentation.on_second_domain(segmentation.learner(PARTS[name]()))
    train = segmentation.domains[1].train
    blank = Split(train.x, torch.full_like(train.y, segmentation.task.ignore_index))
    learner.begin_domain(blank, first=False)
    terms, _ = learner.steps(2).read()
    learner.end_domain(Domain("blank", blank, blank))
    learner.begin_domain(segmentation.domains[2].train, first=False)
    terms += learner.steps(2).read()[0]
    assert all(math.isfinite(term["loss"]) for term in terms)
    assert all(torch.isfinite(value).all() for value in learner.network.state().values())


def test_exceptions_name_registered_parts():
    assert {name for name, _ in KNOWN_EXCEPTIONS} <= set(PARTS)


SUMS = [*itertools.combinations(PARTS, 2), tuple(PARTS)]


@pytest.mark.parametrize("names", SUMS, ids="+".join)
def test_sums_of_parts_train(names, toy):
    parts = [PARTS[name]() for name in names]
    learner = toy.learner(*parts, batch_norm="all")
    before = {name: value.detach().clone() for name, value in learner.network.params.items()}
    terms = toy.play(learner, num_steps=3)
    assert all(math.isfinite(value) for term in terms for value in term.values())
    assert all(torch.isfinite(value).all() for value in learner.network.state().values())
    assert all(not torch.equal(value, before[name]) for name, value in learner.network.params.items())
    total = terms[-1].pop("loss")
    last = terms[-1]
    assert set(last) == {"clean", *({"l2", "ewc", "lwf", "meta-dr"} & set(names))}
    assert sum(last.values()) == pytest.approx(total)


def test_sum_in_any_order_has_the_same_bits(toy, toys):
    parts = [part() for part in PARTS.values()]
    first, second = toy.learner(*parts), toy.learner(*reversed(parts))
    for learner in (first, second):
        toy.play(learner)
    toys.assert_same_bits(first.state(), second.state())


def test_all_parts_together_survive_save_and_load(toy, toys):
    parts = [part() for part in PARTS.values()]
    learner = toy.on_second_domain(toy.learner(*parts))
    learner.steps(1)
    other = toy.learner(*parts, seed=5)
    other.begin_domain(toy.domains[1].train, first=False)
    other.load(toys.clone_state(learner))
    for each in (learner, other):
        each.steps(2)
    toys.assert_same_bits(other.state(), learner.state())


def test_memory_may_stay_clean_where_gem_and_er_meet_randomisation(toy, toys):
    parts = [PARTS["gem"](), PARTS["er"](), Randomize(transforms="invert", compositions=1, replayed=False)]
    learner = toy.on_second_domain(toy.learner(*parts))
    passes = toys.record_passes(learner)
    learner.steps(1)
    kept = {image.numpy().tobytes() for image in learner.memory.pool.x}
    memory = next(seen for seen in passes if seen.role == "memory")
    clean = next(seen for seen in passes if seen.role == "clean")
    assert {image.numpy().tobytes() for image in memory.batch.x} == kept
    assert {image.numpy().tobytes() for image in clean.batch.x[-clean.batch.replayed :]} <= kept
