"""What a network cannot be trained on is refused in one sentence, before anything is written."""

import pytest
from torch import nn

from metadr import UserError, models
from metadr.engine.fit import check_fit
from metadr.engine.network import Network


def refusal(toy, module: nn.Module) -> str:
    with pytest.raises(UserError) as refused:
        check_fit(toy.training(model="mine"), Network(module, toy.task), toy.domains)
    return str(refused.value)


def test_what_fits_is_let_through(toy):
    check_fit(toy.training(), Network(toy.module(), toy.task), toy.domains)


def test_images_that_are_too_small_for_a_network(classification):
    module = nn.Sequential(nn.Conv2d(3, 4, 40), nn.Flatten(), nn.Linear(4, 3))
    assert "Model 'mine' cannot be trained on images of 16x16 in batches of" in refusal(classification, module)


def test_a_classifier_on_masks(segmentation):
    told = refusal(segmentation, models.build("tiny_resnet", 4))
    assert "Model 'mine' gives every image a label, and in these data every pixel has one. Choose a U-Net" in told


def test_a_network_of_pixels_on_labels(classification):
    told = refusal(classification, nn.Conv2d(3, 3, 1))
    assert "Model 'mine' gives every pixel a label, and in these data every image has one. Choose a classifier" in told
