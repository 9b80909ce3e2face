"""What `import metadr` offers, imported when it is first asked for."""

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
