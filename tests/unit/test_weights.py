"""Networks by name, and weights that they start from: ImageNet's, or a file's, which is part of a run's key."""

import dataclasses
import hashlib
import json
import pickle
import re
import socket
import time
import urllib.error
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import load_file, save_file

from metadr import models
from metadr.asked import as_asked
from metadr.benchmarks import benchmark_of, make_recipe, prepare, training_of
from metadr.domains import read_domains
from metadr.errors import UserError
from metadr.models import FROM_A_FILE, libraries
from metadr.models.weights import fitting, last_layer
from metadr.packs import Written, unlike_images, write_weights
from metadr.recipes import Row, Table, get_table
from metadr.report.comparison import compare
from metadr.report.records import read_records
from metadr.run import advance, run
from metadr.store import RunDirectory, content_of, description, key_of, recipe_from_identity


def tiny_state(num_classes: int = 10, seed: int = 1) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return models.build("tiny_resnet", num_classes).state_dict()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    save_file(tiny_state(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


def tiny(file: Path | str | None, **fields):
    return make_recipe("embedded", tiny=True, weights=None if file is None else str(file), **fields)


def test_a_network_is_filled_with_all_of_a_file_that_fits(file: Path) -> None:
    network = models.build("tiny_resnet", 10, str(file))
    for name, value in network.state_dict().items():
        assert torch.equal(value, tiny_state()[name]), name


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    state = tiny_state()
    name = next(name for name in state if name.endswith("running_var"))
    state[name] = torch.full_like(state[name], 83_615).half()  # beyond what half precision holds
    save_file(state, tmp_path / "half.safetensors")
    with pytest.raises(UserError, match=rf"'{name}' of the weights .* has numbers that are not finite"):
        models.build("tiny_resnet", 10, str(tmp_path / "half.safetensors"))


@pytest.mark.parametrize("kind", [torch.int32, torch.int8, torch.bool])
def test_weights_that_are_whole_numbers_are_refused(kind: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "whole.safetensors"
    save_file({name: value.to(kind) for name, value in tiny_state().items()}, path)
    told = rf"'0.body.0.weight' of the weights .* is of type {str(kind)[6:]}, .* Give the weights in float32\."
    with pytest.raises(UserError, match=told):
        models.build("tiny_resnet", 10, str(path))
    save_file({name: value.to(torch.bfloat16) for name, value in tiny_state().items()}, path)
    models.build("tiny_resnet", 10, str(path))  # counters as fractions are read too


def test_a_file_that_is_cut_short_is_to_be_fetched_again(file: Path) -> None:
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


def test_a_last_layer_of_other_classes_stays_as_it_was_drawn(file: Path) -> None:
    torch.manual_seed(7)
    drawn = models.build("tiny_resnet", 3).state_dict()
    torch.manual_seed(7)
    network = models.build("tiny_resnet", 3, str(file)).state_dict()
    head = [name for name in network if name.startswith("4.")]
    assert len(head) == 2 and all(torch.equal(network[name], drawn[name]) for name in head)
    body = [name for name in network if name not in head]
    assert all(torch.equal(network[name], tiny_state()[name]) for name in body)


def test_files_of_other_libraries_have_no_counters_and_perhaps_no_last_layer(tmp_path: Path) -> None:
    state = {name: value for name, value in tiny_state().items() if "num_batches" not in name and name[:2] != "4."}
    save_file(state, tmp_path / "some.safetensors")
    network = models.build("tiny_resnet", 10, str(tmp_path / "some.safetensors")).state_dict()
    assert all(torch.equal(network[name], value) for name, value in state.items())


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_weights_with_heads_for_training_alone_fit_a_network_without_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = torchvision.models.get_model(name, weights=None, init_weights=False, aux_logits=True).state_dict()
    auxiliary = [key for key in published if key.startswith(("aux", "Aux"))]
    path = tmp_path / "published.safetensors"
    save_file(published, path)
    monkeypatch.setattr(libraries, "_of_torchvision", lambda name: published)
    libraries.imagenet_weights.cache_clear()
    for weights in (str(path), "imagenet"):
        network = models.build(name, 7, weights).state_dict()
        head = [key for key in network if key.startswith("fc.")]
        assert auxiliary and not set(auxiliary) & set(network) and len(head) == 2
        assert all(torch.equal(value, published[key]) for key, value in network.items() if key not in head)
    libraries.imagenet_weights.cache_clear()
    save_file({**published, "strange": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="it has 'strange', which the network has not"):
        models.build(name, 7, str(path))


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


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "levit_128s"])
def test_networks_of_timm_with_two_heads_start_from_imagenet(name: str) -> None:
    pytest.importorskip("timm")
    with torch.device("meta"):
        ours, published = models.build(name, 7), models.build(name, 1000)
    given = {key: tuple(value.shape) for key, value in published.state_dict().items()}
    filled = fitting(ours, given, head=last_layer(ours), model=name, origin="imagenet")
    left = {key for key in given if key not in filled}
    assert {key.partition(".")[0] for key in left} == {"head", "head_dist"} and len(left) == 4


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda state: state.pop("0.body.0.weight"), "'0.body.0.weight' is missing"),
        (lambda state: state.update({"0.body.0.weight": torch.zeros(4, 3, 1, 1)}), "is 4x3x1x1 instead of 4x3x3x3"),
        (lambda state: state.update({"fc.weight": torch.zeros(2)}), "it has 'fc.weight', which the network has not"),
    ],
)
def test_weights_of_another_network_are_refused(change, told: str, tmp_path: Path) -> None:
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
def test_what_is_no_file_of_weights_is_refused_before_anything_is_read(make, told: str, tmp_path: Path) -> None:
    make(tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=told):
        tiny(tmp_path / "w.safetensors")


