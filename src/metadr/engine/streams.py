"""Random streams: one for each purpose, so that none can be moved by how much another is used."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

EPOCHS = "shuffle"  # the stream by which an epoch is shuffled, between two steps


def stream_seed(seed: int, *names: object) -> int:
    """A seed derived from meaning."""
    text = "/".join(str(name) for name in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


class Streams(Mapping[str, torch.Generator]):
    """A generator on the device for each name, and a hidden one for layers that draw by themselves (dropout)."""

    def __init__(self, seed: int, names: Iterable[str], device: torch.device) -> None:
        def stream(name: str) -> torch.Generator:
            return torch.Generator(device).manual_seed(stream_seed(seed, name))

        self._named = {name: stream(name) for name in names}
        self._of_layers = stream("hidden")

    def __getitem__(self, name: str) -> torch.Generator:
        return self._named[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)

    @property
    def of_steps(self) -> list[torch.Generator]:
        """All that a step may draw from."""
        return [*(rng for name, rng in self._named.items() if name != EPOCHS), self._of_layers]

    @contextmanager
    def lent_to_layers(self) -> Iterator[None]:
        """Layers that draw by themselves draw from torch's global stream: for so long it is the hidden one."""
        if self._of_layers.device.type == "cuda":
            default = torch.cuda.default_generators[self._of_layers.device.index or 0]
            before = default.graphsafe_get_state()
            default.graphsafe_set_state(self._of_layers)
            try:
                yield
            finally:
                default.graphsafe_set_state(before)
            return
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._of_layers.get_state())
            yield
            self._of_layers.set_state(torch.get_rng_state())

    def state(self) -> dict[str, Tensor]:
        named = {f"stream/{name}": rng.get_state() for name, rng in self._named.items()}
        return {**named, "stream_of_layers": self._of_layers.get_state()}

    def go_on(self, tensors: Mapping[str, Tensor], seed_of: Callable[[str], int]) -> None:
        """Go on where those of another run stopped; what it had not begins with a seed that it did not have."""
        for name, rng in (*self._named.items(), ("hidden", self._of_layers)):
            stored = tensors.get("stream_of_layers" if rng is self._of_layers else f"stream/{name}")
            if stored is None:
                rng.manual_seed(seed_of(name))
            else:
                rng.set_state(stored.cpu())

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        for name, rng in self._named.items():
            rng.set_state(tensors[f"stream/{name}"].cpu())
        self._of_layers.set_state(tensors["stream_of_layers"].cpu())
