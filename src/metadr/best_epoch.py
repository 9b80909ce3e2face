"""The best epoch on a domain, by the images held out of it for validation."""

from typing import NamedTuple

from metadr.core import Domain
from metadr.engine.learner import Learner
from metadr.errors import UserError
from metadr.evaluate import confusion, score


class Best(NamedTuple):
    """An epoch, from 1, and its score on the images held out."""

    epoch: int
    value: float


class BestEpoch:
    """Compares the network after every epoch on a domain with the best so far, which the learner keeps."""

    def __init__(self, learner: Learner, seen: list[Domain], found: Best | None = None) -> None:
        without = [domain.name for domain in seen if domain.val is None]
        if without:
            raise UserError(
                f"kept_epoch=best chooses by images held out for validation, and domain '{without[0]}' has none. Use "
                "kept_epoch=last, or hold some out (num_val, where the benchmark has it)."
            )
        self._learner = learner
        self._held_out = [domain.val for domain in seen if domain.val is not None]
        self._steps = learner.training.epoch_steps(sum(domain.train.num_images for domain in seen))
        self.found = found

    def steps_left(self, step: int) -> int:
        """Steps to the end of the epoch that the next step is of."""
        return self._steps - step % self._steps

    def ended(self, step: int) -> bool:
        return step % self._steps == 0

    def look(self, step: int) -> None:
        """Keep the network after this step if none before did better; of equal ones the first."""
        network, learner = self._learner.network, self._learner
        counts = [confusion(network, split) for split in self._held_out]
        value = score(network.task, sum(counts[1:], start=counts[0]))
        if self.found is None or value > self.found.value:
            self.found = Best(step // self._steps, value)
            learner.best = {name: tensor.clone() for name, tensor in network.state().items()}

    def restore(self) -> None:
        """Go back to the best network."""
        self._learner.network.load(self._learner.best)
        self._learner.best = {}
