"""Whether a network can be trained on some images, found out before anything is written."""

import torch

from metadr.core import Batch, Domain, Training
from metadr.engine.network import Network
from metadr.errors import UserError


def check_fit(training: Training, network: Network, domains: list[Domain]) -> None:
    """Show the network a batch of every domain's size once: what would fail in the middle is refused here."""
    for domain in {domain.train.x.shape[2:]: domain for domain in domains}.values():
        count = min(training.batch_size, 2)  # what fails with two images fails with more, and two are soon through
        x = domain.train.x[:1].cpu().expand(count, -1, -1, -1)
        y = domain.train.y[:1].cpu().expand(count, *domain.train.y.shape[1:])
        try:
            # A pass like those over a memory: no statistics move, and what dropout draws is not drawn from the run.
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                network.loss(Batch(x, y), role="memory")
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            size = "x".join(map(str, x.shape[2:]))
            raise UserError(
                f"Model '{training.model}' cannot be trained on images of {size} in batches of {training.batch_size} "
                f"({reason}). Choose another model or batch_size."
            ) from error
