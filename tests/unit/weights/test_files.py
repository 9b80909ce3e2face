"""Files of weights: what of them fills a network, and what is refused before a run begins."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from metadr import models
from metadr.errors import UserError
from metadr.models import FROM_A_FILE


def test_a_network_is_filled_with_all_of_a_file_that_fits(file: Path, tiny_state) -> None:
    network = models.build("tiny_resnet", 10, str(file))
    for name, value in network.state_dict().items():
        assert torch.equal(value, tiny_state()[name]), name


def test_weights_that_are_not_finite_are_refused(tmp_path: Path, tiny_state) -> None:
    state = tiny_state()
    name = next(name for name in state if name.endswith("running_var"))
    state[name] = torch.full_like(state[name], 83_615).half()  # beyond what half precision holds
    save_file(state, tmp_path / "half.safetensors")
    with pytest.raises(UserError, match=rf"'{name}' of the weights .* has numbers that are not finite"):
        models.build("tiny_resnet", 10, str(tmp_path / "half.safetensors"))


@pytest.mark.parametrize("kind", [torch.int32, torch.int8, torch.bool])
def test_weights_that_are_whole_numbers_are_refused(kind: torch.dtype, tmp_path: Path, tiny_state) -> None:
    path = tmp_path / "whole.safetensors"
    save_file({name: value.to(kind) for name, value in tiny_state().items()}, path)
    told = rf"'0.body.0.weight' of the weights .* is of type {str(kind)[6:]}, .* Give the weights in float32\."
    with pytest.raises(UserError, match=told):
        models.build("tiny_resnet", 10, str(path))
    save_file({name: value.to(torch.bfloat16) for name, value in tiny_state().items()}, path)
    models.build("tiny_resnet", 10, str(path))  # counters as fractions are read too


def test_a_file_that_is_cut_short_is_to_be_fetched_again(file: Path, tiny) -> None:
    whole = file.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    for missing in (1, 100, len(whole) - 8 - length):
        file.write_bytes(whole[:-missing])
        with pytest.raises(UserError, match=rf"is cut short: its last {missing} bytes are missing\. Copy or download"):
            tiny(file)
    for start in (0, 4, 8 + length // 2):  # whose header cannot be read
        file.write_bytes(whole[:start])
        with pytest.raises(UserError, match="is no safetensors file"):
            tiny(file)


def test_a_last_layer_of_other_classes_stays_as_it_was_drawn(file: Path, tiny_state) -> None:
    torch.manual_seed(7)
    drawn = models.build("tiny_resnet", 3).state_dict()
    torch.manual_seed(7)
    network = models.build("tiny_resnet", 3, str(file)).state_dict()
    head = [name for name in network if name.startswith("4.")]
    assert len(head) == 2 and all(torch.equal(network[name], drawn[name]) for name in head)
    body = [name for name in network if name not in head]
    assert all(torch.equal(network[name], tiny_state()[name]) for name in body)


def test_files_of_other_libraries_have_no_counters_and_perhaps_no_last_layer(tmp_path: Path, tiny_state) -> None:
    state = {name: value for name, value in tiny_state().items() if "num_batches" not in name and name[:2] != "4."}
    save_file(state, tmp_path / "some.safetensors")
    network = models.build("tiny_resnet", 10, str(tmp_path / "some.safetensors")).state_dict()
    assert all(torch.equal(network[name], value) for name, value in state.items())


class TwoHeads(torch.nn.Module):
    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = torch.nn.Linear(4, 5)
        self.head, self.other = torch.nn.Linear(5, num_classes), torch.nn.Linear(5, num_classes)


def test_every_head_of_other_classes_stays_as_it_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "two_heads", TwoHeads)
    path, state = tmp_path / "two.safetensors", TwoHeads(10).state_dict()
    save_file(state, path)
    drawn = [models.build("two_heads", classes, str(path)).state_dict() for classes in (3, 10)]
    assert all(torch.equal(drawn[0][name], state[name]) == name.startswith("body.") for name in state)
    assert all(torch.equal(drawn[1][name], value) for name, value in state.items())
    for name, size in (("head.weight", (10, 4)), ("head.bias", (9,)), ("body.weight", (10, 4))):
        save_file({**state, name: torch.zeros(size)}, path)
        with pytest.raises(UserError, match=rf"'{name}' is .* instead of|'head.weight' is .* instead of"):
            models.build("two_heads", 3, str(path))


def test_a_u_net_is_filled_with_a_whole_network_too(tmp_path: Path) -> None:
    pytest.importorskip("segmentation_models_pytorch")
    state = models.build("unet_resnet18", 3).state_dict()
    save_file(state, tmp_path / "whole.safetensors")
    models.check_weights("unet_resnet18", str(tmp_path / "whole.safetensors"))
    again = models.build("unet_resnet18", 3, str(tmp_path / "whole.safetensors")).state_dict()
    assert all(torch.equal(again[name], value) for name, value in state.items())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state.pop("0.body.0.weight"), "'0.body.0.weight' is missing"),
        (lambda state: state.update({"0.body.0.weight": torch.zeros(4, 3, 1, 1)}), "is 4x3x1x1 instead of 4x3x3x3"),
        (lambda state: state.update({"fc.weight": torch.zeros(2)}), "it has 'fc.weight', which the network has not"),
    ],
)
def test_weights_of_another_network_are_refused(change, told: str, tmp_path: Path, tiny_state, tiny) -> None:
    state = tiny_state()
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=f"do not fit model 'tiny_resnet': .*{told}.* Choose the network"):
        models.build("tiny_resnet", 10, str(tmp_path / "w.safetensors"))
    with pytest.raises(UserError, match=f"do not fit model 'tiny_resnet': .*{told}.* Choose the network"):
        tiny(tmp_path / "w.safetensors")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda path: None,
            r"Cannot read the weights .*: No such file or directory. Give --weights a safetensors file",
        ),
        (lambda path: path.mkdir(), "is a folder. Weights are one safetensors file"),
        (lambda path: path.write_bytes(b"PK pickles"), "is no safetensors file .* safetensors.torch.save_file"),
        (
            lambda path: path.write_bytes(b"\2" + bytes(7) + b"[]"),
            "is no safetensors file .* safetensors.torch.save_file",
        ),
        (lambda path: path.write_bytes(b"\2" + bytes(7) + b"\xff{"), "is no safetensors file .*torch.save_file"),
    ],
)
def test_what_is_no_file_of_weights_is_refused_before_anything_is_read(make, told: str, tmp_path: Path, tiny) -> None:
    make(tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=told):
        tiny(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("model", "name", "told", "refused"),
    [
        ("resnet50", "weights", {"model": "resnet50_v1"}, "resnet50_v1"),
        ("resnet50", "weights", {"model": '"unet_resnet50_v1"'}, "resnet50_v1"),  # as a run writes it
        ("resnet50", "resnet50_v1", {}, "resnet50_v1"),
        ("resnet50_v1", "weights", {"model": "resnet50"}, "resnet50"),
        ("resnet50_v1", "weights", {"model": "resnet50_v1"}, None),
        ("resnet50_v1", "resnet50", {}, None),
        ("resnet50", "weights", {}, None),  # nothing tells
    ],
)
@pytest.mark.parametrize("prefix", ["", "unet_"])
def test_weights_say_by_which_strides_they_go(model, name, told, refused, prefix, tmp_path: Path, monkeypatch) -> None:
    """Names and shapes of both networks are the same."""
    if prefix:
        pytest.importorskip("segmentation_models_pytorch")
    path = tmp_path / f"{name}.safetensors"
    save_file({"conv1.weight": torch.zeros(64, 3, 7, 7)}, path, metadata=told or None)
    monkeypatch.setattr(models, "_check_fits", lambda *of: None)  # it holds one layer, to be small
    if refused is None:
        models.check_weights(prefix + model, str(path))
        return
    with pytest.raises(UserError, match=rf"are those of '{refused}', whose strides are others than those of '{model}'"):
        models.check_weights(prefix + model, str(path))
    place = tmp_path / "weights" / f"{model}.safetensors"
    place.parent.mkdir()
    if told:
        path.rename(place)
        monkeypatch.setenv("METADR_DATA", str(tmp_path))
        with pytest.raises(UserError, match=f"are those of '{refused}'"):
            models.build(prefix + model, 3, FROM_A_FILE)


def test_other_classes_under_the_same_outputs_are_refused(registered_toys, file: Path, tmp_path: Path) -> None:
    state = load_file(file)
    save_file(state, tmp_path / "named.safetensors", metadata={"classes": json.dumps(["bike", "bus"])})
    models.check_weights("tiny_resnet", str(tmp_path / "named.safetensors"), ("bike", "bus"))
    models.check_weights("tiny_resnet", str(tmp_path / "named.safetensors"), ("bike", "bus", "car"))  # a new last layer
    models.check_weights("tiny_resnet", str(file), ("apple", "bus"))  # which says nothing of itself
    with pytest.raises(UserError, match="tell bike, bus apart, and here the classes are apple, bus"):
        models.check_weights("tiny_resnet", str(tmp_path / "named.safetensors"), ("apple", "bus"))
