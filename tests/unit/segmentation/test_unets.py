"""U-Nets: images of any size, second derivatives, and the weights that an encoder begins with."""

import importlib.util
import sys

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from metadr import models
from metadr.errors import UserError
from metadr.models.unet import Padded, UNet
from metadr.models.weights import fill

needs_smp = pytest.mark.skipif(
    importlib.util.find_spec("segmentation_models_pytorch") is None, reason="needs the extra 'seg'"
)


@pytest.mark.parametrize("name", ["tiny_unet", "small_unet"])
@pytest.mark.parametrize("size", [(32, 64), (33, 47), (5, 3)])
def test_a_unet_takes_images_of_any_size(name, size):
    module = models.build(name, 14).eval()
    assert module(torch.rand(2, 3, *size)).shape == (2, 14, *size)


def test_what_is_added_to_an_image_is_cut_off_again():
    class Sides(torch.nn.Module):
        def forward(self, x):
            assert x.shape[2:] == (32, 64)
            assert not x[:, :, 17:].any() and not x[:, :, :, 33:].any()
            return x * 2

    x = torch.rand(2, 3, 17, 33)
    assert torch.equal(Padded(Sides(), 32)(x), x * 2)
    exact = torch.rand(1, 3, 64, 32)
    assert Padded(torch.nn.Identity(), 32)(exact).data_ptr() == exact.data_ptr()


def test_a_unet_has_a_second_derivative():
    net = UNet((2, 3), 2).double()
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    y = torch.randint(2, (2, 4, 4))
    weight = net.first[0].weight
    rest = {name: value for name, value in net.named_parameters() if name != "first.0.weight"}

    def slope(value):
        params = {**rest, "first.0.weight": value}
        logits = torch.func.functional_call(net, params, (x,))
        return torch.autograd.grad(F.cross_entropy(logits, y), value, create_graph=True)[0]

    # A kink of a ReLU within the step would make the two differ: the seed is fixed.
    torch.autograd.gradcheck(slope, (weight.detach().requires_grad_(),), eps=1e-7, atol=1e-5)


@needs_smp
@pytest.mark.parametrize("name", ["unet_resnet34", "unet_resnet50_v1"])
def test_an_encoder_begins_with_given_weights_and_the_rest_is_drawn(name, tmp_path):
    import torchvision

    source = getattr(torchvision.models, name.split("_")[1])(weights=None)
    state = {key: value for key, value in source.state_dict().items() if not key.endswith("num_batches_tracked")}
    save_file(state, tmp_path / "weights.safetensors")
    built = models.build(name, 14, str(tmp_path / "weights.safetensors"))
    inside = built.inner.encoder.state_dict()
    assert all(torch.equal(inside[key], value) for key, value in state.items() if not key.startswith("fc."))
    assert built.eval()(torch.rand(1, 3, 33, 40)).shape == (1, 14, 33, 40)


@needs_smp
def test_resnet50_v1_is_torchvision_s_with_its_strides_moved():
    """What the encoder makes of an image equals torchvision's network with the strides of the first ResNet-50."""
    import torchvision

    net = torchvision.models.resnet50(weights=None).eval()
    for stage in (net.layer2, net.layer3, net.layer4):
        stage[0].conv1.stride, stage[0].conv2.stride = (2, 2), (1, 1)
    built = models.build("unet_resnet50_v1", 14).eval()
    fill(built.inner.encoder, net.state_dict(), head="fc", model="it", origin="it")
    x = torch.rand(1, 3, 32, 64)
    with torch.no_grad():
        deepest = built.inner.encoder(x)[-1]
        stem = net.maxpool(net.relu(net.bn1(net.conv1(x))))
        wanted = net.layer4(net.layer3(net.layer2(net.layer1(stem))))
    torch.testing.assert_close(deepest, wanted)


@needs_smp
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda state: state.pop("conv1.weight"), "do not fit model 'unet_resnet18': 'conv1.weight' is missing"),
        (lambda state: state.update(extra=torch.zeros(1)), "it has 'extra', which the network has not"),
        (lambda state: state.update({"conv1.weight": torch.zeros(1)}), "'conv1.weight' is 1 instead of 64x3x7x7"),
    ],
)
def test_weights_of_another_network_are_refused(change, sentence, tmp_path):
    state = models.build("unet_resnet18", 3).inner.encoder.state_dict()
    change(state)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(UserError, match=sentence):
        models.build("unet_resnet18", 3, str(tmp_path / "w.safetensors"))


@needs_smp
def test_an_encoder_s_weights_are_published_or_from_a_file_of_the_data_root(tmp_path, monkeypatch):
    monkeypatch.setenv("METADR_DATA", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with pytest.raises(UserError, match=r"No ImageNet weights are published for model 'resnet50_v1'"):
        models.build("unet_resnet50_v1", 3, "imagenet")

    def refuse(*arguments, **options):
        raise OSError("no way out")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    models.libraries.imagenet_weights.cache_clear()
    with pytest.raises(UserError, match=r"'resnet18' cannot be downloaded \(no way out\).*--set weights=none"):
        models.build("unet_resnet18", 3, "imagenet")
    place = tmp_path / "weights" / "resnet18.safetensors"
    with pytest.raises(UserError, match=rf"Name it with --weights FILE \(safetensors\), or put it in {place}"):
        models.build("unet_resnet18", 3, "file")
    state = models.build("unet_resnet18", 3).inner.encoder.state_dict()
    place.parent.mkdir()
    save_file(state, place)
    built = models.build("unet_resnet18", 3, "file")
    assert torch.equal(built.inner.encoder.conv1.weight, state["conv1.weight"])
    assert models.content_of("unet_resnet18", "file") == models.content_of("resnet18", str(place)) != ""


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    with pytest.raises(UserError, match=r"pip install 'metadr\[seg\]', or use --model small_unet"):
        models.build("unet_resnet34", 14)
