"""The types everything else is written in: domains, tasks, parts, recipes, benchmarks. No input or output."""

import hashlib
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from metadr.batches import Batch as Batch
from metadr.batches import Memory as Memory
from metadr.batches import Split as Split
from metadr.errors import UserError
from metadr.progress import Watch
from metadr.settings import check, names, setting
from metadr.training import Loss, Role
from metadr.training import Training as Training

Params = dict[str, Tensor]
Access = Literal["current", "so_far", "all"]
ORACLES: dict[str, Access] = {"oracle-all": "all", "oracle-cumulative": "so_far"}  # they only see more data


class Domain(NamedTuple):
    """One visual domain: a name, what may be trained on and what is tested on."""

    name: str
    train: Split
    test: Split
    val: Split | None = None

    def fingerprint(self) -> str:
        """A hash of every pixel and label."""
        digest = hashlib.sha256(self.name.encode())
        for split in (self.train, self.test, self.val):
            for tensor in split or ():
                digest.update(str((tuple(tensor.shape), tensor.dtype)).encode())
                digest.update(tensor.cpu().contiguous().flatten().numpy().data)
        return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """What is predicted, how a prediction is penalised, and how it is scored."""

    num_classes: int = setting(10, "classes", low=1)
    score: Literal["accuracy", "miou"] = "accuracy"
    ignore_index: int = 255

    @property
    def on_masks(self) -> bool:
        return self.score == "miou"

    def loss(self, logits: Tensor, y: Tensor, kind: Loss = "cross_entropy") -> Tensor:
        """What is to be minimised, over what is not ignored; zero, not NaN, where everything is."""
        return self._dice(logits, y) if kind == "dice" else self._cross_entropy(logits, y.long())

    def _cross_entropy(self, logits: Tensor, y: Tensor) -> Tensor:
        """Its mean. Pixels are flattened first: the 4-D form of nll_loss is not deterministic on CUDA."""
        if logits.ndim == 4:
            logits, y = logits.movedim(1, -1).flatten(0, 2), y.flatten()
        if not self.on_masks:
            return F.cross_entropy(logits, y, reduction="sum") / max(len(y), 1)
        total = F.cross_entropy(logits, y, ignore_index=self.ignore_index, reduction="sum")
        return total / (y != self.ignore_index).sum().clamp(min=1)

    def _dice(self, logits: Tensor, y: Tensor) -> Tensor:
        """1 - 2 |P T| / (|P| + |T|) of each class over the whole batch, P its chances and T its pixels; the mean over
        the classes that occur.

        By comparison and sums alone: nothing here waits for the device or depends on the order of additions.
        """
        label = torch.arange(self.num_classes, device=y.device).view(-1, *(1,) * (y.ndim - 1))
        true = (y.unsqueeze(1) == label).to(logits.dtype)
        chances = logits.softmax(1)
        if self.on_masks:
            chances = chances * (y != self.ignore_index).unsqueeze(1)
        over = [dim for dim in range(logits.ndim) if dim != 1]
        pixels = true.sum(over)
        overlap = 2 * (chances * true).sum(over) / (chances.sum(over) + pixels).clamp(min=1e-7)
        present = pixels > 0
        return torch.where(present, 1 - overlap, 0.0).sum() / present.sum().clamp(min=1)

    def confusion(self, logits: Tensor, y: Tensor) -> Tensor:
        """Counts of (true, predicted) pairs, int64, ignored pixels left out."""
        predicted, true = logits.argmax(1).flatten(), y.flatten().long()
        if not self.on_masks:  # so few that a product of ones and zeros counts them: it does not wait for the device
            label = torch.arange(self.num_classes, device=y.device)
            return ((true == label[:, None]).float() @ (predicted[:, None] == label).float()).long()
        size = self.num_classes**2
        pairs = true * self.num_classes + predicted
        pairs = torch.where(true == self.ignore_index, size, pairs)  # counted in a place of their own, then left
        return torch.bincount(pairs, minlength=size + 1)[:size].view(self.num_classes, self.num_classes)

    def __post_init__(self) -> None:
        check(self)

    def check(self, domain: Domain, *, trained: bool = True) -> Domain:
        """Refuse a domain whose images or labels do not fit this task; one that is only tested on may have no other."""
        for part, split in (("train", domain.train), ("test", domain.test), ("val", domain.val)):
            if split is not None and (trained or split.num_images):
                self._check_split(f"{domain.name}/{part}", split)
        if domain.train.x.shape[1:] != domain.test.x.shape[1:]:
            raise UserError(
                f"{domain.name}: train images are {_size(domain.train.x)} and test images {_size(domain.test.x)}; "
                "they must have one shape. Resize one of them."
            )
        return domain

    def _check_split(self, place: str, split: Split) -> None:
        x, y = split
        if x.ndim != 4 or x.shape[1] != 3 or x.dtype != torch.uint8:
            raise UserError(
                f"{place}: images must be a uint8 tensor of shape (N, 3, H, W). Got {x.dtype} of shape "
                f"{tuple(x.shape)}. Convert grey images with x.expand(-1, 3, -1, -1) and floats with (255 * x).byte()."
            )
        if not len(x):
            raise UserError(f"{place}: no images. A domain needs at least one image to train and one to test on.")
        wanted = (len(x), *x.shape[2:]) if self.on_masks else (len(x),)
        allowed = (torch.uint8, torch.int64) if self.on_masks else (torch.int64,)
        if y.shape != wanted or y.dtype not in allowed:
            kinds = " or ".join(str(each).removeprefix("torch.") for each in allowed[::-1])
            raise UserError(
                f"{place}: labels must be an {kinds} tensor of shape {wanted}. Got {y.dtype} of shape {tuple(y.shape)}."
            )
        kept = y[y != self.ignore_index] if self.on_masks else y
        if not kept.numel():
            raise UserError(
                f"{place}: every pixel is ignored ({self.ignore_index}). Label some, or leave the domain out."
            )
        if kept.min() < 0 or kept.max() >= self.num_classes:
            wrong = int(kept[(kept < 0) | (kept >= self.num_classes)][0])
            ignored = f" or {self.ignore_index} (ignored)" if self.on_masks else ""
            raise UserError(
                f"{place}: label {wrong} is out of range; with {self.num_classes} classes labels are "
                f"0 to {self.num_classes - 1}{ignored}. Correct the labels or num_classes."
            )


