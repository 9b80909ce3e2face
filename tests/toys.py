"""Toy benchmarks: bright shapes on coloured grounds, 16x16, which a test trains on in milliseconds.

`conftest.py` loads this file and hands it to the tests as fixtures; no test module imports it.
"""

import copy
import dataclasses
import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from metadr import benchmarks, models
from metadr.benchmarks import make_recipe
from metadr.core import Batch, Benchmark, Context, Domain, Params, Part, Recipe, Split, Task, Training
from metadr.engine.learner import Learner
from metadr.engine.streams import stream_seed
from metadr.store import RunDirectory
from metadr.sweep import Job
from metadr.training import Role
from metadr.vkitti2_classes import CLASSES, CONDITIONS, FRAMES

SIDE = 16
IGNORED = 255
GROUNDS = {"red": (150, 40, 30), "green": (30, 130, 60), "blue": (50, 60, 160)}
NUM_TRAIN, NUM_TEST = 24, 12
ORDERS = list(itertools.permutations(GROUNDS))
MEMORY = 4  # images a domain, for the parts that need a memory


def _shape(kind: int, row: int, column: int, radius: int) -> Tensor:
    """A square, a disc or a cross as (SIDE, SIDE) bool."""
    rows, columns = torch.meshgrid(torch.arange(SIDE) - row, torch.arange(SIDE) - column, indexing="ij")
    rows, columns = rows.abs(), columns.abs()
    square = torch.maximum(rows, columns) <= radius
    return (square, rows**2 + columns**2 <= radius**2, square & (torch.minimum(rows, columns) <= 1))[kind]


def _draw(name: str, part: str, num_images: int) -> tuple[Tensor, Tensor, Tensor]:
    """Images, the shape of each, and masks: 0 ground, 1 to 3 shapes, with an ignored rim around the shape."""
    rng = torch.Generator().manual_seed(stream_seed(0, name, part))
    kinds = torch.arange(num_images) % 3
    images, masks = [], []
    for kind in kinds.tolist():
        row, column = torch.randint(5, SIDE - 5, (2,), generator=rng).tolist()
        inside = _shape(kind, row, column, int(torch.randint(3, 5, (), generator=rng)))
        rim = F.max_pool2d(inside[None].float(), 3, stride=1, padding=1)[0].bool() & ~inside
        ground = torch.tensor(GROUNDS[name], dtype=torch.float32).view(3, 1, 1)
        light = 60 + 60 * torch.rand((), generator=rng)
        noise = 12 * torch.randn((3, SIDE, SIDE), generator=rng)
        images.append((ground + light * inside + noise).clamp(0, 255).round().to(torch.uint8))
        masks.append(torch.where(inside, kind + 1, 0).masked_fill(rim, IGNORED))
    return torch.stack(images), kinds, torch.stack(masks)


@functools.cache
def load_labelled(name: str) -> Domain:
    train, test = (_draw(name, part, count) for part, count in (("train", NUM_TRAIN), ("test", NUM_TEST)))
    return Domain(name, Split(train[0], train[1]), Split(test[0], test[1]))


@functools.cache
def load_masked(name: str) -> Domain:
    train, test = (_draw(name, part, count) for part, count in (("train", NUM_TRAIN), ("test", NUM_TEST)))
    return Domain(name, Split(train[0], train[2]), Split(test[0], test[2]))


def write_images(root: Path, *, per_class: int = 10) -> Path:
    """A folder of domains as a user might have it: day, fog and rain, each with bikes, buses and cars."""
    rng = torch.Generator().manual_seed(0)
    for domain in ("day", "fog", "rain"):
        for label in ("bike", "bus", "car"):
            folder = root / domain / label
            folder.mkdir(parents=True)
            for number in range(per_class):
                pixels = torch.randint(256, (20 + number, 24, 3), generator=rng, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / f"{number}.png")
    return root


