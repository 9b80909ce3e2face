"""The learner: one model, its optimiser, random streams, memory and parts' state, and the step that moves them."""

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from metadr.core import Batch, Context, Domain, Memory, Part, Recipe, Split, Task, Training
from metadr.engine.network import Network


class Terms(NamedTuple):
    """What a step leaves to look at: device tensors, read only when somebody asks."""

    loss: Tensor
    by_name: dict[str, Tensor]


def stream_seed(seed: int, *names: object) -> int:
    """A seed derived from meaning, so that one stream cannot be moved by how much another is used."""
    text = "/".join(str(name) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Learner:
    """All that a step reads or writes. What a part may see of it is a `Context`."""

    def __init__(
        self, recipe: Recipe, training: Training, task: Task, module: nn.Module, *, seed: int, device: torch.device
    ) -> None:
        self.recipe, self.training, self.task, self.seed, self.device = recipe, training, task, seed, device
        self.network = Network(module.to(device), task, scaling=training.scaling, batch_norm=training.batch_norm)
        self.memory = Memory()
        names = ["outer", "memory", *(part.name for part in recipe.method)]
        self.streams = {name: self._stream(name) for name in names}
        self.part_state: dict[str, dict[str, Tensor]] = {part.name: {} for part in recipe.method}
        self._hidden_rng = torch.Generator().manual_seed(stream_seed(seed, "hidden")).get_state()
        self.optimizer: torch.optim.Optimizer
        self._train: Split

    def begin_domain(self, train: Split, *, first: bool) -> None:
        """Start on a domain's training data with a new optimiser, at the lower learning rate after the first."""
        settings = self.training
        self._train = train
        lr = settings.lr if first else settings.later_lr
        params = list(self.network.params.values())
        if settings.optimizer == "adam":
            self.optimizer = torch.optim.Adam(params, lr=lr)
        else:
            self.optimizer = torch.optim.SGD(params, lr=lr, momentum=settings.momentum)

    def steps(self, num_steps: int) -> list[Terms]:
        """Take steps in a row; layers that draw by themselves (dropout) use this learner's own hidden stream."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._hidden_rng)
            taken = [self.step() for _ in range(num_steps)]
            self._hidden_rng = torch.get_rng_state()
        return taken

    def step(self) -> Terms:
        """One update: the loss of the viewed batch plus every part's penalty, its gradient through every part."""
        parts = self.recipe.method
        contexts = {part.name: self._context(part) for part in parts}
        raw = self._train.sample(self.training.batch_size, self.streams["outer"])
        for part in parts:
            raw = part.extend(raw, contexts[part.name])
        batch = raw
        for part in parts:
            batch = part.view(batch, contexts[part.name])
        terms = {"clean": self.network.loss(batch, role="clean")}
        for part in parts:
            penalty = part.penalty(raw, batch, contexts[part.name])
            if isinstance(penalty, Tensor):
                terms[part.name] = penalty
        total = _add(list(terms.values()))
        params = list(self.network.params.values())
        grads = list(torch.autograd.grad(total, params, materialize_grads=True))
        for part in parts:
            grads = part.gradient(grads, contexts[part.name])
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        self.optimizer.step()
        self.network.settle()
        return Terms(total.detach(), {name: term.detach() for name, term in terms.items()})

    def end_domain(self, domain: Domain) -> None:
        """Let every part keep what it needs of a domain that is about to go, and remember M of its images."""
        for part in self.recipe.method:
            self.part_state[part.name] = part.end_domain(domain, self._context(part))
        if self.recipe.memory_per_domain:
            # Drawn in any case, so that the choice moves nothing but the memory.
            rows = torch.randperm(domain.train.num_images, generator=self.streams["memory"], device=self.device)
            if self.recipe.memory_choice == "first":
                rows = torch.arange(domain.train.num_images, device=self.device)
            rows = rows[: self.recipe.memory_per_domain]
            self.memory.add(Batch(domain.train.x[rows], domain.train.y[rows]))

    def state(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must hold, flat, by name."""
        tensors = {f"model/{name}": value.detach() for name, value in self.network.state().items()}
        for index, slots in self.optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{index}/{slot}"] = value
        for name, rng in self.streams.items():
            tensors[f"stream/{name}"] = rng.get_state()
        tensors["stream_of_layers"] = self._hidden_rng
        for name, state in self.part_state.items():
            for key, value in state.items():
                tensors[f"part/{name}/{key}"] = value
        for index, batch in enumerate(self.memory.batches):
            tensors[f"memory/{index}/x"], tensors[f"memory/{index}/y"] = batch.x, batch.y
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to a checkpointed state; call `begin_domain` first, so that there is an optimiser to fill."""
        self.network.load(_below(tensors, "model/"))
        slots: dict[int, dict[str, Tensor]] = {}
        for key, value in _below(tensors, "optimizer/").items():
            index, slot = key.split("/")
            slots.setdefault(int(index), {})[slot] = value.clone()  # the optimiser writes into what it is given
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
        for name, rng in self.streams.items():
            rng.set_state(tensors[f"stream/{name}"].cpu())
        self._hidden_rng = tensors["stream_of_layers"].cpu()
        self.part_state = {
            name: {key: value.to(self.device) for key, value in _below(tensors, f"part/{name}/").items()}
            for name in self.part_state
        }
        stored = _below(tensors, "memory/")
        self.memory = Memory(
            [
                Batch(stored[f"{index}/x"].to(self.device), stored[f"{index}/y"].to(self.device))
                for index in range(len(stored) // 2)
            ]
        )

    def _context(self, part: Part) -> Context:
        own = self.streams[part.name]

        def draw(*, replay: bool = True) -> Batch:
            batch = self._train.sample(self.training.batch_size, own)
            for other in self.recipe.method if replay else ():
                batch = other.extend(batch, self._context(other)._replace(rng=own))
            return batch

        def view(batch: Batch) -> Batch:
            for other in self.recipe.method:
                batch = other.view(batch, self._context(other)._replace(rng=own))
            return batch

        return Context(
            params=self.network.params,
            logits=self.network.logits,
            loss=self.network.loss,
            draw=draw,
            view=view,
            memory=self.memory,
            state=self.part_state[part.name],
            rng=own,
            task=self.task,
            batch_size=self.training.batch_size,
        )

    def _stream(self, name: str) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(stream_seed(self.seed, name))


def _add(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
