"""What methods do, step by step: which images they see, what they keep, what they leave alone."""

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor, nn

from metadr.core import Batch, Domain, Recipe, Split
from metadr.engine.learner import Learner
from metadr.engine.streams import stream_seed
from metadr.errors import UserError
from metadr.parts import EWC, GEM, L2, PARTS, MetaDR, Randomize, Replay
from metadr.run import run
from metadr.store import key_of

INVERT = {"transforms": "invert", "compositions": 1}
NOTHING = {"transforms": "identity"}
METHODS = {
    "naive": (),
    "dr": (Randomize(),),
    "dr per image": (Randomize(per="image"),),
    "meta-dr": (MetaDR(),),
    "meta-dr, two meta-domains": (MetaDR(meta_domains=2),),
    "er": (Replay(),),
    "gem": (GEM(),),
    "ewc, sampled labels": (EWC(fisher_labels="sampled"),),
    "all": tuple(part() for part in PARTS.values()),
}


def pictures(images: Tensor) -> list[bytes]:
    """Images as values that can be compared, counted and looked up."""
    return [image.numpy().tobytes() for image in images]


def by_role(passes) -> dict[str, list[Batch]]:
    return {role: [seen.batch for seen in passes if seen.role == role] for role in {seen.role for seen in passes}}


def outer_images(toy, learner: Learner, monkeypatch) -> list[bytes]:
    """All that the learner draws from its outer stream on two domains."""
    drawn, original = [], Split.sample

    def sample(split: Split, num_images: int, rng: torch.Generator) -> Batch:
        batch = original(split, num_images, rng)
        if rng is learner.streams["outer"]:
            drawn.extend(pictures(batch.x))
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(Split, "sample", sample)
        toy.play(learner, num_steps=4)
    return drawn


# Streams.


@pytest.mark.parametrize("method", METHODS)
def test_no_part_moves_the_outer_batches(method, toy, monkeypatch):
    expected = []
    rng = torch.Generator().manual_seed(stream_seed(0, "outer"))
    for domain, _ in itertools.product(toy.domains[:2], range(4)):
        expected += pictures(domain.train.x[torch.randint(domain.train.num_images, (6,), generator=rng)])
    assert outer_images(toy, toy.learner(*METHODS[method]), monkeypatch) == expected


@pytest.mark.parametrize("part", [Randomize(transforms="psi1"), Replay()], ids=lambda part: part.name)
def test_no_part_moves_the_stream_of_another(part, toy):
    """GEM views its memory as DR would, Meta-DR's inner batch is extended by ER: both from streams of their own."""
    states = []
    for others in ((), (GEM(), MetaDR(meta_domains=2), EWC(fisher_labels="sampled"))):
        learner = toy.learner(part, *others)
        toy.play(learner, num_steps=3)
        states.append(learner.streams[part.name].get_state())
    assert torch.equal(states[0], states[1])


