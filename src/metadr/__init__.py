"""Continual domain adaptation for vision: domain randomisation, Meta-DR and their baselines.

import metadr

recipe = metadr.recipe("embedded", "meta-dr")
result = metadr.run(recipe, seed=0)
print(result.summary.acc, result.scores)
"""

__version__ = "0.1.0"

from metadr.benchmarks import make_recipe as recipe
from metadr.core import Batch, Benchmark, Context, Domain, Part, Recipe, Split, Task, Training
from metadr.errors import UserError
from metadr.parts import EWC, GEM, L2, LwF, MetaDR, Randomize, Replay
from metadr.run import Result, run

__all__ = [
    "EWC",
    "GEM",
    "L2",
    "Batch",
    "Benchmark",
    "Context",
    "Domain",
    "LwF",
    "MetaDR",
    "Part",
    "Randomize",
    "Recipe",
    "Replay",
    "Result",
    "Split",
    "Task",
    "Training",
    "UserError",
    "recipe",
    "run",
]
