"""The learner: one model, its optimiser, random streams, memory and parts' state, and the step that moves them."""

from collections.abc import Collection, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from metadr.core import Batch, Context, Domain, Memory, Params, Part, Recipe, Split, Task, Training
from metadr.engine.batches import Turns, mirrored
from metadr.engine.capture import Captured
from metadr.engine.keeping import Keeping, below, named
from metadr.engine.log import StepLog, Taken, Terms
from metadr.engine.network import Network
from metadr.engine.rate import FallingRate
from metadr.engine.second_order import check_derivatives, second_derivatives_of
from metadr.engine.squares import squared_gradients
from metadr.engine.streaming import Streamed
from metadr.engine.streams import EPOCHS, Streams, stream_seed
from metadr.kernels.planes import alike
from metadr.past import kept_tensors, past_of
from metadr.policies import others_kept, settled


class Learner(Keeping):
    """All that a step reads or writes. What a part may see of it is a `Context`.

    With `capture`, on a GPU, the first step on data of some shape runs as it is and is then recorded; later steps
    replay it, and so do those on later domains of the same shape, whose data are written over the old ones.
    """

    def __init__(
        self,
        recipe: Recipe,
        training: Training,
        task: Task,
        module: nn.Module,
        *,
        seed: int,
        device: torch.device,
        capture: bool = True,
        sizes: Collection[tuple[int, int]] = (),
    ) -> None:
        training = settled(training, recipe.method)
        self.recipe, self.training, self.task, self.seed, self.device = recipe, training, task, seed, device
        self.network = Network(
            module.to(device),
            task,
            scaling=training.scaling,
            batch_norm=training.batch_norm,
            others=others_kept(training, recipe.method),
            norm_momentum=training.norm_momentum,
            precision=training.precision,
            sizes=sizes,
            loss=training.loss,
            tested_in=training.batch_size if training.tested_by == "batch" else None,
            recompute=training.recompute,
        )
        self.memory = Memory(room=recipe.memory_per_domain * len(recipe.order))
        names = ["outer", "memory", *(part.name for part in recipe.method)]
        self._streamed = Streamed(training.batch_size, device, partial(stream_seed, seed)) if training.stream else None
        if training.sampling == "shuffled" and self._streamed is None:
            names.append(EPOCHS)
        self.streams = Streams(seed, names, device)
        self._turns: Turns | None = None  # of outer batches, where they are not drawn
        self.best = {}
        self.part_state: dict[str, dict[str, Tensor]] = {part.name: {} for part in recipe.method}
        self._statistics = {}
        self._own = {}
        self._rate = FallingRate() if training.decay == "cosine" else None
        self.optimizer: torch.optim.Optimizer
        self._train: Split
        self._fresh = True
        self._looked_at = False  # whether a step's graph has been searched for what has no second derivative
        self._capturing = capture and device.type == "cuda"
        self._captured: Captured | None = None
        self._read: dict[str, Tensor] = {}  # what the recorded step reads
        self._log = StepLog(device)
        self.past = past_of(training)
        if self.past is not None:
            self._go_on(self.past, kept_tensors(training))

    def begin_domain(self, train: Split, *, first: bool) -> None:
        """Start on a domain's training data with a new optimiser, at the lower learning rate after the first: that of
        the run that this one goes on from, if it goes on from one."""
        first = first and self.past is None
        self._check_memory(train)
        lr = self.training.lr if first else self.training.later_lr
        if self._rate is not None:
            self._rate.begin_domain(lr, self.training.steps_on(train.num_images, first=first))
        self.best = {}
        self._fresh = True
        fixed = not first and self.training.later_norm == "fixed"
        if fixed != self.network.fixed:
            self.network.fixed, self._captured = fixed, None  # another step
        if self._own:
            self.network.norms.restore(self._own)
            self._own = {}
        shuffled = self.training.sampling == "shuffled"
        epoch = self.training.epoch_steps(train.num_images) if shuffled else None
        if self._streamed is not None:
            self._streamed.open(train, epoch)
        if self._overwritten_by(train):
            if self._turns is not None:
                self._turns.restart()
            for slots in self.optimizer.state.values():
                for value in slots.values():
                    value.zero_()
            self.optimizer.param_groups[0]["lr"].fill_(lr)
            return
        self._captured = None
        # Recorded steps read the same tensors again: a copy, since others may read the original.
        copied = self._capturing and self._streamed is None
        self._train = Split(train.x.clone(), train.y.clone()) if copied else train
        if epoch is not None and self._streamed is None:
            self._turns = Turns(train.num_images, epoch, self.training.batch_size, self.streams[EPOCHS])
        self.optimizer = self._new_optimizer(lr)

    def steps(self, num_steps: int) -> Taken:
        """Take up to LOOK_EVERY steps in a row, without waiting for them."""
        self.launch(num_steps)
        return self.taken()

    def taken(self) -> Taken:
        """What the steps since the last call left to look at."""
        return self._log.taken(list(self.network.params.values()))

    def launch(self, num_steps: int) -> None:
        """Send some steps on their way; LOOK_EVERY at most before they are asked after."""
        self._fresh = False
        with self._log.turn(num_steps):
            for _ in range(num_steps):
                self._launch_one()

    def _launch_one(self) -> None:
        for source in (self._turns, self._streamed):
            if source is not None:
                source.next_step()
        if self._rate is not None:
            self._rate.next_step(self.optimizer)
        if self._captured is not None:
            self._captured.replay()
            return
        with self.streams.lent_to_layers():
            self._logged_step()
            if self._capturing:
                self._read = self._readable(self._train)
                self._captured = Captured(self._logged_step, self.streams.of_steps)

    @property
    def num_launched(self) -> int:
        """Steps since the last look."""
        return self._log.num_steps

    def step(self) -> Terms:
        """One update: the gradient of the loss, through the optimiser."""
        with second_derivatives_of(self.training.model):
            terms, grads = self.gradient()
        for param, grad in zip(self.network.params.values(), grads, strict=True):
            param.grad = alike(grad, param)  # torch's fused optimisers refuse others on a GPU, and are wrong on a CPU
        self.optimizer.step()
        self.network.settle()
        return terms

    def gradient(self) -> tuple[Terms, list[Tensor]]:
        """The loss of the viewed batch plus every part's penalty, and its gradient through every part."""
        if self._streamed is not None:
            self._streamed.begin()
        parts = self.recipe.method
        contexts = {part.name: self._context(part) for part in parts}
        raw = self._outer_batch()
        for part in parts:
            raw = self._extended(raw, part, contexts[part.name])
        batch = raw
        for part in parts:
            batch = part.view(batch, contexts[part.name])
        terms = {"clean": self.network.loss(batch, role="clean")}
        for part in parts:
            penalty = part.penalty(raw, batch, contexts[part.name])
            if isinstance(penalty, Tensor):
                terms[part.name] = penalty
        moving = [term for term in terms.values() if term.requires_grad]
        if not self._looked_at:
            check_derivatives(moving)
            self._looked_at = True
        grads = _gradient_of(moving, list(self.network.params.values()))
        for part in parts:
            grads = part.gradient(grads, contexts[part.name])
        values = {name: term.detach() for name, term in terms.items()}
        return Terms(_add(list(values.values())), values), grads

    def end_domain(self, domain: Domain) -> None:
        """Let every part keep what it needs of a domain that is about to go, and remember M of its images."""
        self._settle_weights()
        self.keep_of(domain, self.recipe.method)
        if self.training.tested_by == "domains":
            self._own = self.network.norms.copy()
            self._statistics = self.network.norms.average(self._statistics)

    @torch.no_grad()
    def _settle_weights(self) -> None:
        """Go on with the weights that parts make of those that a domain has ended with."""
        ended = {**self.network.params, **self.network.norms.running}
        weights: Params = ended
        for part in self.recipe.method:
            weights = part.weights(weights, self._context(part))
        if weights is ended:
            return
        for name, value in ended.items():
            value.copy_(weights[name])
        if self.network.beside:  # other policies' statistics are of weights that are gone; a recorded step moves them
            self.network.beside, self._captured = {}, None
            self.network.moved.clear()

    def keep_of(self, domain: Domain, parts: Iterable[Part]) -> None:
        """What these parts need of it, and the memory."""
        for part in parts:
            self.part_state[part.name] = part.end_domain(domain, self._context(part))
        if self.recipe.memory_per_domain:
            # Drawn in any case, so that the choice moves nothing but the memory.
            rows = torch.randperm(domain.train.num_images, generator=self.streams["memory"], device=self.device)
            if self.recipe.memory_choice == "first":
                rows = torch.arange(domain.train.num_images, device=self.device)
            rows = rows[: self.recipe.memory_per_domain].to(domain.train.x.device)
            kept = Split(domain.train.x[rows], domain.train.y[rows])
            self.memory.add(Batch(*kept.to(self.device)))

    def _context(self, part: Part) -> Context:
        own = self.streams[part.name]

        def draw(*, replay: bool = True) -> Batch:
            batch = self._mirrored(self._sample(own), own)
            for other in self.recipe.method if replay else ():
                batch = self._extended(batch, other, self._context(other)._replace(rng=own))
            return batch

        def view(batch: Batch) -> Batch:
            for other in self.recipe.method:
                batch = other.view(batch, self._context(other)._replace(rng=own))
            return batch

        return Context(
            params=self.network.params,
            statistics=self.network.norms.running,
            logits=self.network.logits,
            loss=self.network.loss,
            squared_gradients=partial(squared_gradients, self.network),
            draw=draw,
            view=view,
            memory=self.memory,
            state=self.part_state[part.name],
            rng=own,
            task=self.task,
            batch_size=self.training.batch_size,
        )

    def _outer_batch(self) -> Batch:
        rng = self.streams["outer"]
        if self._turns is None:
            return self._mirrored(self._sample(rng), rng)
        rows = self._turns.rows()
        return self._mirrored(Batch(self._train.x[rows], self._train.y[rows]), rng)

    def _sample(self, rng: torch.Generator) -> Batch:
        if self._streamed is not None:
            return self._streamed.batch()
        return self._train.sample(self.training.batch_size, rng)

    def _mirrored(self, batch: Batch, rng: torch.Generator) -> Batch:
        return mirrored(batch, rng, masks=self.task.on_masks) if self.training.mirror else batch

    def _extended(self, batch: Batch, part: Part, ctx: Context) -> Batch:
        """A batch with the rows that a part adds; only those are mirrored here, by the part's own stream."""
        longer, new = part.extend(batch, ctx), len(batch.x)
        if not self.training.mirror or len(longer.x) == new:
            return longer
        added = self._mirrored(Batch(longer.x[new:], longer.y[new:]), ctx.rng)
        return longer._replace(x=torch.cat((longer.x[:new], added.x)), y=torch.cat((longer.y[:new], added.y)))

    def _logged_step(self) -> None:
        self._log.write(self.step())

    def _overwritten_by(self, train: Split) -> bool:
        """Write a new domain's data and parts' state over those that the recorded step reads, if they fit.

        The memory has been added to in place.
        """
        new = self._readable(train)
        if self._captured is None or not _alike(self._read, new):
            return False
        for name, value in new.items():
            self._read[name].copy_(value)
        self.part_state = {name: below(self._read, f"part/{name}/") for name in self.part_state}
        return True

    def _readable(self, train: Split) -> dict[str, Tensor]:
        """All that a step reads and does not write, but for the memory as far as it is only sampled from."""
        if self._streamed is not None:  # only the places of its batches, which have the shape of its rows
            train = Split(train.x[:1].clone(), train.y[:1].clone())
        each = [part for part in self.recipe.method if part.uses_memory and not part.samples_memory]
        memories = self.memory.batches if each else self.memory.batches[:1]
        return {
            "train/x": train.x,
            "train/y": train.y,
            **named("part", self.part_state),
            **{f"memory/{index}": batch.x for index, batch in enumerate(memories)},
        }

    def _new_optimizer(self, lr: float) -> torch.optim.Optimizer:
        params, on_gpu = list(self.network.params.values()), self.device.type == "cuda"
        rate = torch.tensor(lr, device=self.device) if on_gpu else lr  # on a GPU a tensor, to be overwritten
        if self.training.optimizer == "adam":
            return torch.optim.Adam(params, lr=rate, capturable=on_gpu, fused=on_gpu)
        return torch.optim.SGD(params, lr=rate, momentum=self.training.momentum, fused=on_gpu)


def _alike(old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> bool:
    """Whether two groups have the same names, shapes and types."""
    return {name: (value.shape, value.dtype) for name, value in old.items()} == {
        name: (value.shape, value.dtype) for name, value in new.items()
    }


def _gradient_of(terms: list[Tensor], params: list[Tensor]) -> list[Tensor]:
    """The gradient of a sum. Term by term: whole gradients are added in one operation, not one for each parameter."""
    total, *others = (list(torch.autograd.grad(term, params, materialize_grads=True)) for term in terms)
    for grads in others:
        total = list(torch._foreach_add(total, grads))
    return total


def _add(terms: list[Tensor]) -> Tensor:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
