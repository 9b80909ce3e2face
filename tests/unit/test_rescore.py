"""Re-estimated statistics against plain arithmetic in float64, and what a run that is tested again leaves behind."""

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import metadr
from metadr import models
from metadr.benchmarks import BENCHMARKS
from metadr.engine.network import Network
from metadr.engine.reestimate import Tally, norms_of, reestimate
from metadr.evaluate import by_batches, confusion, score, tell
from metadr.report.regained import final_rows, regained_rows, text_regained, write_regained
from metadr.rescore import FILE, OF_THE_BATCH, OF_THE_RUN, Rescored, rescore
from metadr.run import advance
from metadr.sequence import BY_BATCH, DomainSequence
from metadr.store import RunDirectory


def by_hand(module: nn.Module, x: Tensor, num_batches: int) -> dict[str, Tensor]:
    """The statistics of every batch norm of a plain chain of layers: each layer is called, and its input looked at."""
    pieces: dict[str, list[Tensor]] = {}
    for batch in x.tensor_split(num_batches):
        now = batch.double() / 255
        for name, layer in module.named_children():
            if isinstance(layer, nn.BatchNorm2d):
                pieces.setdefault(name, []).append(now)
                mean, var = now.mean((0, 2, 3), keepdim=True), now.var((0, 2, 3), correction=0, keepdim=True)
                scale, shift = layer.weight.view(1, -1, 1, 1), layer.bias.view(1, -1, 1, 1)
                now = (now - mean) / torch.sqrt(var + layer.eps) * scale + shift
            elif not isinstance(layer, nn.Dropout):
                now = layer(now)
    whole = {name: torch.cat(parts) for name, parts in pieces.items()}
    means = {f"{name}.running_mean": value.mean((0, 2, 3)) for name, value in whole.items()}
    return means | {f"{name}.running_var": value.var((0, 2, 3), correction=1) for name, value in whole.items()}


@pytest.mark.parametrize(("batch_size", "num_batches"), [(500, 1), (24, 1), (12, 2), (10, 3), (23, 2)])
def test_statistics_are_those_of_plain_arithmetic(classification: Any, batch_size: int, num_batches: int) -> None:
    module = classification.module().double()
    network = Network(module, classification.task)
    x = classification.domains[0].train.x
    assert len(x) == 24
    with torch.no_grad():
        expected = by_hand(copy.deepcopy(module), x, num_batches)
    reestimate(network, x, batch_size=batch_size)
    assert len(expected) == 4
    for name, value in expected.items():
        torch.testing.assert_close(network.buffers[name], value, rtol=1e-12, atol=1e-12)


def test_statistics_in_float32_are_close(classification: Any) -> None:
    module = classification.module()
    expected = by_hand(copy.deepcopy(module).double(), x := classification.domains[1].train.x, 2)
    network = Network(module, classification.task)
    reestimate(network, x, batch_size=12)
    for name, value in expected.items():
        torch.testing.assert_close(network.buffers[name].double(), value.detach(), rtol=1e-5, atol=1e-6)


def test_a_test_then_normalises_these_images_to_mean_0_and_variance_1(classification: Any) -> None:
    """What statistics are for. Deeper layers are off by as much as variances with n - 1 are from those with n."""
    network = Network(classification.module().double(), classification.task)
    x, seen = classification.domains[0].train.x, []
    reestimate(network, x)
    for norm in norms_of(network):
        norm.register_forward_hook(lambda layer, inputs, output: seen.append(output))
    with torch.no_grad():
        network.logits(x)
    assert len(seen) == 2
    for out, norm, close in zip(seen, norms_of(network), (1e-12, 1e-3), strict=True):
        count = out.numel() / out.shape[1]
        expected = norm.running_var * (count - 1) / count / (norm.running_var + norm.eps)
        torch.testing.assert_close(out.mean((0, 2, 3)), torch.zeros_like(expected), rtol=0, atol=close)
        torch.testing.assert_close(out.var((0, 2, 3), correction=0), expected, rtol=close, atol=0)


def test_nothing_but_the_statistics_changes(classification: Any) -> None:
    learner = classification.learner()
    classification.play(learner)
    network, x = learner.network, classification.domains[2].train.x
    before = {name: value.clone() for name, value in network.state().items()}
    images, stream = x.clone(), torch.get_rng_state()
    reestimate(network, x, batch_size=7)
    changed = {name for name, value in network.state().items() if not torch.equal(value, before[name])}
    assert changed == {f"{layer}.running_{what}" for layer in (1, 4) for what in ("mean", "var")}
    assert torch.equal(images, x)
    assert torch.equal(torch.get_rng_state(), stream)
    assert not any(layer._forward_pre_hooks for layer in network.module.modules())


