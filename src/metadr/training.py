"""How a model is trained on each domain: the settings that a benchmark has defaults for and a recipe may change."""

import functools
from dataclasses import dataclass
from typing import Literal

from metadr.errors import UserError
from metadr.settings import check, setting

Precision = Literal["fp32", "tf32", "bf16"]
Loss = Literal["cross_entropy", "dice"]
# How a pass treats batch norm follows from its role: all use batch statistics (unless they are fixed) but "fisher",
# which uses running ones; "beside" and "fisher" never move these.
Role = Literal["clean", "inner", "recall", "adapt", "memory", "beside", "fisher"]


@dataclass(frozen=True)
class Training:
    """How a model is trained on each domain. Defaults belong to the benchmark; a recipe states differences."""

    model: str = setting("resnet18", "network, by name")
    weights: str | None = setting(None, "what it starts from: 'imagenet', a safetensors file, or none, drawn at random")
    steps: int = setting(3000, "gradient steps a domain (H)", low=1)
    epochs: int | None = setting(None, "instead of steps: passes over the first domain's whole batches", low=1)
    later_epochs: int | None = setting(None, "the same on every later domain; none: as many", low=1)
    kept_epoch: Literal["last", "best"] = setting("last", "go on with the last epoch's weights, or the best on val")
    sampling: Literal["uniform", "shuffled"] = setting(
        "uniform", "outer batches: drawn with replacement, or a shuffled domain in turn, its last partial batch dropped"
    )
    stream: bool | Literal["auto"] = setting(
        False, "draw rows on the host, where images may stay: with true they do, with auto where they do not fit"
    )
    mirror: bool = setting(False, "flip every image with probability 0.5, its mask alike, before any transformation")
    batch_size: int = setting(64, "images of the current domain in a batch", low=1)
    optimizer: Literal["adam", "sgd"] = setting("adam", "optimiser, made anew at each domain")
    lr: float = setting(3e-4, "learning rate on the first domain (eta)", above=0)
    later_lr: float = setting(3e-5, "learning rate on every later domain", above=0)
    decay: Literal["none", "cosine"] = setting(
        "none", "how the rate falls along every domain: not at all, or by half a cosine to almost nothing"
    )
    momentum: float = setting(0.0, "momentum of SGD", low=0)
    loss: Loss = setting("cross_entropy", "what is minimised; dice is for masks")
    scaling: Literal["unit", "imagenet"] = setting("unit", "input scaling: x / 255, or also ImageNet's mean and std")
    batch_norm: str = setting(
        "first",
        "passes that move batch norm's running statistics: 'all', 'none', of memory+inner+clean+recall+adapt, or "
        "'first': memory+inner where the method simulates a step, else memory+clean",
    )
    norm_momentum: float | None = setting(
        None,
        "share of a pass in batch norm's running statistics; none: the layer's own, 0.1 as a rule",
        above=0,
        below=1,
    )
    later_norm: Literal["batch", "fixed"] = setting(
        "batch",
        "what batch norm normalises by on every later domain: the batch, or the first domain's running statistics, "
        "which then stay",
    )
    tested_by: Literal["running", "batch", "domains"] = setting(
        "running",
        "batch norm's statistics in tests: the running ones, of the last domain; the mean of those of all domains so "
        "far; or those of every batch of tested images",
    )
    limit: int | None = setting(None, "use only the first images of every split", low=1)
    precision: Precision = setting("fp32", "arithmetic of convolutions and matrix products; tf32 needs a GPU")
    recompute: bool = setting(False, "compute activations again instead of keeping them: less memory, more time")
    deterministic: bool = setting(True, "on a GPU, the same bits from the same seed; false is faster")

    def __post_init__(self) -> None:
        check(self)
        if self.batch_norm != FIRST:
            passes = statistics_passes(self.batch_norm)
            canonical = "all" if passes == STATISTICS_ORDER else "+".join(passes) or "none"
            object.__setattr__(self, "batch_norm", canonical)  # one policy, one spelling, one key
        if self.epochs is None and (self.later_epochs is not None or self.kept_epoch == "best"):
            field = "later_epochs" if self.later_epochs is not None else "kept_epoch"
            raise UserError(
                f"The '{field}' parameter of Training counts epochs, and 'epochs' is none. Give epochs too, or leave "
                f"{field} out."
            )

    def epoch_steps(self, num_images: int) -> int:
        """Whole batches in a pass over so many images."""
        if num_images < self.batch_size:
            raise UserError(
                f"{num_images} training images make no whole batch of {self.batch_size}, and an epoch is made of "
                "these. Lower batch_size, or use steps and sampling=uniform."
            )
        return num_images // self.batch_size

    def steps_on(self, num_images: int, *, first: bool) -> int:
        """Gradient steps on a domain of so many training images."""
        if self.epochs is None:
            return self.steps
        epochs = self.epochs if first else self.later_epochs or self.epochs
        return epochs * self.epoch_steps(num_images)


STATISTICS_ORDER: tuple[Role, ...] = ("memory", "inner", "clean", "recall", "adapt")
FIRST = "first"  # a policy whose passes depend on the method: `policies.settled` names them


@functools.cache  # asked for at every pass of a step
def statistics_passes(policy: str) -> tuple[Role, ...]:
    """The passes that move running statistics, in the order in which they are applied."""
    if policy in ("all", "none"):
        return STATISTICS_ORDER if policy == "all" else ()
    named = policy.split("+")
    if not set(named) <= set(STATISTICS_ORDER):
        raise UserError(
            f"The 'batch_norm' parameter of Training must be 'all', 'none', '{FIRST}' or a sum of "
            f"{', '.join(STATISTICS_ORDER)}. Got {policy!r} instead."
        )
    return tuple(role for role in STATISTICS_ORDER if role in named)
