"""Continual domain adaptation for vision: domain randomisation, Meta-DR and their baselines.

import metadr

recipe = metadr.recipe("embedded", "meta-dr")
result = metadr.run(recipe, seed=0)
print(result.summary.acc, result.scores)

What is offered (api.py) and the package's modules are imported when they are asked for: a process that renders streets
needs neither torch nor them.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metadr.api import *  # noqa: F403

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return import_module("metadr.api").__all__
    if not name.startswith("_"):
        if name != "run" and find_spec(f"metadr.{name}"):
            return import_module(f"metadr.{name}")
        offered = import_module("metadr.api")
        if name in offered.__all__:
            return getattr(offered, name)
    raise AttributeError(f"module 'metadr' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})


class _Package(ModuleType):
    """Keeps `metadr.run` the function: importing its module, of the same name, would put that in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name == "run" and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
