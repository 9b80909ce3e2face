"""What a learner keeps: all of it in a checkpoint, and of domains that are gone what another learner may go on from."""

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from metadr.core import Batch, Context, Domain, Memory, Part, Recipe, Split, Training
from metadr.engine.batches import Turns
from metadr.engine.capture import Captured
from metadr.engine.network import Network
from metadr.engine.rate import FallingRate
from metadr.engine.streaming import Streamed
from metadr.engine.streams import Streams, stream_seed
from metadr.errors import UserError
from metadr.past import Past, keeps_weights


class Keeping:
    """The side of a learner that keeps; the other takes steps."""

    recipe: Recipe
    training: Training
    seed: int
    device: torch.device
    network: Network
    optimizer: torch.optim.Optimizer
    streams: Streams
    memory: Memory
    part_state: dict[str, dict[str, Tensor]]
    best: dict[str, Tensor]  # the network at the best epoch of this domain, where one is looked for
    _statistics: dict[str, Tensor]  # batch norm's, of all domains so far, where tests go by them
    _own: dict[str, Tensor]  # and of the last domain alone, until the next begins
    _fresh: bool  # no step has been taken on this domain
    _turns: Turns | None
    _streamed: Streamed | None
    _rate: FallingRate | None
    _captured: Captured | None

    def _context(self, part: Part) -> Context:
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must hold, flat, by name."""
        tensors = {f"model/{name}": value.detach() for name, value in self.network.state().items()}
        # Before a domain's first step the optimiser knows nothing: zeros, if it has recorded steps to go on with.
        slots_of = {} if self._fresh else self.optimizer.state_dict()["state"]
        for index, slots in slots_of.items():
            for slot, value in slots.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{index}/{slot}"] = value
        tensors |= self.streams.state()
        tensors |= named("part", self.part_state)
        tensors |= {f"statistics/{name}": value for name, value in self._statistics.items()}
        tensors |= named("beside", self.network.beside)
        tensors |= {f"best/{name}": value for name, value in self.best.items()}
        tensors |= {f"own/{name}": value for name, value in self._own.items()}
        for kind, source in self._counting():
            tensors |= {f"{kind}/{name}": value for name, value in source.state().items()}
        for index, batch in enumerate(self.memory.batches):
            tensors[f"memory/{index}/x"], tensors[f"memory/{index}/y"] = batch.x, batch.y
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go back to a checkpointed state; call `begin_domain` first, so that there is an optimiser to fill."""
        self._captured = None
        self.network.load(below(tensors, "model/"))
        # Checkpoints of earlier versions hold what belongs to weights that no image reaches, too.
        names, slots = list(self.network.params), dict[int, dict[str, Tensor]]()
        for key, value in below(tensors, "optimizer/").items():
            index, slot = key.split("/")
            value = self.network.reached_of(names[int(index)], value)
            slots.setdefault(int(index), {})[slot] = value.clone()  # the optimiser writes into what it is given
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": slots})
        self._fresh = not slots
        self.streams.load(tensors)
        self._load_kept(tensors)
        self.best = {name: value.to(self.device) for name, value in below(tensors, "best/").items()}
        for kind, source in self._counting():
            source.load(below(tensors, f"{kind}/"))

    def make_room(self, num_images: int) -> None:
        """Have a memory with room for so many images beside those that are there."""
        batches = self.memory.batches
        self.memory = Memory(num_images + self.memory.num_images)
        for batch in batches:
            self.memory.add(batch)

    def _go_on(self, past: Past, kept: Mapping[str, Tensor]) -> None:
        """Take over what another learner kept: its network is here already. Where both draw alike, go on drawing where
        it stopped; else draw anew, and not as it did."""
        self.memory.room += past.memory
        self._load_kept(kept)
        self._own = {name: value.to(self.device) for name, value in below(kept, "own/").items()}
        nothing = Split(torch.empty(0), torch.empty(0))
        gone = Domain(past.domains[-1], nothing, nothing)
        with self.network.norms.replaced(self._own or self.network.norms.copy()):
            for part in self.recipe.method:
                if part.name not in past.method and keeps_weights(part):  # it comes in with the network that is here
                    self.part_state[part.name] = part.end_domain(gone, self._context(part))
        for name, state in self.part_state.items():
            for key, value in state.items():
                param = self.network.params.get(key.partition(".")[2])
                if param is not None and param.ndim == value.ndim and param.shape != value.shape:
                    raise UserError(
                        f"What part '{name}' keeps in {self.training.weights} was made with images of another size, on "
                        f"which the network has other weights ('{key}'). Use images of that size."
                    )
        alike = (past.seed, past.device) == (self.seed, self.device.type)
        self.streams.go_on(kept if alike else {}, partial(stream_seed, self.seed, "after", *past.domains))
        if self._streamed is not None and alike and (turns := below(kept, "turns/")):
            self._streamed.load(turns)

    def _check_memory(self, train: Split) -> None:
        batches = self.memory.batches
        if batches and batches[0].x.shape[1:] != train.x.shape[1:]:
            theirs, ours = ("x".join(map(str, reversed(x.shape[2:]))) for x in (batches[0].x, train.x))
            raise UserError(
                f"The memory of earlier domains has images of {theirs}, and these are of {ours}: one batch has images "
                f"of one size. Make them {theirs}."
            )

    def _load_kept(self, tensors: Mapping[str, Tensor]) -> None:
        """What is kept of past domains."""
        self.part_state = {
            name: {
                key: self.network.reached_of(key.partition(".")[2], value.to(self.device))
                for key, value in below(tensors, f"part/{name}/").items()
            }
            for name in self.part_state
        }
        self._statistics = {name: value.to(self.device) for name, value in below(tensors, "statistics/").items()}
        for policy, running in list(self.network.beside.items()):
            kept = below(tensors, f"beside/{policy}/")
            for name, value in running.items() if kept else ():
                value.copy_(kept[name])
            if not kept:  # an older version's checkpoint: its run is not tested by them
                del self.network.beside[policy]
        stored = below(tensors, "memory/") if self.recipe.memory_per_domain else {}
        self.memory = Memory(self.memory.room)
        for number in range(len(stored) // 2):
            self.memory.add(Batch(stored[f"{number}/x"].to(self.device), stored[f"{number}/y"].to(self.device)))

    def _counting(self) -> Iterator[tuple[str, Turns | Streamed | FallingRate]]:
        """What counts the steps of a domain, and the name of its kind."""
        for kind, source in (("turns", self._turns), ("turns", self._streamed), ("rate", self._rate)):
            if source is not None:
                yield kind, source


def named(prefix: str, groups: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{prefix}/{name}/{key}": value for name, group in groups.items() for key, value in group.items()}


def below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
