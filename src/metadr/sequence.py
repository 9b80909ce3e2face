"""The sequence of a run: its model meets the domains one after another and is tested on all of them in between."""

import math
import time
from collections import deque
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from metadr import models
from metadr.beginnings import Beginning, Beginnings
from metadr.benchmarks import benchmark_of, training_of
from metadr.best_epoch import Best, BestEpoch
from metadr.clock import Clock
from metadr.core import Domain, Recipe, Split
from metadr.domains import load_domains
from metadr.engine.fit import check_fit
from metadr.engine.learner import Learner
from metadr.engine.log import Taken, steps_in
from metadr.engine.network import Network
from metadr.engine.streams import stream_seed
from metadr.errors import UserError
from metadr.evaluate import Told, by_batches, details, score, suite_iou, tell
from metadr.past import needs_a_past
from metadr.provenance import environment
from metadr.store import NETWORK, Checkpoint, RunDirectory

UNTRAINED = "untrained"
BY_BATCH = "by_batch"  # in a row of the last test: the score by the statistics of every tested batch
BY_PASSES = "by_passes"  # and the scores by the running statistics of other policies
CHUNK = 10  # steps between two looks at the loss, the clock and whoever watches; on a GPU, where a look costs more
LOOK_SECONDS = 0.5  # than some steps, as many as this takes
# Of these, steps that are sent to a GPU before others may send theirs: a lane that filled the queue would have the
# device to itself while it waits for room there.
TURN_SECONDS = 0.02
PATIENCE_SECONDS = 4.0  # on a CPU no more steps between two looks than this takes: who asks it to stop waits for them
WRITING_SECONDS = 1e-3  # between two looks whether a checkpoint has been written
OF_A_DOMAIN = ("optimizer/", "best/", "rate/", "turns/order", "turns/place")  # names of what its end leaves nothing of
Pauses = Generator["Progress | None", None, None]  # none: nothing to tell, only that others may have their turn


class Progress(NamedTuple):
    """Where a run stands, for whoever watches it."""

    domain: str
    stage: int  # from 0
    num_stages: int
    step: int
    num_steps: int
    taken: int  # steps so far, on all domains
    total: int
    terms: dict[str, float]  # the loss and its terms at the last step
    steps_per_second: float
    seconds_left: float


