"""The domains of a recipe on a device: checked, and shared by all runs of a process that read them."""

from weakref import WeakValueDictionary

import torch

from metadr.benchmarks import get_benchmark, training_of
from metadr.core import Domain, Recipe
from metadr.errors import UserError


class Resident:
    """A domain on a device. Nobody writes to it."""

    def __init__(self, domain: Domain, device: torch.device) -> None:
        self.fingerprint = domain.fingerprint()
        self.domain = domain._replace(train=domain.train.to(device), test=domain.test.to(device))


_RESIDENTS: WeakValueDictionary[tuple[object, ...], Resident] = WeakValueDictionary()  # as long as a run holds them


def load_domains(recipe: Recipe, device: torch.device) -> list[Resident]:
    """The domains of a recipe, as its task wants them and, where they are mixed, of one shape."""
    residents = [_resident(recipe, name, device) for name in recipe.order]
    sizes = {each.domain.name: "x".join(map(str, each.domain.train.x.shape[2:])) for each in residents}
    mixed = recipe.memory_per_domain or recipe.access != "current"
    if mixed and len(set(sizes.values())) > 1:
        raise UserError(
            f"Method '{recipe.method_name}' puts images of several domains into one batch; they must have one shape. "
            f"Got {', '.join(f'{name} {size}' for name, size in sizes.items())}. Resize them."
        )
    return residents


def _resident(recipe: Recipe, name: str, device: torch.device) -> Resident:
    benchmark, limit = get_benchmark(recipe.benchmark), training_of(recipe).limit
    key = (benchmark, benchmark.fingerprint_of((name,)), name, limit, device)
    resident = _RESIDENTS.get(key)
    if resident is None:
        domain = benchmark.load(name)
        if domain.name != name:
            raise UserError(
                f"Benchmark '{benchmark.name}' gave domain '{domain.name}' where '{name}' was asked for. "
                "Its load(name) must return the domain of that name."
            )
        domain = domain._replace(train=domain.train.first(limit), test=domain.test.first(limit))
        resident = _RESIDENTS[key] = Resident(benchmark.task.check(domain), device)
    return resident