def _size(x: Tensor) -> str:
    return "x".join(str(side) for side in x.shape[1:])


class LossOf(Protocol):
    """The loss of a batch, at the model's parameters or at others; the role decides batch norm."""

    def __call__(self, batch: Batch, params: Params | None = None, *, role: Role) -> Tensor: ...


class Draw(Protocol):
    """An independent batch of the current domain (and of memory, unless told not to), from the caller's own stream."""

    def __call__(self, *, replay: bool = True) -> Batch: ...


class Context(NamedTuple):
    """All that a part may see."""

    params: Params
    statistics: Mapping[str, Tensor]  # batch norm's running ones
    logits: Callable[..., Tensor]  # logits(x, params, *, role): what the model says of images
    loss: LossOf
    squared_gradients: Callable[[Iterable[Batch]], Params]  # of the loss of each image by itself, summed, in float64
    draw: Draw
    view: Callable[[Batch], Batch]  # a batch as the method's `view` hooks would show it, drawn from this part's stream
    memory: Memory
    state: Mapping[str, Tensor]  # what this part's end_domain returned last
    rng: torch.Generator  # this part's own stream, on the device
    task: Task
    batch_size: int


@dataclass(frozen=True)
class Part:
    """An ingredient of a method: a frozen dataclass without state, a value inside a recipe.

    Every hook has a default that does nothing. A part returns values; it never calls `backward` or steps an optimiser.
    """

    name: ClassVar[str]
    revision: ClassVar[int] = 1  # part of the run key: raise it when an edit changes results
    uses_memory: ClassVar[bool] = False
    passes: ClassVar[tuple[str, ...] | None] = None  # of its own that batch norm's policy is about; not inherited
    samples_memory: ClassVar[bool] = (
        False  # reads it by `sample` alone: its step has one shape on any number of domains
    )

    needs_a_past: ClassVar[bool] = False  # does nothing on the first domain but keep something of it; not inherited
    keeps_weights: ClassVar[bool] = False  # its end_domain reads weights alone: it may come in later; not inherited
    of_later_domains: ClassVar[tuple[str, ...]] = ()  # settings that do nothing before the second; not inherited
    later: ClassVar[Mapping[str, Any]] = {}  # settings that came after runs had been made, with what those had

    def __post_init__(self) -> None:
        check(self)

    @property
    def first_pass(self) -> Role:
        """Its pass that moves batch norm's statistics by the policy 'first': a simulated one, if it always has it."""
        said = vars(type(self))
        return "inner" if "inner" in (said.get("passes") or ()) and not said.get("needs_a_past") else "clean"

    def content(self) -> dict[str, Any]:
        """All that decides what this part does: its share of the run's key."""
        settings = {name: getattr(self, name) for name in names(type(self))}
        told = {name: value for name, value in settings.items() if (name, value) not in self.later.items()}
        return {"part": self.name, "revision": self.revision, **told}

    def extend(self, batch: Batch, ctx: Context) -> Batch:
        """Add rows to a batch (ER)."""
        return batch

    def view(self, batch: Batch, ctx: Context) -> Batch:
        """Change how a batch looks (DR)."""
        return batch

    def penalty(self, raw: Batch, batch: Batch, ctx: Context) -> Tensor | float:
        """A term of the loss (L2, EWC, Meta-DR), differentiated by itself. `raw` is the batch before any view."""
        return 0.0

    def gradient(self, grads: list[Tensor], ctx: Context) -> list[Tensor]:
        """Change the gradient before the optimiser sees it (GEM)."""
        return grads

    def weights(self, ended: Params, ctx: Context) -> Params:
        """What to go on with of the parameters and running statistics that a domain has ended with (averages)."""
        return ended

    def end_domain(self, domain: Domain, ctx: Context) -> dict[str, Tensor]:
        """What to keep of a domain that is about to go (anchors, Fisher): the part's next `ctx.state`."""
        return dict(ctx.state)


