"""Networks of torchvision and timm by name, and their ImageNet weights: fetched, refused, damaged."""

import dataclasses
import hashlib
import pickle
import re
import socket
import time
import urllib.error
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from metadr import models
from metadr.benchmarks import benchmark_of, make_recipe, prepare
from metadr.errors import UserError
from metadr.models import libraries
from metadr.models.weights import fitting, last_layer


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


@pytest.mark.parametrize("name", ["deit_tiny_distilled_patch16_224", "levit_128s"])
def test_networks_of_timm_with_two_heads_start_from_imagenet(name: str) -> None:
    pytest.importorskip("timm")
    with torch.device("meta"):
        ours, published = models.build(name, 7), models.build(name, 1000)
    given = {key: tuple(value.shape) for key, value in published.state_dict().items()}
    filled = fitting(ours, given, head=last_layer(ours), model=name, origin="imagenet")
    left = {key for key in given if key not in filled}
    assert {key.partition(".")[0] for key in left} == {"head", "head_dist"} and len(left) == 4


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


def test_no_imagenet_weights_for_a_network_of_the_project(tiny) -> None:
    with pytest.raises(UserError, match=r"No ImageNet weights are published for model 'tiny_resnet'.*weights=none"):
        tiny("imagenet")


# Without internet.


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


# Damaged files.


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