def test_what_was_estimated_before_leaves_no_trace(classification: Any) -> None:
    first, second = (Network(classification.module(), classification.task) for _ in range(2))
    reestimate(first, classification.domains[0].train.x)
    for network in (first, second):
        reestimate(network, classification.domains[1].train.x, batch_size=9)
    assert all(torch.equal(first.buffers[name], second.buffers[name]) for name in first.buffers)


def test_nothing_is_drawn_where_a_network_has_dropout(classification: Any) -> None:
    layers = list(classification.module().double().children())
    module = nn.Sequential(*layers[:3], nn.Dropout(0.5), *layers[3:])
    network, x = Network(module, classification.task), classification.domains[0].train.x
    with torch.no_grad():
        expected = by_hand(copy.deepcopy(module), x, 2)
    reestimate(network, x, batch_size=12)
    for name, value in expected.items():
        torch.testing.assert_close(network.buffers[name], value)


def test_pieces_add_up_to_the_whole() -> None:
    values = torch.randn(50, 3, dtype=torch.float64) * 4 + 1e3
    tally = Tally()
    for piece in values.tensor_split([1, 2, 20, 49]):
        tally.add(len(piece), piece.mean(0), piece.var(0, correction=0))
    torch.testing.assert_close(tally.mean, values.mean(0))
    torch.testing.assert_close(tally.var, values.var(0))
    alone = Tally()
    alone.add(1, values[0], torch.zeros(3))
    assert torch.equal(alone.var, torch.zeros(3, dtype=torch.float64))


@pytest.fixture
def finished(registered_toys: Any, tmp_path: Path) -> metadr.Result:
    recipe = registered_toys["classification"].recipe(metadr.Replay(), overrides=(("steps", 8),))
    return metadr.run(recipe, seed=1, out=tmp_path, device="cpu")


def only(found: Iterator[Rescored]) -> Rescored:
    (one,) = found
    return one


def left_network(result: metadr.Result, toy: Any) -> Network:
    """The network of a finished run, from its checkpoint."""
    checkpoint = RunDirectory(result.path.parents[1], result.recipe, result.seed).load()
    assert checkpoint is not None
    network = Network(toy.module(), toy.task)
    network.load({name[6:]: value for name, value in checkpoint.tensors.items() if name.startswith("model/")})
    return network


def test_every_domain_is_scored_with_its_own_statistics(finished: metadr.Result, classification: Any) -> None:
    found = only(rescore([finished.path], device="cpu"))
    network = left_network(finished, classification)
    assert found.order == finished.recipe.order
    assert found.before == finished.scores
    assert [found.on(name, OF_THE_RUN) for name in found.order] == finished.scores[-1]
    for domain in classification.domains:
        reestimate(network, domain.train.x)
        assert found.on(domain.name, domain.name) == score(network.task, confusion(network, domain.test))
    assert len(found.rows) == 3 * len(found.order)
    end = finished.scores[-1]
    assert found.forgotten == pytest.approx(-finished.summary.bwt)
    assert found.regained == pytest.approx(
        sum(found.on(name, name) - end[j] for j, name in enumerate(found.order[:2])) / 2
    )


def test_a_run_is_scored_by_tested_batches_as_if_it_had_been_tested_so(registered_toys: Any, tmp_path: Path) -> None:
    toy = registered_toys["classification"]
    plain = metadr.run(toy.recipe(overrides=(("steps", 8),)), out=tmp_path, device="cpu")
    by_batch = metadr.run(toy.recipe(overrides=(("steps", 8), ("tested_by", "batch"))), out=tmp_path, device="cpu")
    found = only(rescore([plain.path], device="cpu"))
    assert [found.on(name, OF_THE_BATCH) for name in found.order] == by_batch.scores[-1]
    assert by_batch.scores[-1] != plain.scores[-1]
    told = {row["on"]: row[BY_BATCH] for row in plain.rows if BY_BATCH in row}  # of the last test alone
    assert len(plain.rows) > len(told) == len(found.order)
    assert [told[name] for name in found.order] == by_batch.scores[-1]
    assert [row[BY_BATCH] for row in by_batch.rows if BY_BATCH in row] == by_batch.scores[-1]  # which are that already


