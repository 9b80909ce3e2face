"""A network as a function of its parameters, with batch norm's running statistics under a declared policy."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from metadr.core import STATISTICS_ORDER, Batch, Params, Role, Task, statistics_passes
from metadr.errors import UserError

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Network:
    """Parameters, buffers, and the loss of a batch at any parameters.

    Every training pass normalises with the statistics of its own batch. Which passes move the running statistics is
    the policy; each such pass leaves its statistics here, and `settle` applies them in the order inner, clean, recall,
    adapt, whatever order the passes ran in.
    """

    def __init__(self, module: nn.Module, task: Task, *, scaling: str = "unit", batch_norm: str = "clean") -> None:
        self.module = module
        self.task = task
        self.moving = statistics_passes(batch_norm)
        named = dict(module.named_parameters())
        self.params: Params = {name: value for name, value in named.items() if value.requires_grad}
        self._frozen = {name: value for name, value in named.items() if not value.requires_grad}
        self.buffers: dict[str, Tensor] = dict(module.named_buffers())
        self._momenta = _momenta(module)
        self._left: list[tuple[Role, dict[str, Tensor]]] = []
        reference = next(iter(named.values()))
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if scaling == "imagenet" else ((0.0,) * 3, (1.0,) * 3)
        self._mean, self._std = (reference.new_tensor(channel).view(3, 1, 1) for channel in (mean, std))
        self._scaled = scaling == "imagenet"

    def logits(self, x: Tensor, params: Params | None = None, *, role: Role | None = None) -> Tensor:
        """What the network says of uint8 images. Without a role, or for the Fisher, it is a tested network."""
        inputs = x.to(self._mean.dtype) / 255
        if self._scaled:
            inputs = (inputs - self._mean) / self._std
        params = {**self._frozen, **(self.params if params is None else params)}
        if role is None or role == "fisher":
            self.module.eval()
            return self._call(params, self.buffers, inputs)
        self.module.train()
        # Zeroed twins of the running statistics: after the pass they hold momentum * statistic, nothing else moved.
        scratch = {name: torch.zeros_like(self.buffers[name]) for name in self._momenta}
        logits = self._call(params, {**self.buffers, **scratch}, inputs)
        if role in self.moving:
            self._left.append((role, scratch))
        return logits

    def loss(self, batch: Batch, params: Params | None = None, *, role: Role) -> Tensor:
        return self.task.loss(self.logits(batch.x, params, role=role), batch.y)

    @torch.no_grad()
    def settle(self) -> None:
        """Move the running statistics by what this step's passes left behind."""
        for _, scratch in sorted(self._left, key=lambda left: STATISTICS_ORDER.index(left[0])):
            for name, momentum in self._momenta.items():
                buffer = self.buffers[name]
                if momentum is None:
                    buffer += 1
                else:
                    buffer.mul_(1 - momentum).add_(scratch[name])
        self._left.clear()

    def state(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must hold, by the names of the module's own state."""
        return {**self._frozen, **self.params, **self.buffers}

    def load(self, state: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self.state().items():
                value.copy_(state[name])

    def _call(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.module, {**params, **buffers}, (inputs,))
        return logits


def _momenta(module: nn.Module) -> dict[str, float | None]:
    """Names of batch norm's buffers with the momentum of each; the counter of batches has none."""
    momenta: dict[str, float | None] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, _InstanceNorm) and layer.running_mean is not None:
            raise UserError(
                f"Instance norm '{path}' keeps running statistics, which no statistics policy covers. "
                "Make it with track_running_stats=False."
            )
        if not isinstance(layer, _BatchNorm) or layer.running_mean is None:
            continue
        if layer.momentum is None:
            raise UserError(
                f"Batch norm '{path}' has momentum=None (a cumulative average), which no statistics policy covers. "
                "Give it a number such as 0.1."
            )
        prefix = f"{path}." if path else ""
        momenta[f"{prefix}running_mean"] = momenta[f"{prefix}running_var"] = layer.momentum
        momenta[f"{prefix}num_batches_tracked"] = None
    return momenta