def test_the_key_is_of_the_content_and_not_of_the_name(file: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.safetensors").write_bytes(file.read_bytes())
    save_file(tiny_state(seed=2), tmp_path / "other.safetensors")
    keys = [key_of(tiny(each), 0) for each in (file, tmp_path / "copy.safetensors", tmp_path / "other.safetensors")]
    assert keys[0] == keys[1] != keys[2]
    assert key_of(tiny(None), 0) not in keys
    assert "weights" not in description(tiny(None))["training"], "the keys of older runs hold"
    changed = tiny(file)
    save_file(tiny_state(seed=3), file)
    assert key_of(changed, 0) not in keys


def test_runs_start_from_the_file_and_are_told_apart_and_found_again(
    registered_toys, file: Path, tmp_path: Path
) -> None:
    recipes = {
        each: make_recipe("toy-shapes", tiny=True, model="tiny_resnet", lr=1e-9, later_lr=1e-9, weights=each)
        for each in (None, str(file))
    }
    results = {each: run(recipe, out=tmp_path / "runs", device="cpu") for each, recipe in recipes.items()}
    file = str(file)
    assert results[None].path != results[file].path
    left = {each: RunDirectory.at(result.path, {}).checkpoints()[0] for each, result in results.items()}
    for each, checkpoint in left.items():  # at that rate, training leaves them where they were
        same = [
            torch.allclose(load_file(checkpoint)[f"model/{name}"], value, atol=1e-6)
            for name, value in tiny_state().items()
            if name.endswith("body.0.weight")
        ]
        assert same == [each is not None] * 2
    identity = json.loads((results[file].path / "recipe.json").read_text())
    assert identity["training"]["weights"] == "file" and file not in json.dumps(identity)
    again = recipe_from_identity(identity)
    assert description(again) == description(recipes[file])
    with pytest.raises(UserError, match=r"starts from weights in a file. Name it with --weights FILE"):
        content_of(again)
    made = compare(Table("demo", "one row", (Row("Naive", (again,)),)), read_records(tmp_path / "runs"))
    assert [record.identity for record in made.records] == [identity]


def test_no_imagenet_weights_for_a_network_of_the_project() -> None:
    with pytest.raises(UserError, match=r"No ImageNet weights are published for model 'tiny_resnet'.*weights=none"):
        tiny("imagenet")


@pytest.fixture
def no_internet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def refuse(*arguments, **options):
        raise urllib.error.URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    monkeypatch.setattr("torch.hub.urlopen", refuse)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "hub"))
    libraries.imagenet_weights.cache_clear()


