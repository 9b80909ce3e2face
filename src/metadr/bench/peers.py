"""The Meta-DR step as users would write it elsewhere: with plain autograd, and with the library `higher`.

Same model, batches, transformations, precision and optimiser as ours; batch norm as torch has it.
"""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from metadr.bench.work import Work
from metadr.core import Batch, Part, Split
from metadr.engine.batches import mirrored
from metadr.engine.network import IMAGENET_MEAN, IMAGENET_STD
from metadr.errors import UserError
from metadr.parts import MetaDR, Randomize
from metadr.transforms import Drawn, draw

TEST_BATCH = 500


class Batches(NamedTuple):
    """What one step sees: the batch, the inner batch, and both transformed, row by row by the same T."""

    outer: Batch
    inner_transformed: Batch
    outer_transformed: Batch


class Peer:
    """A training loop of its own; `steps` is what is timed."""

    def __init__(self, module: nn.Module, work: Work) -> None:
        self.module, self.work = module.train(), work
        training, device = work.training, work.train.x.device
        self.half = training.precision == "bf16"
        self.begin(work.train, training.lr)
        self.rng = torch.Generator(device).manual_seed(0)
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if training.scaling == "imagenet" else ((0.0,) * 3, (1.0,) * 3)
        reference = next(module.parameters())
        self.mean, self.std = (reference.new_tensor(channel).view(3, 1, 1) for channel in (mean, std))
        self.meta = next((part for part in work.parts if isinstance(part, MetaDR)), None)
        self.dr = next((part for part in work.parts if isinstance(part, Randomize)), None)

    def begin(self, train: Split, lr: float) -> None:
        """Go on with a domain."""
        kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[self.work.training.optimizer]
        self.work, self.optimizer = self.work._replace(train=train), kind(self.module.parameters(), lr=lr)

    def steps(self, num_steps: int) -> None:
        for _ in range(num_steps):
            if self.meta is not None:
                self.backward(self.draw_batches(self.meta), self.meta)
            else:
                batch = self.sample()
                if self.dr is not None:
                    batch = self.transform(self.draw_transformation(self.dr), batch)
                self.loss(self.module, batch).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.optimizer.zero_grad()

    @torch.no_grad()
    def test(self, split: Split) -> float:
        """The share of labels that it gets right."""
        self.module.eval()
        right = torch.zeros((), dtype=torch.int64, device=self.mean.device)
        for x, y in zip(*(torch.split(each, TEST_BATCH) for each in split), strict=True):
            right += (self.logits(self.module, x).argmax(1) == y).sum()
        self.module.train()
        return float(right / split.num_images)

    def draw_batches(self, part: MetaDR) -> Batches:
        outer, inner = self.sample(), self.sample()
        drawn = self.draw_transformation(part)
        return Batches(outer, self.transform(drawn, inner), self.transform(drawn, outer))

    def sample(self) -> Batch:
        batch = self.work.train.sample(self.work.training.batch_size, self.rng)
        return mirrored(batch, self.rng, masks=self.work.task.on_masks) if self.work.training.mirror else batch

    def draw_transformation(self, part: MetaDR | Randomize) -> Drawn:
        return draw(part.chosen, self.work.training.batch_size, self.rng, per=part.per, pick=part.pick)

    def transform(self, drawn: Drawn, batch: Batch) -> Batch:
        if not self.work.task.on_masks:
            return batch._replace(x=drawn.apply(batch.x, self.rng))
        x, y = drawn.apply(batch.x, self.rng, batch.y, self.work.task.ignore_index)
        return batch._replace(x=x, y=y)

    def logits(self, network: nn.Module, x: Tensor) -> Tensor:
        inputs = (x.to(self.mean.dtype) / 255 - self.mean) / self.std
        with torch.autocast(inputs.device.type, torch.bfloat16) if self.half else contextlib.nullcontext():
            logits: Tensor = network(inputs)
        return logits.float() if self.half else logits

    def loss(self, network: nn.Module, batch: Batch) -> Tensor:
        ignored = self.work.task.ignore_index if self.work.task.on_masks else -100
        return F.cross_entropy(self.logits(network, batch.x), batch.y.long(), ignore_index=ignored)

    def backward(self, batches: Batches, part: MetaDR) -> None:
        raise NotImplementedError


class Eager(Peer):
    """Plain autograd: `create_graph=True` and a functional call at the fast weights."""

    def backward(self, batches: Batches, part: MetaDR) -> None:
        params = dict(self.module.named_parameters())
        inner = self.loss(self.module, batches.inner_transformed)
        grads = torch.autograd.grad(inner, list(params.values()), create_graph=True)
        fast = {name: value - part.inner_lr * grad for (name, value), grad in zip(params.items(), grads, strict=True)}

        def network(x: Tensor) -> Tensor:
            logits: Tensor = functional_call(self.module, fast, (x,))
            return logits

        clean = self.loss(self.module, batches.outer)
        recall = self.loss(network, batches.outer)  # type: ignore[arg-type]
        adapt = self.loss(network, batches.outer_transformed)  # type: ignore[arg-type]
        (clean + part.recall * recall + part.adapt * adapt).backward()  # type: ignore[no-untyped-call]


class Higher(Peer):
    """The library `higher`: a patched copy of the module and a differentiable SGD."""

    def backward(self, batches: Batches, part: MetaDR) -> None:
        try:
            import higher
        except ModuleNotFoundError:
            raise UserError("higher is not installed; pip install 'metadr[bench]'") from None
        inner = torch.optim.SGD(self.module.parameters(), lr=part.inner_lr)
        with higher.innerloop_ctx(self.module, inner, copy_initial_weights=False) as (fast, stepper):
            stepper.step(self.loss(fast, batches.inner_transformed))
            recall = self.loss(fast, batches.outer)
            adapt = self.loss(fast, batches.outer_transformed)
            clean = self.loss(self.module, batches.outer)
            (clean + part.recall * recall + part.adapt * adapt).backward()  # type: ignore[no-untyped-call]


def peers_of(parts: Sequence[Part]) -> dict[str, type[Peer]]:
    """Who takes the same step, of naive, DR and Meta-DR as the paper has them; `higher`, if there is an inner one."""
    if len(parts) > 1 or not all(_is_known(part) for part in parts):
        return {}
    found: dict[str, type[Peer]] = {"eager": Eager}
    if any(isinstance(part, MetaDR) for part in parts):
        found["higher"] = Higher
    return found


def _is_known(part: Part) -> bool:
    if not isinstance(part, MetaDR):
        return isinstance(part, Randomize)
    once = part.meta_domains == part.inner_steps == 1 and not part.first_order
    return once and part.recall > 0 and part.adapt > 0