@dataclass(frozen=True)
class Recipe:
    """An experiment as a value: equal recipes are the same experiment.

    `Recipe("embedded", ("handwritten", "street"), (Replay(), EWC(strength=1e3)), memory_per_domain=100)`
    """

    benchmark: str
    order: tuple[str, ...]
    method: tuple[Part, ...] = ()
    memory_per_domain: int = setting(0, "images kept of every past domain (M); with ER or GEM 100 by default", low=0)
    memory_choice: Literal["random", "first"] = setting("random", "keep M random images of a domain, or its first M")
    access: Access = setting("current", "training data: of the current domain, of those so far, or of all (oracles)")
    tested: tuple[str, ...] = setting((), "further domains to test on, which are never trained on")
    overrides: tuple[tuple[str, Any], ...] = ()  # of the benchmark's training
    data: tuple[tuple[str, Any], ...] = ()  # of the settings of the benchmark's data

    def __post_init__(self) -> None:
        check(self)
        parts = tuple(sorted(self.method, key=lambda part: part.name))
        twice = [part.name for part, other in itertools.pairwise(parts) if part.name == other.name]
        if twice:
            raise UserError(f"Part '{twice[0]}' is twice in the method. Each part may be named once.")
        object.__setattr__(self, "method", parts)
        object.__setattr__(self, "overrides", tuple(sorted(dict(self.overrides).items())))
        object.__setattr__(self, "data", tuple(sorted(dict(self.data).items())))
        if not self.order or len(set(self.order)) < len(self.order):
            raise UserError(f"The order of domains must name each domain once. Got {', '.join(self.order) or 'none'}.")
        if len(set(self.domains)) < len(self.domains):
            raise UserError(
                f"Domains to test on must be named once, and not be in the order, whose domains are tested on anyway. "
                f"Got {', '.join(self.tested)} after {', '.join(self.order)}."
            )
        remembering = [part.name for part in parts if part.uses_memory]
        if remembering and not self.memory_per_domain:
            raise UserError(
                f"Part '{remembering[0]}' needs a memory, but memory_per_domain is 0. Give it 1 or more (paper: 100)."
            )
        if self.memory_per_domain and not remembering:
            raise UserError(
                f"memory_per_domain is {self.memory_per_domain}, but no part of method '{self.method_name}' uses a "
                "memory. Add 'er' or 'gem' to the method, or set it to 0."
            )

    @property
    def domains(self) -> tuple[str, ...]:
        """All that are tested on: those that are trained on, in order, and then the others."""
        return (*self.order, *self.tested)

    @property
    def method_name(self) -> str:
        """The method as a sum, in its one canonical order; an oracle says so."""
        oracle = [name for name, access in ORACLES.items() if access == self.access]
        return "+".join([*oracle, *(part.name for part in self.method)]) or "naive"


