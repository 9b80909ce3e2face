"""A network as a function of its parameters, with batch norm's running statistics under a declared policy."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from metadr import kernels
from metadr.core import Batch, Params, Task
from metadr.engine.layers import reached, trimmed
from metadr.engine.norms import BatchNorms, Groups
from metadr.engine.recompute import Blocks
from metadr.engine.second_order import TwiceDifferentiable
from metadr.training import STATISTICS_ORDER, Loss, Role, statistics_passes

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Passes whose gradient is differentiated again, or taken image by image: attention's fused kernels can do neither.
PLAIN_ATTENTION: tuple[Role, ...] = ("inner", "fisher")
SECOND_ORDER: tuple[Role, ...] = ("inner",)  # passes whose gradient is differentiated again


class Network:
    """Parameters, buffers, and the loss of a batch at any parameters.

    Every training pass normalises with the statistics of its own batch, unless they are fixed. Which passes move the
    running statistics is the policy; each such pass leaves its statistics here, and `settle` applies them in the order
    memory, inner, clean, recall, adapt, whatever order the passes ran in. Those of other policies are kept beside.
    """

    def __init__(
        self,
        module: nn.Module,
        task: Task,
        *,
        scaling: str = "unit",
        batch_norm: str = "all",
        others: Iterable[str] = (),
        norm_momentum: float | None = None,
        precision: str = "fp32",
        sizes: Collection[tuple[int, int]] = (),
        loss: Loss = "cross_entropy",
        recompute: bool = False,
        tested_in: int | None = None,
    ) -> None:
        """
        Args:
            module: a network, on its device; its parameters that require a gradient are trained.
            task: what its outputs mean.
            scaling: unit or imagenet.
            batch_norm: the passes that move the running statistics.
            others: other such policies, whose statistics are kept beside.
            norm_momentum: the share of a pass in them; none: that of the layer.
            precision: fp32, tf32 or bf16.
            sizes: height and width of all images it will meet, where weights that they cannot reach need no training.
            loss: what `loss` is of a batch.
            recompute: whether training passes compute activations again instead of keeping them.
            tested_in: test in batches of so many images, with their own statistics; none: with the running ones.
        """
        self.module = module
        self.task = task
        self.tested_in = tested_in
        self.fixed = False  # whether training passes too normalise by the running statistics, which then stay
        self._loss = loss
        self.moving = statistics_passes(batch_norm)
        named = dict(module.named_parameters())
        self.params: Params = {name: value for name, value in named.items() if value.requires_grad}
        self._frozen = {name: value for name, value in named.items() if not value.requires_grad}
        self.buffers: dict[str, Tensor] = dict(module.named_buffers())
        self.norms = BatchNorms(module, norm_momentum)
        self.beside = {policy: self.norms.copy() for policy in others if self.norms.names}
        """By policy, the running statistics as they would be by it."""
        self.moved: set[str] = set()  # those of them that some pass has moved
        self._blocks = Blocks(module) if recompute else None
        self._others = {name: value for name, value in self.buffers.items() if name not in self.norms.names}
        self._left: list[tuple[Role, list[Tensor]]] = []
        self._half = precision == "bf16"
        reference = next(iter(named.values()))
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if scaling == "imagenet" else ((0.0,) * 3, (1.0,) * 3)
        self._mean, self._std = (reference.new_tensor(channel).view(3, 1, 1) for channel in (mean, std))
        self._scaled = scaling == "imagenet"
        images = (reference.new_zeros(1, 3, *size) for size in sizes)
        found = reached(module, images) if sizes else {}
        self._reached = {name: reach for name, reach in found.items() if name in self.params}
        self._whole = {name: self.params[name].detach() for name in self._reached}
        self._sizes = frozenset(sizes)
        for name, reach in self._reached.items():
            self.params[name] = reach.of(self._whole[name]).clone().requires_grad_()

    @property
    def on_gpu(self) -> bool:
        return self._mean.is_cuda

    @property
    def tested_apart(self) -> bool:
        """Whether it can test only one batch at a time, by statistics that are that batch's own."""
        return self.tested_in is not None and not self.norms.know_groups

    def logits(self, x: Tensor, params: Params | None = None, *, role: Role | None = None) -> Tensor:
        """What the network says of uint8 images. Without a role, or for the Fisher, it is a tested network."""
        if self._reached and (x.shape[-2], x.shape[-1]) not in self._sizes:
            raise ValueError(f"This network was made for images of {sorted(self._sizes)}. Got {tuple(x.shape[-2:])}.")
        inputs = x.to(self._mean.device).to(self._mean.dtype) / 255  # streamed images arrive as bytes
        if self._scaled:
            inputs = (inputs - self._mean) / self._std
        params = {**self._frozen, **(self.params if params is None else params)}
        if role is None or role == "fisher":
            self.module.eval()
            if role is None and self.tested_in:
                groups = Groups(len(x), self.tested_in)
                with self.norms.tracking(False, groups=groups), self._computing(role, half=self._half):
                    return self._call(params, self._others, inputs)
            # The Fisher is always in full precision: it squares gradients, one image at a time.
            with self._computing(role, half=self._half and role is None):
                return self._call(params, self.buffers, inputs)
        self.module.train()
        left = self.norms.zeros() if self._leaves(role) and not self.fixed else {}
        buffers = self.buffers if self.fixed else {**self._others, **left}
        with self._training_pass(role, tracked=bool(left)), self._recomputing(role):
            logits = self._call(params, buffers, inputs)
        if left:
            self._left.append((role, list(left.values())))
        return logits

    def loss(self, batch: Batch, params: Params | None = None, *, role: Role) -> Tensor:
        logits = self.logits(batch.x, params, role=role)
        return self.task.loss(logits, batch.y.to(logits.device), self._loss)

    def slopes(self, logits: Tensor, y: Tensor) -> Tensor:
        """The derivative of every image's own loss by its logits."""

        def loss_of_one(logits: Tensor, y: Tensor) -> Tensor:
            return self.task.loss(logits[None], y[None], self._loss)

        slopes: Tensor = vmap(grad(loss_of_one))(logits, y.to(logits.device))
        return slopes

    @torch.no_grad()
    def settle(self) -> None:
        """Move the running statistics by what this step's passes left behind."""
        for role, statistics in sorted(self._left, key=lambda left: STATISTICS_ORDER.index(left[0])):
            if role in self.moving:
                self.norms.move(statistics)
            for policy, running in self.beside.items():
                if role in statistics_passes(policy):
                    self.norms.move_beside(running, statistics)
                    self.moved.add(policy)
        self._left.clear()

    def _leaves(self, role: Role) -> bool:
        """Whether the statistics of such a pass are wanted."""
        return role in self.moving or any(role in statistics_passes(policy) for policy in self.beside)

    @torch.no_grad()
    def state(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must hold, by the names and shapes of the module's own state."""
        for name, reach in self._reached.items():
            reach.of(self._whole[name]).copy_(self.params[name])
        return {**self._frozen, **self.params, **self._whole, **self.buffers}

    def reached_of(self, name: str, value: Tensor) -> Tensor:
        """What belongs to the trained part of a parameter, of something that belongs to all of it or to that part."""
        whole = self._whole.get(name)
        return value if whole is None or value.shape != whole.shape else self._reached[name].of(value).contiguous()

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, value in self.state().items():
            value.copy_(state[name])
        for name, reach in self._reached.items():
            self.params[name].copy_(reach.of(self._whole[name]))

    def _call(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.module, {**params, **buffers}, (inputs,))
        return logits.float() if self._half else logits

    @contextmanager
    def _computing(self, role: Role | None, *, half: bool) -> Iterator[None]:
        """How layers compute in a pass, batch norm aside."""
        # No cache of half-precision weights: it would outlive the pass, and the inner step changes them.
        casting = torch.autocast(self._mean.device.type, torch.bfloat16, enabled=half, cache_enabled=False)
        products = {None: kernels.MOST_PASSING, "fisher": 0}.get(role, kernels.MOST_PATCHES)
        with casting, trimmed(self.module, products=products), _attention(role), _second_order(role):
            yield

    @contextmanager
    def _training_pass(self, role: Role, *, tracked: bool) -> Iterator[None]:
        norms = self.norms.fixed() if self.fixed else self.norms.tracking(tracked)
        with norms, self._computing(role, half=self._half):
            yield

    def _recomputing(self, role: Role) -> AbstractContextManager[None]:
        """Blocks that keep only what goes in; computed again, they leave no statistics."""
        if self._blocks is None:
            return nullcontext()
        return self._blocks.recomputing(partial(self._training_pass, role, tracked=False))


def _attention(role: Role | None) -> AbstractContextManager[None]:
    return sdpa_kernel(SDPBackend.MATH) if role in PLAIN_ATTENTION else nullcontext()


def _second_order(role: Role | None) -> AbstractContextManager[object]:
    return TwiceDifferentiable() if role in SECOND_ORDER else nullcontext()