def test_without_internet_one_sentence_before_a_run_begins(no_internet, tmp_path: Path) -> None:
    recipe = make_recipe("embedded", model="resnet18", weights="imagenet")
    place = re.escape(str(tmp_path / "hub" / "hub" / "checkpoints"))
    told = (
        r"weights of model 'resnet18' cannot be downloaded \(no route to host\)\. "
        rf"Put resnet18-f37072fd\.pth in {place}, give a file with --weights FILE"
    )
    with pytest.raises(UserError, match=told):
        prepare(recipe)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """timm's hub, with an empty cache and no way to it."""
    pytest.importorskip("timm")
    from huggingface_hub import constants

    def refuse(*where, **how):
        raise socket.gaierror(-2, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_without_internet_timm_does_not_go_on_and_on(hub: Path) -> None:
    libraries.imagenet_weights.cache_clear()
    started = time.monotonic()
    with pytest.raises(UserError, match=r"'test_vit' cannot be downloaded \(.*no such name\)\. Give a file"):
        models.prepare_weights("test_vit", "imagenet")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("trouble", [TimeoutError("slow"), ValueError("503")])
def test_a_hub_that_is_slow_or_says_no_is_left_to_timm(trouble: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")

    def refuse(url: str) -> None:
        raise trouble

    network = timm.create_model("test_vit")
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", refuse)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *where, **which: None)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained: network)
    libraries.imagenet_weights.cache_clear()
    assert libraries.imagenet_weights("test_vit").keys() == network.state_dict().keys()
    libraries.imagenet_weights.cache_clear()


def damage(path: Path, how: str) -> None:
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(
        {
            "cut short": whole[:middle],
            "empty": b"",
            "another byte": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "a page": b"<!DOCTYPE html><html>Please log in</html>",
            "a pickle": pickle.dumps(Path("code")),
        }[how]
    )


DAMAGES = ("cut short", "empty", "another byte", "a page", "a pickle")


def refused(model: str, path: Path) -> None:
    libraries.imagenet_weights.cache_clear()
    with pytest.raises(UserError) as told:
        models.prepare_weights(model, "imagenet")
    assert str(told.value) == (
        f"{path}, the ImageNet weights of model '{model}', is damaged. Remove it and run again: then it is downloaded "
        "anew."
    )


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The weights of a ResNet-18 where torch.hub looks for them, under a name that fits their content."""
    from torchvision.models import ResNet18_Weights

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    torch.save(models.build("resnet18", 1000).state_dict(), folder / "weights")
    digits = hashlib.sha256((folder / "weights").read_bytes()).hexdigest()[:8]
    path = (folder / "weights").rename(folder / f"resnet18-{digits}.pth")
    published = ResNet18_Weights.IMAGENET1K_V1.value
    monkeypatch.setattr(
        ResNet18_Weights.IMAGENET1K_V1, "_value_", dataclasses.replace(published, url=f"https://nowhere/{path.name}")
    )
    return path


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_of_torchvision_is_to_be_removed(how: str, kept: Path) -> None:
    libraries.imagenet_weights.cache_clear()
    assert "fc.weight" in libraries.imagenet_weights("resnet18")
    damage(kept, how)
    refused("resnet18", kept)


@pytest.mark.parametrize("how", sorted({*DAMAGES} - {"another byte"}))  # which only a hash can tell
def test_a_damaged_file_without_a_hash_in_its_name_is_to_be_removed(
    how: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.models import ResNet18_Weights

    path = kept.rename(kept.parent / "plain.pth")
    value = dataclasses.replace(ResNet18_Weights.IMAGENET1K_V1.value, url=f"https://nowhere/{path.name}")
    monkeypatch.setattr(ResNet18_Weights.IMAGENET1K_V1, "_value_", value)
    damage(path, how)
    refused("resnet18", path)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_of_timm_is_to_be_removed(how: str, hub: Path) -> None:
    """Not the link to it in the hub's cache: that would be made again, to the same file."""
    timm = pytest.importorskip("timm")
    repository = hub / ("models--" + timm.models.get_pretrained_cfg("test_vit").hf_hub_id.replace("/", "--"))
    link = repository / "snapshots" / "0123abcd" / "model.safetensors"
    for folder in (link.parent, repository / "refs", repository / "blobs"):
        folder.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abcd")
    state = timm.create_model("test_vit").state_dict()
    save_file(state, hub / "weights")
    digest = hashlib.sha256((hub / "weights").read_bytes()).hexdigest()
    path = (hub / "weights").rename(repository / "blobs" / digest)
    link.symlink_to(path)
    libraries.imagenet_weights.cache_clear()
    assert libraries.imagenet_weights("test_vit").keys() == state.keys(), "no internet is needed for what is there"
    damage(path, how)
    refused("test_vit", path)
    path = path.rename(path.parent / "0123abcd")  # small files are kept by another hash
    link.unlink()
    link.symlink_to(path)
    if how != "another byte":
        refused("test_vit", path)


def test_imagenet_weights_of_torchvision_are_read_as_tensors_after_their_checksum(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torchvision.models import ResNet18_Weights

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    asked, state = [], models.build("resnet18", 1000).state_dict()

    def get_state_dict(self, **options):
        asked.append((self, options))
        return state

    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", get_state_dict)
    libraries.imagenet_weights.cache_clear()
    network = models.build("resnet18", 7, "imagenet")
    libraries.imagenet_weights.cache_clear()
    ((chosen, options),) = asked
    assert chosen is ResNet18_Weights.IMAGENET1K_V1
    assert options["check_hash"] and options["weights_only"]
    assert network.fc.weight.shape == (7, 512)
    assert torch.equal(network.layer4[1].conv2.weight, state["layer4.1.conv2.weight"])


def test_resnet50_v1_has_the_weights_of_resnet50_and_its_strides_elsewhere() -> None:
    ours, theirs = models.build("resnet50_v1", 7), models.build("resnet50", 7)
    assert {name: value.shape for name, value in ours.state_dict().items()} == {
        name: value.shape for name, value in theirs.state_dict().items()
    }
    strides = {name: layer.stride for name, layer in ours.named_modules() if isinstance(layer, torch.nn.Conv2d)}
    for stage in (2, 3, 4):
        assert (strides[f"layer{stage}.0.conv1"], strides[f"layer{stage}.0.conv2"]) == ((2, 2), (1, 1))
    twos = {name for name, stride in strides.items() if stride == (2, 2)}
    assert twos == {"conv1", *(f"layer{n}.0.{name}" for n in (2, 3, 4) for name in ("conv1", "downsample.0"))}
    with torch.no_grad():
        assert ours.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 7)


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


def test_names_of_both_libraries() -> None:
    assert libraries.library_of("resnet18") == "torchvision"
    assert libraries.library_of("nothing_of_the_kind") is None
    with pytest.raises(UserError, match=r"No model 'resnet19'. Closest: 'resnet18'"):
        models.check_model("resnet19")
    pytest.importorskip("timm")
    assert libraries.library_of("test_vit") == libraries.library_of("timm/resnet18") == "timm"
    assert type(models.build("timm/resnet18", 3)) is not type(models.build("resnet18", 3))
    assert benchmark_of(make_recipe("embedded", model="timm/resnet18")).name == "embedded"


def test_without_timm_its_names_are_unknown_and_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    assert libraries.timm_names() == []
    with pytest.raises(UserError, match=r"No model 'test_vit'.* 'pip install metadr\[timm\]"):
        models.check_model("test_vit")


def test_a_file_is_for_the_rows_that_start_from_weights(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_check_fits", lambda name, weights, content: None)  # it is a small network's

    def given(*names: str, rows: tuple[str, ...] = ()) -> set[tuple[str, str | None]]:
        made = as_asked([get_table(name) for name in names], list(rows), {}, str(file), tiny=False)
        return {(each.model, each.weights) for table in made for each in map(training_of, table.recipes)}

    assert given("vkitti2-rendered") == {("unet_resnet50_v1", str(file)), ("unet_resnet34", None)}
    assert given("pacs-schedule") == {("resnet50_v1", str(file))}
    assert {weights for _, weights in given("demo")} == {str(file)}  # where none does, it is for all
    some = given("suspects", "strengths")  # of which only the first has such rows
    named = {"resnet18", "resnet50_v1"}
    assert {model for model, weights in some if weights} == named and ("resnet18", None) in some
    asked = given("suspects", rows=("*, ResNet-18 from a file of weights",))
    assert {model for model, weights in asked if weights == str(file)} == {"resnet18"}
    assert ("resnet50_v1", FROM_A_FILE) in asked  # a row of another network that is not asked for stays as it is
    assert given("pacs-resnet50", rows=("Naive",)) == {
        ("resnet50_v1", str(file))
    }  # else finished rows would not be found
    assert as_asked([get_table("demo")], [], {}, None, tiny=False) == [get_table("demo")]


def test_rows_from_weights_and_from_scratch_are_both_found_in_a_report(
    registered_toys, file: Path, tmp_path: Path
) -> None:
    """Their runs differ in what they read, though their domains are the same."""
    recipes = [make_recipe("toy-shapes", tiny=True, model="tiny_resnet", weights=each) for each in (None, str(file))]
    for recipe in recipes:
        run(recipe, out=tmp_path / "runs", device="cpu")
    rows = tuple(Row(title, (recipe,)) for title, recipe in zip(("scratch", "file"), recipes, strict=True))
    made = compare(Table("demo", "two rows", rows), read_records(tmp_path / "runs"))
    assert len(made.records) == 2 and all(cell.complete for cell in made.cells.values())


# The network of a run as a file.


def test_a_run_goes_on_from_the_network_of_another(tmp_path: Path) -> None:
    """Before it has learnt anything it scores what the other did at its end, and so does torch's own module."""
    first = run(tiny(None, order=("handwritten", "blended")), out=tmp_path, device="cpu")
    written = write_weights(first.path, tmp_path / "first.safetensors")
    order = ("handwritten", "blended")
    assert written == Written("tiny_resnet", order, order, classes=(), images="32x32 x / 255")
    write_weights(first.path, tmp_path / "new" / "again.safetensors")
    assert (tmp_path / "new" / "again.safetensors").read_bytes() == (tmp_path / "first.safetensors").read_bytes()
    at_its_end = {row["on"]: row["value"] for row in first.rows if row["after"] == "blended"}

    then = run(tiny(tmp_path / "first.safetensors", order=("street",), tested=("handwritten", "blended")), out=tmp_path)
    before = {row["on"]: row["value"] for row in then.rows if row["after"] == "untrained"}
    assert {name: before[name] for name in at_its_end} == at_its_end
    (record,) = read_records(then.path)
    assert unlike_images(str(tmp_path / "first.safetensors"), record.identity, record.environment) == ""
    larger = {**record.environment, "images": [48, 64]}
    told = unlike_images(str(tmp_path / "first.safetensors"), record.identity, larger)
    assert told == "Note: its weights were made with images of 32x32 x / 255, and here they are of 64x48 x / 255."

    module = models.build("tiny_resnet", 10)
    module.load_state_dict(load_file(tmp_path / "first.safetensors"))
    test = read_domains(first.recipe)[1].test
    with torch.no_grad():
        right = module.eval()(test.x / 255).argmax(1) == test.y
    assert 100 * right.double().mean().item() == pytest.approx(at_its_end["blended"])


def test_a_u_net_is_filled_with_a_whole_network_too(tmp_path: Path) -> None:
    pytest.importorskip("segmentation_models_pytorch")
    state = models.build("unet_resnet18", 3).state_dict()
    save_file(state, tmp_path / "whole.safetensors")
    models.check_weights("unet_resnet18", str(tmp_path / "whole.safetensors"))
    again = models.build("unet_resnet18", 3, str(tmp_path / "whole.safetensors")).state_dict()
    assert all(torch.equal(again[name], value) for name, value in state.items())


def test_a_run_that_has_not_ended_has_a_network_as_well(tmp_path: Path) -> None:
    stages = advance(tiny(None, order=("handwritten", "blended")), out=tmp_path, device="cpu")
    while next(stages).stage == 0:
        pass
    stages.close()
    (path,) = (tmp_path / "embedded").iterdir()
    assert write_weights(path, tmp_path / "w.safetensors").learnt == ("handwritten",)


def test_other_classes_under_the_same_outputs_are_refused(registered_toys, file: Path, tmp_path: Path) -> None:
    state = load_file(file)
    save_file(state, tmp_path / "named.safetensors", metadata={"classes": json.dumps(["bike", "bus"])})
    models.check_weights("tiny_resnet", str(tmp_path / "named.safetensors"), ("bike", "bus"))
    models.check_weights("tiny_resnet", str(tmp_path / "named.safetensors"), ("bike", "bus", "car"))  # a new last layer
    models.check_weights("tiny_resnet", str(file), ("apple", "bus"))  # which says nothing of itself
    with pytest.raises(UserError, match="tell bike, bus apart, and here the classes are apple, bus"):
        models.check_weights("tiny_resnet", str(tmp_path / "named.safetensors"), ("apple", "bus"))


def test_where_there_is_no_network_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No run in .*nowhere.*Give a run's directory"):
        write_weights(tmp_path / "nowhere", tmp_path / "w.safetensors")
    done = run(tiny(None, order=("handwritten",)), out=tmp_path, device="cpu")
    for checkpoint in done.path.glob("checkpoint-*"):
        checkpoint.unlink()
    with pytest.raises(UserError, match="has no checkpoint, and so no weights"):
        write_weights(done.path, tmp_path / "w.safetensors")
    assert not (tmp_path / "w.safetensors").exists()


def test_settings_of_a_sweep_are_for_the_rows_that_have_them() -> None:
    """Of data and of a memory too: not every method has one."""
    (table,) = as_asked([get_table("table1")], [], {"memory_per_domain": "7", "digits.resize": "pad"}, None, tiny=False)
    assert {recipe.data for recipe in table.recipes} == {(("resize", "pad"),)}
    assert {bool(recipe.memory_per_domain): recipe.memory_per_domain for recipe in table.recipes} == {False: 0, True: 7}
    (some,) = as_asked([get_table("table1")], ["P1 ER"], {"memory_per_domain": "7"}, None, tiny=False)
    assert sorted({recipe.memory_per_domain for recipe in some.recipes}) == [0, 7, 100]
