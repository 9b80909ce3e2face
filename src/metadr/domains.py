"""The domains of a recipe on a device: checked, and shared by all runs of a process that read them."""

import functools
import math
from collections.abc import Callable
from functools import partial
from weakref import WeakValueDictionary

import torch

from metadr.benchmarks import benchmark_of, get_benchmark, training_of
from metadr.core import Domain, Recipe
from metadr.errors import NoRoom, UserError


class Resident:
    """A domain on a device. Nobody writes to it."""

    def __init__(self, domain: Domain, device: torch.device) -> None:
        self.fingerprint = domain.fingerprint()
        try:
            val = domain.val and domain.val.to(device)
            self.domain = domain._replace(train=domain.train.to(device), test=domain.test.to(device), val=val)
        except torch.OutOfMemoryError:
            size = _num_bytes(domain) / 1e9
            raise NoRoom(
                f"The images of domain '{domain.name}', {size:.1f} GB, do not fit on {device} beside what is there. "
                "Leave them on the host with --set stream=true, or make them smaller."
            ) from None


SHARE = 0.5  # of the free memory that images may take, with stream=auto: the rest is for the network and its steps
_RESIDENTS: WeakValueDictionary[tuple[object, ...], Resident] = WeakValueDictionary()  # as long as a run holds them


def load_domains(recipe: Recipe, device: torch.device) -> list[Resident]:
    """The domains of a recipe on a device, in order, then those it is only tested on; other runs may hold them too.

    Those that are streamed stay on the host; with `auto` all of them do, or none.
    """
    read = functools.cache(partial(_read, recipe))
    place = _place(recipe, device, read)
    residents = [_resident(recipe, name, place, read) for name in recipe.domains]
    _check_mixed(recipe, [resident.domain for resident in residents])
    return residents


def read_domains(recipe: Recipe) -> list[Domain]:
    """The domains of a recipe as they are read, as its task wants them and, where they are mixed, of one shape."""
    domains = [_read(recipe, name) for name in recipe.domains]
    _check_mixed(recipe, domains)
    return domains


def _place(recipe: Recipe, device: torch.device, read: Callable[[str], Domain]) -> torch.device:
    """Where the images of a recipe go: what other runs hold on the device already takes no more room."""
    stream, host = training_of(recipe).stream, torch.device("cpu")
    if stream != "auto":
        return host if stream else device
    new = [read(name) for name in recipe.domains if _key(recipe, name, device) not in _RESIDENTS]
    # An oracle puts the images that it may see together anew at every domain, while it still has those before.
    copies = 1 if recipe.access == "current" else 3
    return device if copies * sum(map(_num_bytes, new)) <= SHARE * free_bytes(device) else host


def free_bytes(device: torch.device) -> float:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else math.inf


def _num_bytes(domain: Domain) -> int:
    return sum(tensor.nbytes for split in domain[1:] for tensor in split or ())


def _key(recipe: Recipe, name: str, device: torch.device) -> tuple[object, ...]:
    content = benchmark_of(recipe).fingerprint_of((name,))
    return get_benchmark(recipe.benchmark), recipe.data, content, name, training_of(recipe).limit, device


def _resident(recipe: Recipe, name: str, device: torch.device, read: Callable[[str], Domain]) -> Resident:
    key = _key(recipe, name, device)
    resident = _RESIDENTS.get(key)
    if resident is None:
        resident = _RESIDENTS[key] = Resident(read(name), device)
    return resident


def _read(recipe: Recipe, name: str) -> Domain:
    benchmark, limit = benchmark_of(recipe), training_of(recipe).limit
    domain = benchmark.load(name)
    if domain.name != name:
        raise UserError(
            f"Benchmark '{benchmark.name}' gave domain '{domain.name}' where '{name}' was asked for. "
            "Its load(name) must return the domain of that name."
        )
    val = domain.val and domain.val.first(limit)
    return benchmark.task.check(
        domain._replace(train=domain.train.first(limit), test=domain.test.first(limit), val=val),
        trained=name not in benchmark.only_tested,
    )


def _check_mixed(recipe: Recipe, domains: list[Domain]) -> None:
    sizes = {domain.name: "x".join(map(str, domain.train.x.shape[2:])) for domain in domains}
    mixed = recipe.memory_per_domain or recipe.access != "current"
    if mixed and len(set(sizes.values())) > 1:
        raise UserError(
            f"Method '{recipe.method_name}' puts images of several domains into one batch; they must have one shape. "
            f"Got {', '.join(f'{name} {size}' for name, size in sizes.items())}. Resize them."
        )