def test_streams_have_seeds_of_their_own():
    names = ["outer", "memory", "init", "hidden", *PARTS]
    seeds = {stream_seed(seed, name) for seed in range(20) for name in names}
    assert len(seeds) == 20 * len(names)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_layers_that_draw_use_the_learners_hidden_stream(classification, toys):
    """Dropout: the same masks for the same seed, whatever is drawn elsewhere, and nothing left behind."""

    def learner() -> Learner:
        return classification.learner(module=nn.Sequential(classification.module(), nn.Dropout(0.5)))

    first, second = learner(), learner()
    before = torch.get_rng_state()
    classification.play(first, num_steps=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(17)
    for index, domain in enumerate(classification.domains[:2]):
        second.begin_domain(domain.train, first=index == 0)
        for _ in range(4):
            second.steps(1)
        second.end_domain(domain)
    toys.assert_same_bits(first.state(), second.state())


# Methods that come to the same.


def forward_calls(learner: Learner) -> list[int]:
    calls: list[int] = []
    learner.network.module.register_forward_hook(lambda *_: calls.append(1))
    return calls


def test_meta_dr_without_its_terms_is_naive(toy, toys):
    learner, naive = toy.learner(MetaDR(recall=0.0, adapt=0.0)), toy.learner()
    stream = learner.streams["meta-dr"].get_state()
    counts = {}
    for name, each in (("meta-dr", learner), ("naive", naive)):
        calls = forward_calls(each)
        terms = toy.play(each, num_steps=8)
        counts[name] = len(calls)
        assert all(list(term) == ["loss", "clean"] for term in terms)
    assert counts == {"meta-dr": 16, "naive": 16}
    assert torch.equal(learner.streams["meta-dr"].get_state(), stream)
    ours, theirs = learner.state(), naive.state()
    assert {name.partition("/")[0] for name in ours.keys() - theirs.keys()} == {"stream", "beside"}
    toys.assert_same_bits({name: ours[name] for name in theirs}, theirs)
    assert learner.network.moved == {"all", "inner+clean"}  # no pass has moved what is of the inner one alone


@pytest.mark.parametrize(("recall", "adapt", "extra"), [(1.0, 1.0, 3), (1.0, 0.0, 2), (0.0, 1.0, 2)])
def test_meta_dr_runs_no_pass_that_it_does_not_need(recall, adapt, extra, toy):
    learner = toy.learner(MetaDR(recall=recall, adapt=adapt))
    calls = forward_calls(learner)
    toy.play(learner, num_steps=4)
    assert len(calls) == 2 * 4 * (1 + extra)


@pytest.mark.parametrize("per", ["batch", "image"])
def test_randomisation_by_nothing_is_naive(per, toy, toys):
    learner, naive = toy.learner(Randomize(**NOTHING, per=per)), toy.learner()
    for each in (learner, naive):
        toy.play(each, num_steps=6)
    toys.assert_same_bits(learner.network.state(), naive.network.state())


@pytest.mark.parametrize("part", [L2(strength=0.0), EWC(strength=0.0)], ids=lambda part: part.name)
def test_pull_of_no_strength_is_naive(part, toy, toys):
    learner, naive = toy.learner(part), toy.learner()
    for each in (learner, naive):
        toy.play(each, num_steps=4)
    toys.assert_same_bits(learner.network.state(), naive.network.state())


# Memory and replay.


def test_memory_holds_different_training_images_of_every_past_domain(toy):
    kept = {}
    for seed in (0, 0, 1):
        learner = toy.learner(Replay(), seed=seed, memory=5)
        toy.play(learner, num_domains=3)
        assert len(learner.memory.batches) == 3
        for domain, batch in zip(toy.domains, learner.memory.batches, strict=True):
            known = pictures(domain.train.x)
            assert len(set(known)) == domain.train.num_images
            rows = [known.index(image) for image in pictures(batch.x)]
            assert len(set(rows)) == len(rows) == 5
            assert torch.equal(batch.y, domain.train.y[rows])
            assert batch.replayed == 5
        assert pictures(learner.memory.pool.x) == [image for b in learner.memory.batches for image in pictures(b.x)]
        images = pictures(learner.memory.pool.x)
        assert kept.setdefault(seed, images) == images
    assert set(kept[0]) != set(kept[1])


def test_memory_is_the_same_for_every_part_that_uses_it(toy):
    memories = []
    for parts in ((Replay(),), (GEM(),), (Replay(), GEM(), Randomize(), MetaDR(), EWC(fisher_labels="sampled"))):
        learner = toy.learner(*parts)
        toy.play(learner)
        memories.append(pictures(learner.memory.pool.x))
    assert memories[0] == memories[1] == memories[2]


def test_memory_of_a_small_domain_holds_all_of_it(classification):
    learner = classification.learner(Replay(), memory=1000)
    domain = classification.domains[0]
    classification.play(learner, num_domains=1, num_steps=1)
    assert sorted(pictures(learner.memory.pool.x)) == sorted(pictures(domain.train.x))


def test_memory_of_the_first_images_is_a_choice(toy, toys):
    """The same streams either way: what else is drawn does not depend on the choice."""
    learners = []
    for choice in ("random", "first"):
        learner = toy.learner(GEM())
        learner.recipe = dataclasses.replace(learner.recipe, memory_choice=choice)
        toy.play(learner)
        learners.append(learner)
    random, first = learners
    for domain, batch in zip(toy.domains[:2], first.memory.batches, strict=True):
        assert torch.equal(batch.x, domain.train.x[:4])
        assert torch.equal(batch.y, domain.train.y[:4])
    assert pictures(random.memory.pool.x) != pictures(first.memory.pool.x)
    for name, stream in random.streams.items():
        assert torch.equal(stream.get_state(), first.streams[name].get_state())


def test_memory_images_are_a_fair_draw(classification):
    """Every training image is kept about as often as any other."""
    domain, counts = classification.domains[0], {}
    for seed in range(200):
        learner = classification.learner(Replay(), seed=seed, memory=6)
        learner.end_domain(domain)
        for image in pictures(learner.memory.pool.x):
            counts[image] = counts.get(image, 0) + 1
    expected = 200 * 6 / domain.train.num_images
    assert len(counts) == domain.train.num_images
    assert max(abs(count - expected) for count in counts.values()) < 4.5 * (expected * 0.75) ** 0.5


@pytest.mark.parametrize("replay_batch", [None, 2, 9])
def test_replay_stacks_memory_on_the_current_batch(replay_batch, toy, toys):
    learner = toy.learner(Replay(replay_batch=replay_batch))
    passes = toys.record_passes(learner)
    toy.play(learner, num_domains=3, num_steps=3)
    clean = by_role(passes)["clean"]
    for step, batch in enumerate(clean):
        stage = step // 3
        replayed = 0 if stage == 0 else (replay_batch or 6)
        assert (len(batch.x), batch.replayed) == (6 + replayed, replayed)
        current = set(pictures(toy.domains[stage].train.x))
        assert set(pictures(batch.x[:6])) <= current
        remembered = {image for past in learner.memory.batches[:stage] for image in pictures(past.x)}
        assert set(pictures(batch.x[6:])) <= remembered


def test_replay_draws_from_all_memories_together(toy):
    learner = toy.learner(Replay(replay_batch=200))
    toy.play(learner, num_domains=3, num_steps=1)
    batch = learner.memory.sample(3000, torch.Generator().manual_seed(0))
    seen = pictures(batch.x)
    counts = [seen.count(image) for image in pictures(learner.memory.pool.x)]
    assert sum(counts) == 3000
    assert min(counts) > 0.75 * 3000 / len(counts)


def test_empty_memory_cannot_be_sampled(toy):
    with pytest.raises(RuntimeError, match="empty memory"):
        toy.learner(Replay()).memory.sample(1, torch.Generator())


@pytest.mark.parametrize("replayed", [True, False])
def test_randomisation_of_replayed_images_is_a_choice(replayed, toy, toys):
    learner = toy.on_second_domain(toy.learner(Replay(), Randomize(**INVERT, replayed=replayed)))
    passes = toys.record_passes(learner)
    learner.steps(2)
    current, memory = set(pictures(toy.domains[1].train.x)), set(pictures(learner.memory.pool.x))
    for batch in by_role(passes)["clean"]:
        assert batch.replayed == 6
        assert set(pictures(255 - batch.x[:6])) <= current
        kept = 255 - batch.x[6:] if replayed else batch.x[6:]
        assert set(pictures(kept)) <= memory


@pytest.mark.parametrize("inner_replay", [True, False])
def test_memory_on_the_inner_batch_is_a_choice(inner_replay, toy, toys):
    learner = toy.on_second_domain(toy.learner(Replay(), MetaDR(**NOTHING, inner_replay=inner_replay)))
    passes = toys.record_passes(learner)
    learner.steps(2)
    seen = by_role(passes)
    memory = set(pictures(learner.memory.pool.x))
    for inner, clean, recall, adapt in zip(
        *(seen[role] for role in ("inner", "clean", "recall", "adapt")), strict=True
    ):
        assert (len(inner.x), inner.replayed) == ((12, 6) if inner_replay else (6, 0))
        assert set(pictures(inner.x[6:])) <= memory
        assert pictures(clean.x) == pictures(recall.x) == pictures(adapt.x)
        assert clean.replayed == 6
        assert set(pictures(clean.x[6:])) <= memory
        assert pictures(inner.x) != pictures(clean.x)


# Meta-DR beside others.


def test_meta_dr_transforms_raw_images_beside_randomisation(toy, toys):
    """`meta-dr+dr`: randomised images in the clean and the recall term, T on the raw ones."""
    learner = toy.learner(Randomize(**INVERT), MetaDR(transforms="identity"))
    learner.begin_domain(toy.domains[0].train, first=True)
    passes = toys.record_passes(learner)
    learner.steps(3)
    seen, known = by_role(passes), set(pictures(toy.domains[0].train.x))
    for inner, clean, recall, adapt in zip(
        *(seen[role] for role in ("inner", "clean", "recall", "adapt")), strict=True
    ):
        assert pictures(clean.x) == pictures(recall.x)
        assert pictures(adapt.x) == pictures(255 - clean.x)
        assert set(pictures(adapt.x)) <= known
        assert set(pictures(inner.x)) <= known


def test_meta_domains_are_averaged(toy, toys):
    learner = toy.learner(MetaDR(recall=0.5, adapt=2.0, meta_domains=3))
    learner.begin_domain(toy.domains[0].train, first=True)
    passes = toys.record_passes(learner)
    terms = learner.step()
    losses = {role: [seen.loss for seen in passes if seen.role == role] for role in ("inner", "recall", "adapt")}
    assert [len(values) for values in losses.values()] == [3, 3, 3]
    expected = (0.5 * sum(losses["recall"]) + 2.0 * sum(losses["adapt"])) / 3
    torch.testing.assert_close(terms.by_name["meta-dr"], expected)
    inner = [pictures(batch.x) for batch in by_role(passes)["inner"]]
    assert inner[0] != inner[1] != inner[2]


# Oracles.


@pytest.mark.parametrize(("access", "seen"), [("current", [1, 1, 1]), ("so_far", [1, 2, 3]), ("all", [3, 3, 3])])
def test_access_decides_what_is_sampled(access, seen, registered_toys, tmp_path, monkeypatch):
    toy = registered_toys["classification"]
    stages, original = [], Split.sample

    def sample(split: Split, num_images: int, rng: torch.Generator) -> Batch:
        batch = original(split, num_images, rng)
        if not stages or stages[-1][0] is not split:
            stages.append((split, []))
        stages[-1][1].extend(pictures(batch.x))
        return batch

    monkeypatch.setattr(Split, "sample", sample)
    recipe = toy.recipe(access=access, overrides=(("steps", 6), ("batch_size", 24)))
    run(recipe, out=tmp_path, device="cpu")
    assert len(stages) == 3
    for stage, (split, drawn) in enumerate(stages):
        visible = {"current": [stage], "so_far": list(range(stage + 1)), "all": [0, 1, 2]}[access]
        assert len(visible) == seen[stage]
        sources = {index: set(pictures(toy.domains[index].train.x)) for index in range(3)}
        assert sorted(pictures(split.x)) == sorted(itertools.chain(*(sources[index] for index in visible)))
        share = [sum(image in sources[index] for image in drawn) for index in range(3)]
        assert sum(share) == len(drawn) == 6 * 24
        assert [index for index in range(3) if share[index]] == visible
        assert min(share[index] for index in visible) > 0.5 * len(drawn) / len(visible)


# The optimiser.


@pytest.mark.parametrize(
    ("settings", "kind"), [({"optimizer": "adam"}, torch.optim.Adam), ({"optimizer": "sgd"}, torch.optim.SGD)]
)
def test_optimiser_is_new_at_each_domain(settings, kind, classification):
    learner = classification.learner(lr=0.02, later_lr=0.003, momentum=0.9, **settings)
    optimizers = []
    for index, domain in enumerate(classification.domains):
        learner.begin_domain(domain.train, first=index == 0)
        assert type(learner.optimizer) is kind
        (group,) = learner.optimizer.param_groups
        assert group["lr"] == (0.02 if index == 0 else 0.003)
        assert group.get("momentum", 0.9) == 0.9
        assert not learner.optimizer.state_dict()["state"]
        assert all(learner.optimizer is not other for other in optimizers)
        optimizers.append(learner.optimizer)
        learner.steps(2)
        assert learner.optimizer.state_dict()["state"]
        learner.end_domain(domain)


def test_first_step_of_a_domain_has_the_size_of_its_rate(classification):
    """A new Adam moves every parameter by its rate; one with moments of the domain before would not."""
    learner = classification.learner(lr=0.02, later_lr=0.003)
    for index, domain in enumerate(classification.domains[:2]):
        learner.begin_domain(domain.train, first=index == 0)
        before = [param.detach().clone() for param in learner.network.params.values()]
        learner.steps(1)
        for param, old in zip(learner.network.params.values(), before, strict=True):
            moved = (param.detach() - old).abs()[param.grad.abs() > 1e-5]
            torch.testing.assert_close(moved, torch.full_like(moved, 0.02 if index == 0 else 0.003), rtol=2e-3, atol=0)
        learner.steps(3)


def test_plain_gradient_descent_subtracts_rate_times_gradient(classification):
    learner = classification.learner(optimizer="sgd", lr=0.02)
    learner.begin_domain(classification.domains[0].train, first=True)
    before = {name: param.detach().clone() for name, param in learner.network.params.items()}
    learner.steps(1)
    for name, param in learner.network.params.items():
        torch.testing.assert_close(param.detach(), before[name] - 0.02 * param.grad, rtol=1e-6, atol=1e-8)


def test_parameters_that_need_no_gradient_stay(classification):
    module = classification.module()
    module[0].weight.requires_grad_(False)
    frozen = module[0].weight.clone()
    learner = classification.learner(*METHODS["all"], module=module)
    classification.play(learner)
    assert "0.weight" not in learner.network.params
    assert torch.equal(module[0].weight, frozen)
    assert "model/0.weight" in learner.state()


def test_checkpoint_can_be_gone_on_from_twice(classification, toys):
    """Loading copies: a learner that goes on must not write into the tensors it was given."""
    learner = classification.on_second_domain(classification.learner(*METHODS["all"]))
    learner.steps(2)
    stored = toys.clone_state(learner)
    kept = {name: value.clone() for name, value in stored.items()}
    learner.load(stored)
    learner.steps(2)
    toys.assert_same_bits(stored, kept)


# The quadratic pull.


def anchored(toy, part, monkeypatch) -> tuple[Learner, list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    """A learner after three domains, in float64, with the parameters and the importance at the end of each."""
    learner = toy.learner(part, module=toy.module().double(), lr=0.05, later_lr=0.02)
    anchors, importance = [], []
    original = EWC.fisher

    def fisher(self, split, ctx):
        importance.append(original(self, split, ctx))
        return importance[-1]

    monkeypatch.setattr(EWC, "fisher", fisher)
    for index, domain in enumerate(toy.domains):
        learner.begin_domain(domain.train, first=index == 0)
        learner.steps(3)
        anchors.append({name: value.detach().clone() for name, value in learner.network.params.items()})
        learner.end_domain(domain)
    if isinstance(part, L2):
        importance = [{name: torch.ones_like(value) for name, value in anchor.items()} for anchor in anchors]
    learner.begin_domain(toy.domains[0].train, first=False)
    learner.steps(2)
    return learner, anchors, importance


@pytest.mark.parametrize("anchors", ["all", "last"])
@pytest.mark.parametrize("kind", [L2, EWC])
def test_pull_is_the_plain_sum_over_past_domains(kind, anchors, toy, monkeypatch):
    part = kind(strength=3.0, anchors=anchors)
    learner, places, importance = anchored(toy, part, monkeypatch)
    assert len(places) == len(importance) == 3
    if anchors == "last":
        places, importance = places[-1:], importance[-1:]
    params = learner.network.params
    expected = sum(
        1.5 * (weight[name] * (params[name] - place[name]) ** 2).sum()
        for place, weight in zip(places, importance, strict=True)
        for name in params
    )
    raw = toy.domains[0].train.sample(2, torch.Generator())
    penalty = part.penalty(raw, raw, learner._context(part))
    torch.testing.assert_close(penalty, expected, rtol=1e-9, atol=0)
    ours, theirs = (torch.autograd.grad(value, list(params.values())) for value in (penalty, expected))
    for mine, reference in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-8, atol=1e-12)


def test_pull_of_a_row_has_the_bits_of_a_pull_of_each_tensor(toy):
    part = EWC(strength=1.0)
    learner = toy.on_second_domain(toy.learner(part), num_steps=3)
    learner.steps(2)
    ctx, raw = learner._context(part), toy.domains[0].train.sample(2, torch.Generator())
    params = list(ctx.params.values())
    ours = torch.autograd.grad(part.penalty(raw, raw, ctx), params)
    each = [
        0.5 * (ctx.state[f"weight.{name}"] * (value - ctx.state[f"mean.{name}"]).square()).sum()
        for name, value in ctx.params.items()
    ]
    assert any(value.any() for value in ours)
    assert all(map(torch.equal, ours, torch.autograd.grad(sum(each), params)))


@pytest.mark.parametrize("kind", [L2, EWC])
def test_pull_begins_at_zero_and_enters_the_loss(kind, toy):
    learner = toy.on_second_domain(toy.learner(kind(strength=5.0)), num_steps=3)
    first, *_, last = learner.steps(6).read()[0]
    assert first[kind.name] == 0
    assert last[kind.name] > 0
    assert last["loss"] == pytest.approx(last["clean"] + last[kind.name])


def test_stronger_pull_keeps_parameters_closer(classification):
    distances = []
    for strength in (0.0, 1.0, 100.0):
        learner = classification.on_second_domain(
            classification.learner(L2(strength=strength), optimizer="sgd", later_lr=0.01)
        )
        before = {name: value.detach().clone() for name, value in learner.network.params.items()}
        learner.steps(20)
        distances.append(sum(float((v.detach() - before[n]).square().sum()) for n, v in learner.network.params.items()))
    assert distances[0] > distances[1] > distances[2] > 0


# Sums, and their keys.


def test_sum_commutes(registered_toys):
    toy = registered_toys["classification"]
    for parts in itertools.permutations([Replay(), Randomize(), EWC()]):
        recipe = toy.recipe(*parts)
        assert recipe == toy.recipe(Replay(), Randomize(), EWC())
        assert recipe.method_name == "dr+er+ewc"
        assert key_of(recipe, 0) == key_of(toy.recipe(EWC(), Randomize(), Replay()), 0)


def test_key_changes_with_anything_that_changes_the_run(registered_toys):
    toy = registered_toys["classification"]
    recipe = toy.recipe(Replay(), Randomize())
    others = [
        toy.recipe(Replay()),
        toy.recipe(Replay(), Randomize(per="batch")),
        toy.recipe(Replay(), Randomize(transforms="psi2")),
        toy.recipe(Replay(replay_batch=3), Randomize()),
        toy.recipe(Replay(), Randomize(), memory=5),
        toy.recipe(Replay(), Randomize(), access="all"),
        *(
            toy.recipe(Replay(), Randomize(), overrides=(change,))
            for change in (("lr", 0.5), ("steps", 9), ("batch_norm", "none"), ("limit", 5), ("scaling", "imagenet"))
        ),
        dataclasses.replace(recipe, memory_choice="first"),
        dataclasses.replace(recipe, order=recipe.order[::-1]),
        dataclasses.replace(recipe, order=recipe.order[:2]),
        dataclasses.replace(recipe, benchmark=registered_toys["segmentation"].benchmark.name),
    ]
    keys = [key_of(recipe, 0), key_of(recipe, 1), *(key_of(other, 0) for other in others)]
    assert len(set(keys)) == len(keys)
    assert key_of(recipe, 0) == key_of(dataclasses.replace(recipe), 0)
    stated = dataclasses.replace(recipe, overrides=(("steps", toy.benchmark.training.steps),))
    assert key_of(stated, 0) == key_of(recipe, 0)


def test_key_changes_with_the_revision_of_a_part(registered_toys, monkeypatch):
    recipe = registered_toys["classification"].recipe(Replay(), Randomize())
    before = key_of(recipe, 0)
    monkeypatch.setattr(Randomize, "revision", Randomize.revision + 1)
    assert key_of(recipe, 0) != before


@pytest.mark.parametrize(
    ("parts", "memory", "sentence"),
    [
        ((Replay(), Replay(replay_batch=3)), 4, "Part 'er' is twice in the method. Each part may be named once."),
        ((GEM(),), 0, "Part 'gem' needs a memory, but memory_per_domain is 0. Give it 1 or more (paper: 100)."),
        ((L2(),), 3, "memory_per_domain is 3, but no part of method 'l2' uses a memory."),
    ],
)
def test_sums_that_make_no_sense_are_refused(parts, memory, sentence):
    with pytest.raises(UserError) as error:
        Recipe("toy-shapes", ("red",), parts, memory_per_domain=memory)
    assert sentence in str(error.value)


def test_rotation_takes_masks_along_and_uncovers_ignored_pixels(segmentation, toys):
    """On masks, T moves labels with their pixels: an image and its mask as one picture stay one picture."""
    train = segmentation.domains[0].train
    labels = train.y.clamp(max=254).to(torch.uint8)
    twin = Split(labels[:, None].expand(-1, 3, -1, -1).contiguous(), train.y)
    learner = segmentation.learner(Randomize(transforms="rotate:30:60:3", compositions=1, per="image"))
    learner.begin_domain(twin, first=True)
    passes = toys.record_passes(learner)
    learner.steps(2)
    for batch in by_role(passes)["clean"]:
        inside = batch.x[:, 0].long()
        moved = batch.y.clamp(max=254)
        uncovered = (batch.y == 255) & (inside == 0)
        assert uncovered.any()
        assert torch.equal(inside[~uncovered], moved[~uncovered])


def test_end_of_a_domain_shows_the_part_that_domain(classification, monkeypatch):
    """With an oracle's access the learner trains on a union, but a part keeps what belongs to the domain that ends."""
    seen = []
    original = EWC.fisher
    monkeypatch.setattr(EWC, "fisher", lambda self, split, ctx: seen.append(split) or original(self, split, ctx))
    learner = classification.learner(EWC(), Replay())
    domain: Domain = classification.domains[0]
    learner.begin_domain(Split.union([each.train for each in classification.domains]), first=True)
    learner.steps(1)
    learner.end_domain(domain)
    assert seen == [domain.train]
    assert set(pictures(learner.memory.pool.x)) <= set(pictures(domain.train.x))
