"""Images that stay on the host: the same rows with their labels, the same bits wherever they lie."""

import pytest
import torch

from metadr.benchmarks import make_recipe
from metadr.core import Split
from metadr.domains import load_domains, read_domains
from metadr.errors import UserError
from metadr.parts import MetaDR, Randomize, Replay
from metadr.run import run
from metadr.store import description


def streamed_passes(toys, learner, num_steps: int) -> dict[str, list[bytes]]:
    """The images of every pass so far; kept as bytes, since the next step's are written over them."""
    seen: dict[str, list[bytes]] = {}
    original = learner.network.loss

    def loss(batch, params=None, *, role):
        seen.setdefault(role, []).extend(toys.pictures(batch.x))
        return original(batch, params, role=role)

    learner.network.loss = loss
    learner.steps(num_steps)
    return seen


def test_streamed_epochs_cover_the_domain_and_inner_batches_are_drawn(toy, toys):
    learner = toy.learner(MetaDR("identity"), stream=True, sampling="shuffled")
    train = toy.domains[0].train
    learner.begin_domain(train, first=True)
    seen = streamed_passes(toys, learner, 8)
    everything = set(toys.pictures(train.x))
    for epoch in (seen["clean"][:24], seen["clean"][24:]):
        assert set(epoch) == everything and len(epoch) == 24
    assert seen["clean"][:24] != seen["clean"][24:]
    assert len(seen["inner"]) == 48 and len(set(seen["inner"][:24])) < 24 and set(seen["inner"]) <= everything


def test_streamed_rows_carry_their_labels_and_are_drawn_uniformly(toy, toys):
    learner = toy.learner(stream=True)
    train = toy.domains[0].train
    learner.begin_domain(train, first=True)
    labels = dict(zip(toys.pictures(train.x), train.y, strict=True))
    counts = dict.fromkeys(labels, 0)
    streamed = learner._streamed
    for _ in range(200):
        streamed.next_step()
        streamed.begin()
        x, y, _ = streamed.batch()
        for image, label in zip(toys.pictures(x), y, strict=True):
            assert torch.equal(labels[image], label)
            counts[image] += 1
    assert min(counts.values()) > 25 and max(counts.values()) < 80  # 50 each, on average


@pytest.mark.parametrize("sampling", ["uniform", "shuffled"])
@pytest.mark.parametrize("stop", [1, 4, 6])
def test_a_streamed_learner_goes_on_from_any_step_to_the_same_bits(stop, sampling, toy, assert_goes_on):
    settings = {"sampling": sampling, "mirror": True, "stream": True}
    whole, half, rest = (toy.learner(Replay(), MetaDR(), **settings) for _ in range(3))
    for learner in (whole, half):
        toy.on_second_domain(learner, num_steps=3)
    rest.begin_domain(toy.domains[1].train, first=False)
    assert_goes_on(whole, half, rest, stop)


def test_a_recorded_streamed_step_is_kept_for_a_domain_with_other_images(toy, toys, monkeypatch):
    class Recording:
        def __init__(self, function, generators):
            self.replay = function

    monkeypatch.setattr("metadr.engine.learner.Captured", Recording)
    learner, plain = (toy.learner(Randomize("identity"), stream=True, optimizer="sgd") for _ in range(2))
    for each in (learner, plain):
        each._new_optimizer = lambda lr, each=each: torch.optim.SGD(each.network.params.values(), lr=torch.tensor(lr))
    learner._capturing = True
    for domain, num_images in zip(toy.domains[:2], (24, 20), strict=True):
        before = domain.train.x.clone()
        for each in (learner, plain):
            each.begin_domain(domain.train.first(num_images), first=True)
        assert (learner._captured is not None) == (num_images == 20)
        learner.steps(3)
        plain.steps(3)
        assert torch.equal(domain.train.x, before)
    toys.assert_same_bits(learner.state(), plain.state())


@pytest.mark.parametrize("method", ["naive", "dr+er+ewc+gem+l2+meta-dr", "oracle-all"])
def test_every_method_runs_on_streamed_images(method, registered_toys, tmp_path):
    recipe = make_recipe("toy-masks", method, tiny=True, stream=True, mirror=True)
    result = run(recipe, out=tmp_path, device="cpu")
    assert len(result.rows) == 12 and all(0 <= row["value"] <= 100 for row in result.rows)
    resident = run(make_recipe("toy-masks", method, tiny=True, mirror=True), out=tmp_path, device="cpu")
    assert result.rows[0] == resident.rows[0]  # untrained, it is the same network on the same images


def test_images_that_do_not_fit_on_the_device_are_told_of(registered_toys, monkeypatch, tmp_path):
    def full(split, device):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Split, "to", full)
    with pytest.raises(UserError, match=r"images of domain 'red'.*do not fit on cpu.*--set stream=true"):
        run(make_recipe("toy-masks"), out=tmp_path, device="cpu")


def test_images_on_the_device_give_the_bits_of_those_on_the_host(toy, toys):
    learners = [toy.learner(Replay(), MetaDR(), stream="auto", sampling="shuffled", mirror=True) for _ in range(2)]
    for learner in learners:
        toy.on_second_domain(learner, num_steps=5)
    assert not learners[0]._streamed._on_device
    learners[1]._streamed._on_device = True  # gathered there, without workers
    for learner in learners:
        learner.steps(6)
    toys.assert_same_bits(learners[1].state(), learners[0].state())


def test_auto_is_the_run_that_streams_wherever_its_images_lie(registered_toys):
    drawn_there, streamed, auto = (make_recipe("toy-masks", stream=value) for value in (False, True, "auto"))
    assert description(auto) == description(streamed) != description(drawn_there)
    assert make_recipe("toy-masks", stream="auto") == auto
    with pytest.raises(UserError, match="The 'stream' parameter of Training must be true or false or one of 'auto'"):
        make_recipe("toy-masks", stream="perhaps")


def test_images_stay_on_the_host_where_they_would_take_half_of_what_is_free(registered_toys, monkeypatch):
    device = torch.device("meta")
    recipe = make_recipe("toy-masks", stream="auto")
    size = sum(tensor.nbytes for domain in read_domains(recipe) for split in domain[1:3] for tensor in split)

    def places(recipe, free):
        monkeypatch.setattr("metadr.domains.free_bytes", lambda device: free)
        loaded = load_domains(recipe, device)
        return loaded, {each.domain.train.x.device.type for each in loaded}

    assert places(recipe, 2 * size - 1)[1] == {"cpu"}
    held, where = places(recipe, 2 * size)
    assert where == {"meta"}
    assert places(recipe, 0)[1] == {"meta"}  # another run holds them: nothing more is needed
    del held
    assert places(recipe, 0)[1] == {"cpu"}
    assert places(make_recipe("toy-masks", stream=True), 9 * size)[1] == {"cpu"}
    assert places(make_recipe("toy-masks"), 0)[1] == {"meta"}