@pytest.mark.parametrize("changes", [{}, {"order": 1}, {"tested_by": "domains"}])
def test_a_run_that_stops_in_its_last_test_ends_with_the_same_rows(
    registered_toys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    """Wherever it pauses, as on a GPU: also while it is tested by batches, and on domains it is only tested on."""

    def pausing(self: Any, domain: Any) -> Any:
        told = []
        for each in tell(self.learner.network, domain.test):
            told.append(each)
            yield None
        return told

    monkeypatch.setattr(DomainSequence, "_told", pausing)
    # As many pauses in every run, however long a checkpoint takes to write.
    monkeypatch.setattr(RunDirectory, "writing", property(lambda directory: bool(directory.settle())))
    whole = registered_toys["classification"].recipe(overrides=(("steps", 2),))
    names = whole.order
    recipe = dataclasses.replace(whole, order=names[:2], tested=names[2:])
    if "order" in changes:
        recipe = dataclasses.replace(whole, order=names[:1], tested=names[1:])
    elif changes:
        recipe = dataclasses.replace(recipe, overrides=(("steps", 2), *changes.items()))
    wanted = metadr.run(recipe, out=tmp_path / "whole", device="cpu").rows
    assert sum(BY_BATCH in row for row in wanted) == len(names)
    pauses = len(list(advance(recipe, out=tmp_path / "counted", device="cpu")))
    for stop_at in range(pauses - 2 * len(names), pauses):
        stages = advance(recipe, out=tmp_path / str(stop_at), device="cpu")
        for _ in range(stop_at):
            next(stages)
        stages.close()
        assert metadr.run(recipe, out=tmp_path / str(stop_at), device="cpu").rows == wanted


@pytest.mark.parametrize(
    ("images", "size", "expected"), [(12, 8, 8), (9, 8, 9), (9001, 8, 11), (65, 64, 65), (3, 64, 64)]
)
def test_no_image_is_a_batch_of_its_own(classification: Any, images: int, size: int, expected: int) -> None:
    network = Network(classification.module(), classification.task)
    with by_batches(network, images, size):
        assert network.tested_in == expected
    assert network.tested_in is None
    assert images % expected != 1


def test_a_domain_that_was_never_trained_on_is_left_out(registered_toys: Any, tmp_path: Path) -> None:
    whole = registered_toys["classification"].recipe(overrides=(("steps", 2),))
    names = whole.order
    recipe = dataclasses.replace(whole, order=names[:2], tested=names[2:])
    found = only(rescore([metadr.run(recipe, out=tmp_path, device="cpu").path], device="cpu"))
    assert found.order == names[:2]
    assert {row["on"] for row in found.rows} == set(names[:2])


def test_each_domain_s_statistics_on_all_domains(finished: metadr.Result, classification: Any) -> None:
    own, each = (only(rescore([finished.path], statistics=which, device="cpu")) for which in ("own", "each"))
    assert len(each.rows) == len(each.order) * (2 + len(each.order))
    for name in each.order:
        assert each.on(name, name) == own.on(name, name)
    network = left_network(finished, classification)
    first, last = classification.domains[0], classification.domains[-1]
    reestimate(network, first.train.x)
    assert each.on(last.name, first.name) == score(network.task, confusion(network, last.test))


def test_it_writes_one_file_and_touches_no_other(finished: metadr.Result) -> None:
    before = {path.name: path.read_bytes() for path in finished.path.iterdir()}
    found = only(rescore([finished.path.parent], device="cpu"))  # a folder of runs will do
    after = {path.name: path.read_bytes() for path in finished.path.iterdir()}
    assert set(after) - set(before) == {FILE}
    assert all(after[name] == content for name, content in before.items())
    written = json.loads(after[FILE])
    assert written["rows"] == found.rows
    assert (written["statistics"], written["batch"], written["environment"]["device"]) == ("own", 500, "cpu")
    assert only(rescore([finished.path], device="cpu")).rows == found.rows


def test_masks_are_scored_too(registered_toys: Any, tmp_path: Path) -> None:
    result = metadr.run(registered_toys["segmentation"].recipe(), out=tmp_path, device="cpu")
    found = only(rescore([result.path], device="cpu"))
    assert {row["metric"] for row in found.rows} == {"miou"}
    assert [row[BY_BATCH] for row in result.rows[-len(found.order) :]] == [
        found.on(name, OF_THE_BATCH) for name in found.order
    ]
    assert all(math.isfinite(row["value"]) for row in found.rows)


def test_a_network_without_batch_norm_has_nothing_to_estimate(
    registered_toys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(num_classes: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes))

    monkeypatch.setitem(models.MODELS, "plain", plain)
    recipe = registered_toys["classification"].recipe(overrides=(("model", "plain"),))
    result = metadr.run(recipe, out=tmp_path, device="cpu")
    assert [row[BY_BATCH] for row in result.rows if BY_BATCH in row] == result.scores[-1]
    assert only(rescore([result.path], device="cpu")).rows == []
    assert not (result.path / FILE).exists()


def test_a_run_tested_by_batches_has_no_statistics_to_go_by(registered_toys: Any, tmp_path: Path) -> None:
    recipe = registered_toys["classification"].recipe(overrides=(("steps", 1), ("tested_by", "batch")))
    result = metadr.run(recipe, out=tmp_path, device="cpu")
    with pytest.raises(
        metadr.UserError, match=r"was tested by the statistics of every tested batch \(tested_by=batch\)"
    ):
        only(rescore([result.path], device="cpu"))


def test_mistakes_are_one_sentence(finished: metadr.Result, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(**options: Any) -> str:
        with pytest.raises(metadr.UserError) as error:
            only(rescore([finished.path], device="cpu", **options))
        assert not (finished.path / FILE).exists()
        return str(error.value)

    assert "No field 'resize' in the data of 'toy-shapes'" in refused(data={"resize": "pad"})
    rows = finished.path / "rows.json"
    kept = rows.read_text()
    wrong = [{**row, "value": 100.0 - row["value"]} for row in json.loads(kept)]
    rows.write_text(json.dumps(wrong))
    assert "do not belong together" in refused()
    rows.write_text(kept)
    with monkeypatch.context() as patch:
        other = BENCHMARKS["toy-shapes"].load("green")
        darker = other._replace(train=other.train._replace(x=other.train.x // 2))
        changed = {**vars(BENCHMARKS["toy-shapes"]), "load": lambda name: darker._replace(name=name)}
        patch.setitem(BENCHMARKS, "toy-shapes", metadr.Benchmark(**changed))
        assert "The data here are not those of run" in refused()
    directory = RunDirectory.at(finished.path, json.loads((finished.path / "recipe.json").read_text()))
    end = directory.load()
    directory.save(end._replace(position={**end.position, "stage": 1}))
    directory.settle()
    assert "is not of its end" in refused()
    for path in directory.checkpoints():
        path.unlink()
    assert "has no checkpoint, and so no weights to test" in refused()
    (finished.path / "done.json").unlink()
    assert "No finished run in" in refused()


def rescored(seed: int, end: list[float], own: list[float], **changes: Any) -> Rescored:
    """A run on three domains, each at 90 once it was learnt."""
    order = ["red", "green", "blue"]
    identity = {
        "benchmark": "toy",
        "order": order,
        "method": [],
        "access": "current",
        "memory_per_domain": 0,
        "data": "pixels",
    }
    before = [[0.0] * 3, [90.0] * 3, [90.0] * 3, [*end, 90.0]]
    rows = [{"statistics": name, "on": name, "value": value} for name, value in zip(order, [*own, 91.0], strict=True)]
    rows += [
        {"statistics": OF_THE_RUN, "on": name, "value": value} for name, value in zip(order, before[-1], strict=True)
    ]
    rows += [{"statistics": OF_THE_BATCH, "on": name, "value": 50.0 + seed} for name in order]
    return Rescored(
        Path("run"), {**identity, "training": {"batch_norm": "clean"}, "seed": seed, **changes}, before, rows
    )


def test_a_table_of_what_is_regained(tmp_path: Path) -> None:
    naive = [rescored(0, [40, 60], [70, 80]), rescored(1, [50, 70], [70, 80])]
    dr = rescored(0, [80, 80], [80, 82], method=[{"part": "dr"}])
    nothing = rescored(5, [0, 0], [0, 0])._replace(rows=[])  # without batch norm
    ((sequence, rows),) = regained_rows([*naive, dr, nothing]).items()
    assert sequence == "toy: red → green → blue"
    # Naive: kept 50 and 60, with own statistics 75 and 75, forgotten 40 and 30.
    assert rows == [
        ["Naive", "55.0 ± 7.1", "75.0 ± 0.0", "35.0 ± 7.1", "20.0 ± 7.1", "1.0 ± 0.0", "2"],
        ["Naive + DR", "80.0", "81.0", "10.0", "1.0", "1.0", "1"],
    ]
    ((_, (head, *lines)),) = final_rows([*naive, dr, nothing]).items()
    assert head == ["method", "tested by", "red", "green", "blue"]
    assert lines[:3] == [
        ["Naive", "running", "45.0 ± 7.1", "65.0 ± 7.1", "90.0 ± 0.0"],
        ["", "own", "70.0 ± 0.0", "80.0 ± 0.0", "91.0 ± 0.0"],
        ["", "batch", "50.5 ± 0.7", "50.5 ± 0.7", "50.5 ± 0.7"],
    ]
    assert [line[0] for line in lines[3:]] == ["Naive + DR", "", ""]
    page, data = write_regained([*naive, dr], tmp_path / "new" / "statistics")
    assert "| Naive + DR | 80.0 | 81.0 | 10.0 | 1.0 | 1.0 | 1 |" in page.read_text()
    assert "| Naive + DR | running | 80.0 | 80.0 | 90.0 |\n|  | own | 80.0 | 82.0 | 91.0 |" in page.read_text()
    assert [each["before"] for each in json.loads(data.read_text())] == [each.before for each in (*naive, dr)]
    (table,) = text_regained([*naive, dr])
    assert table.row_count == 2