class DomainSequence:
    """The state of a run while it runs."""

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        directory: RunDirectory,
        device: torch.device,
        checkpoint_seconds: float,
        capture: bool,
        clock: Clock,
        beginnings: Beginnings | None,
        network_alone: bool,
    ) -> None:
        self.recipe, self.seed, self.directory, self.device = recipe, seed, directory, device
        self.checkpoint_seconds, self._clock, self._beginnings = checkpoint_seconds, clock, beginnings
        self._network_alone = network_alone
        self.training = training_of(recipe)
        self.task = benchmark_of(recipe).task
        self._residents = load_domains(recipe, device)  # held, so that runs beside this one share them
        self.tested = [resident.domain for resident in self._residents]
        self.domains = self.tested[: len(recipe.order)]  # to train on
        self.data = [resident.fingerprint for resident in self._residents]
        with torch.random.fork_rng(devices=[]):
            # The CPU's stream alone: torch.manual_seed would move the caller's on GPUs too.
            torch.default_generator.manual_seed(stream_seed(seed, "init"))
            module = models.build(self.training.model, self.task.num_classes, self.training.weights)
        check_fit(self.training, Network(module, self.task), self.tested)
        self.sizes = sorted({(domain.train.x.shape[2], domain.train.x.shape[3]) for domain in self.tested})
        self.learner = Learner(
            recipe, self.training, self.task, module, seed=seed, device=device, capture=capture, sizes=self.sizes
        )
        most = recipe.memory_per_domain  # a domain may have fewer images, and so the memory less room
        self.learner.make_room(sum(min(most, domain.train.num_images) for domain in self.domains))
        self.stage, self.step, self.seconds, self.own_seconds = 0, 0, 0.0, 0.0
        self.rows: list[dict[str, Any]] = []
        self.taken_over = 0  # steps that another run took, which begins with the same domains
        self._all_here = True  # trained by these versions on this device, from its first step on
        self.steps = [
            self.training.steps_on(
                sum(each.train.num_images for each in self._visible(stage)), first=stage == 0 and not self.learner.past
            )
            for stage in range(len(self.domains))
        ]
        self.epochs: BestEpoch | None = None
        self._launched = 0  # steps of this domain that are on their way; `step` of them are known to be sound
        self._flying: deque[Taken] = deque()  # those that nobody has looked at yet
        self._chunk, self._turn = CHUNK, CHUNK
        self._resumed_at = self._saved_at = time.monotonic()

    def play(self) -> Pauses:
        yield from self._resume_or_start()
        while self.stage < len(self.domains):
            yield from self._train()
            if self.epochs is not None:
                self.epochs.restore()
            self.learner.end_domain(self.domains[self.stage])
            testing = self._test(after=self.domains[self.stage].name)
            try:
                for _ in testing:
                    yield None
            except GeneratorExit:  # the domain has ended, and must not end again when this run goes on
                deque(testing, maxlen=0)
                self._next_stage()
                raise
            self._next_stage()
        while self.directory.writing:  # the last checkpoint, after those of other lanes
            time.sleep(WRITING_SECONDS)
            yield None
        self.directory.settle()
        (self.directory.path / "failed.json").unlink(missing_ok=True)  # of an attempt in a sweep
        self.directory.write("done.json", {**self._times(), "steps": sum(self.steps) - self.taken_over})
        self.directory.keep_newest()

    def _next_stage(self) -> None:
        self.stage, self.step, self.epochs = self.stage + 1, 0, None
        if self.stage < len(self.domains):
            self._begin()
        shared = self._beginnings if self._all_here else None
        self._save(shared.leaves(self.recipe, self.seed, self.stage) if shared else None)

    def _train(self) -> Pauses:
        """Train on one domain. On a GPU the next steps are on their way before the host looks at the last ones."""
        self._launched = first = self.step
        started = time.monotonic()
        try:
            while self._launched < self.steps[self.stage] or self._flying:
                # Where the network is needed now, for a checkpoint or to test it, nothing may be on its way.
                due = time.monotonic() - self._saved_at >= self.checkpoint_seconds
                wait = due or (self.epochs is not None and self.epochs.ended(self._launched))
                most = 2 if self.device.type == "cuda" and not wait else 1
                if self._launched < self.steps[self.stage] and len(self._flying) < most:
                    yield from self._launch()
                    continue
                terms = self._look(self._flying.popleft())
                yield self._progress(terms, (self.step - first) / (time.monotonic() - started))
                if due and not self._flying:
                    self._save()
        except GeneratorExit:
            if self.learner.num_launched:
                self._flying.append(self.learner.taken())
            while self._flying:
                self._look(self._flying.popleft())
            self._save()
            raise

    def _launch(self) -> Pauses:
        """Send steps on their way, a few at a turn, up to the next look."""
        left = min(self._chunk, self.steps[self.stage] - self._launched)
        if self.epochs is not None:
            left = min(left, self.epochs.steps_left(self._launched))
        while left:
            num_steps = min(left, self._turn)
            started = time.monotonic()
            self.learner.launch(num_steps)
            self._launched, left = self._launched + num_steps, left - num_steps
            if self.device.type == "cpu":  # where they have been taken when this returns
                self._chunk = min(CHUNK, steps_in(PATIENCE_SECONDS, num_steps, time.monotonic() - started))
            if left:
                yield None
        self._flying.append(self.learner.taken())

    def _progress(self, terms: dict[str, float], rate: float) -> Progress:
        taken, total = sum(self.steps[: self.stage]) + self.step, sum(self.steps)
        return Progress(
            domain=self.domains[self.stage].name,
            stage=self.stage,
            num_stages=len(self.domains),
            step=self.step,
            num_steps=self.steps[self.stage],
            taken=taken,
            total=total,
            terms=terms,
            steps_per_second=rate,
            seconds_left=(total - taken) / rate,
        )

    def _look(self, taken: Taken) -> dict[str, float]:
        """Read the losses of a chunk, the only time the host waits for the device; stop where one is not finite."""
        steps, finite = taken.read()
        for offset, terms in enumerate(steps, start=1):
            if not math.isfinite(terms["loss"]):
                raise self._lost(f"The loss is {terms['loss']} at", offset)
        if not finite:
            raise self._lost("The weights are no longer finite after", len(steps))
        self.step += len(steps)
        if taken.seconds:
            self._chunk = steps_in(LOOK_SECONDS, len(steps), taken.seconds)
            self._turn = steps_in(TURN_SECONDS, len(steps), taken.seconds)
        if self.epochs is not None and self.epochs.ended(self.step):
            self.epochs.look(self.step)
        return steps[-1]

    def _lost(self, what: str, offset: int) -> UserError:
        return UserError(
            f"{what} step {self.step + offset} of domain '{self.domains[self.stage].name}' in {self.directory.path}. "
            "The last good checkpoint is kept. Lower lr, inner_lr or a strength."
        )

    def _resume_or_start(self) -> Pauses:
        checkpoint = self.directory.load()
        if checkpoint is None:
            past = self.learner.past
            environment_now = {
                **environment(self.device),
                "data": dict(zip(self.recipe.domains, self.data, strict=True)),
                "images": tuple(self.domains[0].train.x.shape[2:]),
                "classes": benchmark_of(self.recipe).classes,
                **({"past": {"key": past.key, "words": past.words}} if past else {}),
            }
            self.directory.write("environment.json", environment_now)
            begun = self._beginnings.find(self.recipe, self.seed, self._can_use) if self._beginnings else None
            if begun:
                self._begin()
                yield from self._take_over(begun)
            else:
                yield from self._test(after=UNTRAINED)  # by the statistics that a run before was tested by
                self._begin()
            self._save()
            return
        self._check_same_ground(checkpoint.position)
        self._all_here = self.directory.goes_on_with(environment(self.device))
        if self._beginnings and not self._all_here:
            self._beginnings.leaves_nothing(self.recipe, self.seed)
        self.stage, self.step = checkpoint.position["stage"], checkpoint.position["step"]
        self.rows, self.seconds = checkpoint.position["rows"], checkpoint.position["seconds"]
        self.own_seconds = checkpoint.position.get("own_seconds", self.seconds)
        self.taken_over = checkpoint.position.get("taken_over", 0)
        if self.stage < len(self.domains):
            best = checkpoint.position.get("best")
            self._begin(Best(*best) if best else None)
            self.learner.load(checkpoint.tensors)
        self.directory.write("rows.json", self.rows)

    def _can_use(self, begun: Beginning) -> bool:
        """Whether another run's beginning is of the same images; and, where tests cannot be made up for, the tested."""
        alike, needed = self._alike(begun), self.recipe.domains if begun.num_domains > 1 else self.recipe.order[:1]
        return alike.issuperset(needed) and begun.checkpoint.position["sizes"] == [list(size) for size in self.sizes]

    def _alike(self, begun: Beginning) -> set[str]:
        """The domains whose images are those of another run."""
        position = begun.checkpoint.position
        theirs = dict(zip(position["domains"], position["data"], strict=True))
        return {name for name, own in zip(self.recipe.domains, self.data, strict=True) if theirs.get(name) == own}

    def _take_over(self, begun: Beginning) -> Pauses:
        """Go on from where another run ended the last of the domains that both begin with."""
        position = begun.checkpoint.position
        ended = self.recipe.order[: begun.num_domains]
        known = {(row["after"], row["on"]): row for row in position["rows"]}
        wanted = [(after, domain.name) for after in (UNTRAINED, *ended) for domain in self.tested]
        whole = self._alike(begun).issuperset(self.recipe.domains)
        if not whole:  # tested on other images than this one, which only happens at the end of the first
            yield from self._test(after=UNTRAINED)
        if begun.num_domains == 1:  # of which every run keeps its own, before the next begins
            self.learner.load(begun.state_of(self.recipe, self.learner.state()))
            self.learner.keep_of(self.domains[0], filter(needs_a_past, self.recipe.method))
        self.stage, self.taken_over = begun.num_domains, sum(self.steps[: begun.num_domains])
        self._begin()
        self.learner.load(begun.state_of(self.recipe, self.learner.state()))
        if whole:
            self.rows = [known[each] for each in wanted]
        else:
            yield from self._test(after=ended[-1])

    def _check_same_ground(self, position: dict[str, Any]) -> None:
        """Random streams belong to a kind of device and batches to their data: on others it would be another run."""
        if position["device"] != self.device.type:
            raise UserError(
                f"Run {self.directory.path} was started on {position['device']} and cannot go on on "
                f"{self.device.type}. Use --device {position['device']}, or another --out."
            )
        if position["data"] != self.data:
            raise UserError(
                f"The data of run {self.directory.path} have changed since it was started. "
                "Restore them (or the libraries that render them), or use another --out."
            )

    def _begin(self, best: Best | None = None) -> None:
        """Hand the learner what it may train on at this stage."""
        visible = self._visible(self.stage)
        self.learner.begin_domain(Split.union([domain.train for domain in visible]), first=self.stage == 0)
        if self.training.kept_epoch == "best":
            self.epochs = BestEpoch(self.learner, visible, best)

    def _visible(self, stage: int) -> list[Domain]:
        """The domains whose data may be seen at a stage."""
        seen = {"current": slice(stage, stage + 1), "so_far": slice(stage + 1), "all": slice(None)}
        return self.domains[seen[self.recipe.access]]

    def _test(self, *, after: str) -> Pauses:
        """Test on all domains, seen and unseen; at the end also by other policies' statistics, and by those of every
        tested batch, which say nothing of a network that was trained by fixed ones."""
        network, size = self.learner.network, self.training.batch_size
        same = not network.norms.names or self.training.tested_by == "batch"
        for domain in self.tested:
            told = yield from self._told(domain)
            counts, images = _counted(told), domain.test.num_images
            row: dict[str, Any] = {"after": after, "on": domain.name, "metric": self.task.score}
            row |= {"value": score(self.task, counts), "images": images, **details(self.task, counts)}
            if self.task.on_masks:
                row["suite"] = suite_iou(told, group=size)
            at_end = after == self.recipe.order[-1] and self.training.later_norm == "batch"
            if at_end and (same or images > 1):  # one image has no statistics of a batch
                if not same:
                    with by_batches(network, images, size):
                        told = yield from self._told(domain)
                row[BY_BATCH] = score(self.task, _counted(told))
            if after == self.recipe.order[-1] and network.moved:
                row[BY_PASSES] = yield from self._by_passes(domain)
            best = self.epochs and self.epochs.found
            self.rows.append({**row, "epoch": best.epoch} if best else row)

    def _by_passes(self, domain: Domain) -> Generator[None, None, dict[str, float]]:
        scores = {}
        network = self.learner.network
        for policy in filter(network.moved.__contains__, network.beside):
            with network.norms.replaced(network.beside[policy]):
                told = yield from self._told(domain)
            scores[policy] = score(self.task, _counted(told))
        return scores

    def _told(self, domain: Domain) -> Generator[None, None, list[Told]]:
        told = []
        for each in tell(self.learner.network, domain.test):
            told.append(each)
            if self.device.type == "cuda":  # where other lanes would stand still
                yield None
        return told

    def _save(self, written: Callable[[Path], None] | None = None) -> None:
        position = {
            "stage": self.stage,
            "step": self.step,
            "rows": self.rows,
            **self._times(),
            "device": self.device.type,
            "data": self.data,
            "domains": self.recipe.domains,
            "sizes": self.sizes,
            "taken_over": self.taken_over,
            "num_classes": self.task.num_classes,
            **({"past": self.learner.past._asdict()} if self.learner.past else {}),
            **({"best": self.epochs.found} if self.epochs and self.epochs.found else {}),
        }
        self.directory.save(Checkpoint(position, self._state()), written)
        self.directory.write("rows.json", self.rows)
        self._saved_at = time.monotonic()

    def _state(self) -> dict[str, torch.Tensor]:
        """All that going on takes; at the end, what going on with another domain takes, or the network alone."""
        state = self.learner.state()
        if self.stage < len(self.domains):
            return state
        if self._network_alone:
            return {name: value for name, value in state.items() if name.startswith(NETWORK)}
        return {name: value for name, value in state.items() if not name.startswith(OF_A_DOMAIN)}

    def _times(self) -> dict[str, float]:
        """Seconds since the run began, without those between a stop and going on; and of its own turns."""
        elapsed = self.seconds + time.monotonic() - self._resumed_at
        return {"seconds": round(elapsed, 2), "own_seconds": round(self.own_seconds + self._clock.seconds, 2)}


def _counted(told: list[Told]) -> torch.Tensor:
    return torch.stack([each.confusion for each in told]).sum(0)
