"""What the tests of lanes and sweeps share: what a run tells of a turn, a stop, and jobs of the toys."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from metadr.core import Part
from metadr.sequence import Progress
from metadr.sweep import Job


@pytest.fixture
def progress() -> Callable[..., Progress]:
    """Makes what a run tells of itself at a step."""

    def tell(step: int, *, stage: int = 0, num_stages: int = 1, num_steps: int = 1000) -> Progress:
        taken, total = stage * num_steps + step, num_stages * num_steps
        return Progress("a", stage, num_stages, step, num_steps, taken, total, {"loss": 1.0}, 1.0, 1.0)

    return tell


@pytest.fixture
def after() -> Callable[[int], Callable[[], bool]]:
    """Makes a stop that says no so many times."""

    def make(num_questions: int) -> Callable[[], bool]:
        count = itertools.count()
        return lambda: next(count) >= num_questions

    return make


@pytest.fixture
def jobs_of() -> Callable[..., list[Job]]:
    """Makes the runs of some methods on a toy."""

    def make(toy: Any, *methods: tuple[Part, ...], seeds: int = 1, steps: int = 3) -> list[Job]:
        recipes = [toy.recipe(*parts, overrides=(("steps", steps),)) for parts in methods]
        return [Job(recipe, seed) for seed in range(seeds) for recipe in recipes]

    return make