class Found(NamedTuple):
    """What is known of a domain's files beside the images made of them."""

    train: tuple[str, ...]  # the file of every image, in order
    test: tuple[str, ...]
    sizes: Mapping[str, int]  # "640x480" -> files of that size
    broken: tuple[str, ...] = ()  # files without a readable image, each with the reason
    unused: tuple[str, ...] = ()  # files that are no images, or not where images are expected
    seconds: float = 0.0  # what decoding them took
    unlisted: tuple[str, ...] = ()  # images that no list names, where lists say which are used


@dataclass(frozen=True, eq=False)
class Benchmark:
    """Domains, their orders, and how a model is trained on them by default. Two of them are never equal.

    Data that can be read in several ways have `settings`, a frozen dataclass with the values of this benchmark, and
    `configure`, which makes the benchmark for others. `prepare` decodes what an order needs, before anyone waits for it
    unseen, and says what it found.
    """

    name: str
    about: str
    task: Task
    domains: tuple[str, ...]
    protocols: Mapping[str, tuple[str, ...]]  # name of a protocol -> order of domains; the first is the default
    load: Callable[[str], Domain]
    # Of the data of an order, or of what renders them and its revision: part of every run's key.
    fingerprint: str | Callable[[tuple[str, ...]], str]
    training: Training = field(default_factory=Training)
    part_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # name of a part -> its settings here
    tiny: Mapping[str, Any] = field(default_factory=dict)  # overrides that make a run take seconds
    classes: tuple[str, ...] = ()  # their names, where they have any
    settings: Any = None
    reading: tuple[str, ...] = ()  # those of the settings that say how data are read, not where they lie
    configure: "Callable[[Any], Benchmark] | None" = None
    prepare: Callable[[tuple[str, ...], Watch | None], Mapping[str, Found]] | None = None
    num_train: Callable[[str], int] | None = None  # training images of a domain, where that is quicker than loading it
    only_tested: tuple[str, ...] = ()  # domains without training images: no order may name them
    size_of: Callable[[str], str] | None = None  # WIDTHxHEIGHT of a domain's images, where copies of the data differ

    def fingerprint_of(self, order: tuple[str, ...]) -> str:
        """The fingerprint of the domains that a recipe uses; the others need not be there."""
        return self.fingerprint if isinstance(self.fingerprint, str) else self.fingerprint(order)
