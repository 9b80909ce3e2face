"""Whether a network can be trained on some images, found out before anything is written."""

import torch
from torch import Tensor

from metadr.core import Domain, Training
from metadr.engine.network import Network
from metadr.errors import UserError


def check_fit(training: Training, network: Network, domains: list[Domain]) -> None:
    """Show the network a batch of every domain's size once: what would fail in the middle is refused here."""
    for domain in {domain.train.x.shape[2:]: domain for domain in domains}.values():
        count = min(training.batch_size, 2)  # what fails with two images fails with more, and two are soon through
        x = domain.test.x[:1].cpu().expand(count, -1, -1, -1)
        y = domain.test.y[:1].cpu().expand(count, *domain.test.y.shape[1:])
        try:
            # No statistics move, and what dropout draws is not drawn from the run.
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                logits = network.logits(x, role="beside")
                if _speaks_of(logits, y):
                    network.task.loss(logits, y)
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            size = "x".join(map(str, x.shape[2:]))
            raise UserError(
                f"Model '{training.model}' cannot be trained on images of {size} in batches of {training.batch_size} "
                f"({reason}). Choose another model or batch_size."
            ) from error
        if not _speaks_of(logits, y):
            says, wanted = ("image", "pixel") if y.ndim == 3 else ("pixel", "image")
            kind = "a U-Net, such as unet_resnet34" if wanted == "pixel" else "a classifier, such as resnet18"
            raise UserError(
                f"Model '{training.model}' gives every {says} a label, and in these data every {wanted} has one. "
                f"Choose {kind}; list all with 'metadr list models'."
            )


def _speaks_of(logits: Tensor, y: Tensor) -> bool:
    """Whether a network speaks of what has labels: of images, or of their pixels."""
    return logits.ndim == y.ndim + 1