def write_streets(root: Path, *domains: str, frames: int = 6, size: tuple[int, int] = (64, 32)) -> Path:
    """Sequences in the layout of Virtual KITTI 2, such as 'scene02-clone': a car on a road, and its mask.

    Frames of one domain differ by where the car is, cameras by where the sky ends, domains by their light.
    """
    width, height = size
    colours = dict(CLASSES)
    for domain in domains:
        scene, _, condition = domain.partition("-")
        light = 0.4 + 0.1 * CONDITIONS.index(condition)
        shift = list(FRAMES).index(scene.capitalize())
        for camera, number in itertools.product((0, 1), range(frames)):
            mask = np.empty((height, width, 3), np.uint8)
            horizon = height // 3 + 2 * shift + camera
            mask[:horizon], mask[horizon:] = colours["Sky"], colours["Road"]
            start = (3 + 5 * number) % (width - 12)
            mask[horizon - 2 : horizon + 6, start : start + 10] = colours["Car"]
            mask[-3:, :4] = colours["Undefined"]
            image = (mask * light).astype(np.uint8)
            place = root / scene.capitalize() / condition / "frames"
            for kind, name, pixels in (
                ("rgb", f"rgb_{number:05d}.jpg", image),
                ("classSegmentation", f"classgt_{number:05d}.png", mask),
            ):
                folder = place / kind / f"Camera_{camera}"
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(folder / name, **({"quality": 95} if kind == "rgb" else {}))
    return root


def toy_net(num_classes: int) -> nn.Module:
    """A classifier with two batch norms, each with its own momentum."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8, momentum=0.3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, num_classes),
    )


def toy_fcn(num_classes: int) -> nn.Module:
    """A fully convolutional network: logits for every pixel."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=2, dilation=2),
        nn.BatchNorm2d(6, momentum=0.3),
        nn.ReLU(),
        nn.Conv2d(6, num_classes, 1),
    )


