"""Time EWC's Fisher: ours against gradients of single images by torch.func, in the same run."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from metadr import models
from metadr.bench.step import Ours
from metadr.bench.timing import in_turn
from metadr.bench.work import Work, noise, parts_of, task_of
from metadr.core import Domain, Params, Split, Training
from metadr.engine.ground import Ground, pick_device
from metadr.provenance import environment

CHUNK = 32  # images at once with torch.func, whose gradients have to fit


def bench_fisher(
    *,
    model: str = "resnet18",
    size: int = 32,
    images: int = 2000,
    repeats: int = 3,
    device: str = "auto",
    peers: bool = True,
) -> dict[str, Any]:
    """Measure the milliseconds that the Fisher of some images takes, in turns.

    Args:
        model: a network by name.
        size: side of the images, which are noise.
        images: how many.
        repeats: measurements of each.
        device: where.
        peers: whether to measure torch.func too.

    Returns:
        The setting and one row for each contender: median and quartiles in ms for all images, ms an image, the ratio to
        ours, and how far its Fisher is from ours, as a share of the norm.
    """
    chosen = pick_device(device)
    task, training = task_of(None), Training(model=model)
    train = noise(task, (size, size), training.batch_size, images, chosen)
    ours = Ours(Work(parts_of(None, "ewc"), training, task, train))
    module = models.build(model, task.num_classes).to(chosen).eval()
    module.load_state_dict(ours.learner.network.state())
    ground = Ground(dataclasses.replace(training, deterministic=False), chosen)

    found: dict[str, Params] = {}

    def by_us() -> None:
        ours.learner.part_state["ewc"] = {}
        with ours.ground.held():
            ours.learner.end_domain(Domain("noise", train, train))
        state = ours.learner.part_state["ewc"]
        found["metadr"] = {name: state[f"weight.{name}"] for name in ours.learner.network.params}

    def by_torch_func() -> None:
        with ground.held():
            found["torch.func"] = fisher_by_torch_func(module, train)

    contenders = {"metadr": by_us, **({"torch.func": by_torch_func} if peers else {})}
    measured = in_turn(contenders, repeats, chosen)
    reached = ours.learner.network.reached_of
    fishers = {
        name: torch.cat([reached(key, fisher[key]).flatten() for key in found["metadr"]])
        for name, fisher in found.items()
    }
    rows = [
        {
            "contender": name,
            **values,
            "ms_an_image": values["ms"] / images,
            "ratio": values["ms"] / measured["metadr"]["ms"],
            "off": float((fishers[name] - fishers["metadr"]).norm() / fishers["metadr"].norm()),
        }
        for name, values in measured.items()
    ]
    setting = {"model": model, "size": size, "images": images, "n": repeats}
    return {**setting, "environment": environment(chosen), "rows": rows}


def fisher_by_torch_func(module: nn.Module, train: Split) -> Params:
    """The mean of squared gradients as torch's own tutorial takes gradients of single images."""
    params = {name: value.detach() for name, value in module.named_parameters()}

    def loss_of_one(params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, dict(params), (x[None],)), y[None])

    gradients = vmap(grad(loss_of_one), in_dims=(None, 0, 0))
    totals = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in params.items()}
    for start in range(0, train.num_images, CHUNK):
        x, y = (part[start : start + CHUNK] for part in train)
        for name, gradient in gradients(params, x.float() / 255, y).items():
            totals[name] += gradient.double().square().sum(0)
    return {name: (total / train.num_images).float() for name, total in totals.items()}
