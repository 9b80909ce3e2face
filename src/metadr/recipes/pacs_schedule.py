"""The schedule that all rows of the short study of PACS share: a grid on validation images of Sketches.

metadr sweep pacs-schedule --weights FILE      Naive on Sketches alone, 9 schedules once each
metadr report pacs-schedule                    all of them by their score, and the best

Tested are the last 300 training images of Sketches, which are held out: no test image and no later domain has a say.
What is chosen goes to `SETTING` of recipes/pacs_resnet50.py.
"""

from metadr.benchmarks import make_recipe
from metadr.recipes import pacs_resnet50
from metadr.recipes.table import Row, Table

FIRST = "sketch"
NUM_VAL = 300
STEPS = (300, 600, 1200)
RATES = (0.003, 0.01, 0.03)
TINY_STEP = 300  # steps that are one in a tiny table, so that its schedules are still several
NOTE = (
    f"Naive on Sketches alone with the network, the batches and the precision of pacs-resnet50, tested on {NUM_VAL} of "
    "its training images that were held out, with one seed. `lr` is the rate on this first domain; that on later ones "
    "stays 0.001, as the paper has it. Of equal scores the one of fewer steps comes first."
)


def table(tiny: bool = False) -> Table:
    about = "PACS with a ResNet-50, validation images of Sketches: steps and the first rate"
    rows = tuple(_row(steps, rate, tiny=tiny) for steps in STEPS for rate in RATES)
    return Table("pacs-schedule", about, rows, (NOTE,), judged="mean")


def _row(steps: int, rate: float, *, tiny: bool) -> Row:
    usual = {} if tiny else pacs_resnet50.SETTING
    fields = {**usual, "steps": steps // TINY_STEP if tiny else steps, "lr": rate}
    num_val = 8 if tiny else NUM_VAL
    recipe = make_recipe("pacs", tiny=tiny, order=(FIRST,), num_val=num_val, test_on="val", **fields)
    point = (("steps", str(steps)), ("lr", f"{rate:g}"))
    return Row(" ".join(f"{name}={value}" for name, value in point), (recipe,), point=point, part="Sketches")