@dataclasses.dataclass(frozen=True)
class Toy:
    """A toy benchmark, with the few lines that a test needs to train on it."""

    benchmark: Benchmark

    @property
    def task(self) -> Task:
        return self.benchmark.task

    @property
    def domains(self) -> list[Domain]:
        return [self.benchmark.load(name) for name in self.benchmark.domains]

    def recipe(self, *parts: Part, memory: int = MEMORY, **fields: Any) -> Recipe:
        """A recipe of these parts over all three domains."""
        needed = memory if any(part.uses_memory for part in parts) else 0
        return Recipe(self.benchmark.name, self.benchmark.domains, parts, memory_per_domain=needed, **fields)

    def training(self, **settings: Any) -> Training:
        return dataclasses.replace(self.benchmark.training, **settings)

    def module(self, seed: int = 0) -> nn.Module:
        """The toy's network, with the weights that a run of this seed begins with."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(stream_seed(seed, "init"))
            return {"toy_net": toy_net, "toy_fcn": toy_fcn}[self.benchmark.training.model](self.task.num_classes)

    def learner(
        self,
        *parts: Part,
        seed: int = 0,
        memory: int = MEMORY,
        module: nn.Module | None = None,
        device: str = "cpu",
        capture: bool = True,
        **settings: Any,
    ) -> Learner:
        """A learner of these parts; `settings` are fields of Training."""
        recipe, training = self.recipe(*parts, memory=memory), self.training(**settings)
        module = self.module(seed) if module is None else module
        return Learner(recipe, training, self.task, module, seed=seed, device=torch.device(device), capture=capture)

    def play(self, learner: Learner, *, num_domains: int = 2, num_steps: int = 2) -> list[dict[str, float]]:
        """Train on the first domains in turn, each to its end."""
        taken = []
        for index, domain in enumerate(self.domains[:num_domains]):
            domain = domain._replace(train=domain.train.to(learner.device), test=domain.test.to(learner.device))
            learner.begin_domain(domain.train, first=index == 0)
            taken += learner.steps(num_steps).read()[0]
            learner.end_domain(domain)
        return taken

    def on_second_domain(self, learner: Learner, *, num_steps: int = 2) -> Learner:
        """Train on the first domain to its end, and open the second: every part has something to remember."""
        self.play(learner, num_domains=1, num_steps=num_steps)
        learner.begin_domain(self.domains[1].train.to(learner.device), first=False)
        return learner


CLASSIFICATION = Toy(
    Benchmark(
        name="toy-shapes",
        about="squares, discs and crosses on a red, a green and a blue ground",
        task=Task(num_classes=3),
        domains=tuple(GROUNDS),
        protocols={"there": tuple(GROUNDS), "back": tuple(GROUNDS)[::-1]},
        load=load_labelled,
        fingerprint="toy shapes, revision 1",
        training=Training(model="toy_net", steps=3, batch_size=6, lr=1e-2, later_lr=1e-3),
        tiny={"steps": 2, "batch_size": 4, "limit": 8},
    )
)
SEGMENTATION = Toy(
    Benchmark(
        name="toy-masks",
        about="the toy shapes pixel by pixel, their rims ignored",
        task=Task(num_classes=4, score="miou", ignore_index=IGNORED),
        domains=tuple(GROUNDS),
        protocols={"there": tuple(GROUNDS), "back": tuple(GROUNDS)[::-1]},
        load=load_masked,
        fingerprint="toy masks, revision 1",
        training=Training(model="toy_fcn", steps=3, batch_size=6, lr=1e-2, later_lr=1e-3),
        tiny={"steps": 2, "batch_size": 4, "limit": 8},
    )
)
TOYS = {"classification": CLASSIFICATION, "segmentation": SEGMENTATION}


@contextmanager
def registered() -> Iterator[None]:
    """The toys known by their names, and forgotten afterwards: other tests list what is registered."""
    for name, build in (("toy_net", toy_net), ("toy_fcn", toy_fcn)):
        models.register(name, build)
    for toy in TOYS.values():
        benchmarks.register(toy.benchmark)
    try:
        yield
    finally:
        for toy in TOYS.values():
            del benchmarks.BENCHMARKS[toy.benchmark.name]
        for name in ("toy_net", "toy_fcn"):
            del models.MODELS[name]


def every_order(method: str = "naive", benchmark: str = "toy-shapes", **fields: Any) -> list[Job]:
    """A run of each order of the domains."""
    return [Job(make_recipe(benchmark, method, order=order, **fields), 0) for order in ORDERS]


def final(out: Path, job: Job) -> dict[str, Tensor]:
    """Its scores, in their order, and the network of its last checkpoint."""
    directory = RunDirectory(out, *job)
    assert directory.finished
    rows = directory.read("rows.json")
    assert [(row["after"], row["on"]) for row in rows] == [
        (after, on) for after in ("untrained", *job.recipe.order) for on in job.recipe.domains
    ]
    scores = torch.tensor([row["value"] for row in rows], dtype=torch.float64)
    left = load_file(directory.checkpoints()[0])  # a run by itself leaves more than one of a sweep
    return {"scores": scores, **{name: value for name, value in left.items() if name.startswith("model/")}}


class Pass(NamedTuple):
    """One pass through the network: its role, what went in, at which parameters, and the loss that came out."""

    role: Role
    batch: Batch
    params: Params
    loss: Tensor


def record_passes(learner: Learner) -> list[Pass]:
    """Write down, from now on, every loss that the learner or one of its parts asks for."""
    passes: list[Pass] = []
    original = learner.network.loss

    def loss(batch: Batch, params: Params | None = None, *, role: Role) -> Tensor:
        value = original(batch, params, role=role)
        if role != "fisher":  # its tensors belong to a vmap that is over when somebody looks
            held = learner.network.params if params is None else params
            held = {name: tensor.detach().clone() for name, tensor in held.items()}
            passes.append(Pass(role, batch, held, value.detach()))
        return value

    learner.network.loss = loss  # type: ignore[method-assign]
    return passes


def by_role(passes: list[Pass]) -> dict[str, list[Batch]]:
    return {role: [seen.batch for seen in passes if seen.role == role] for role in {seen.role for seen in passes}}


def pictures(images: Tensor) -> list[bytes]:
    """Images as values that can be compared, counted and looked up."""
    return [image.numpy().tobytes() for image in images]


def batch_statistics(learner: Learner, seen: Pass) -> dict[str, Tensor]:
    """The statistics of one pass, by the plain layers: with a momentum of 1 they become the running ones."""
    module = copy.deepcopy(learner.network.module).train()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = 1.0
    with torch.no_grad():
        for name, param in module.named_parameters():
            param.copy_(seen.params[name])
        module(seen.batch.x.to(next(module.parameters()).dtype) / 255)
    return {name: value for name, value in module.named_buffers() if not name.endswith("num_batches_tracked")}


def clone_state(learner: Learner) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in learner.state().items()}


def assert_same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert list(ours) == list(theirs)
    different = [name for name in ours if not torch.equal(ours[name], theirs[name])]
    assert not different, different


@dataclasses.dataclass(frozen=True)
class Looking(Part):
    """A part that asks the device for a number."""

    name: ClassVar[str] = "looking"

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor | float:
        loss = ctx.loss(batch, role="beside")
        return 0.1 * loss if loss.item() > 0 else 0.0


def with_dropout(toy: Any) -> nn.Module:
    return nn.Sequential(toy.module(), nn.Dropout(0.5))
