"""Beyond the paper: the search for the configuration that keeps most, without a memory and with M = 100.

metadr sweep beyond             every configuration once, on P1, the important ones first
metadr report beyond            all of them by their mean over the domains, how many were tried, and the best

Tested are the last 1,000 of each domain's 10,000 training images, which are held out; seed 0. Steps and network are the
same for all, and so is the batch size but where one says so. Points are ranked by the mean of the four final scores:
by the domains that are gone alone, a network that learns nothing new would do well.

What is chosen goes to `metadr.parts.recommended`, and is tested by recipes/beyond_final.py.
"""

from metadr.parts import Configuration as C
from metadr.parts.recommended import CHOSEN_ON, PER_IMAGE
from metadr.recipes.digits import SYN, p1
from metadr.recipes.table import Row, Table

WITHOUT, WITH = "without memory", "with M = 100"
NOTE = (
    "Tested on 1,000 training images of each domain that were held out, with one seed; the mean is over all domains. "
    "The best of so many is better here than it will be elsewhere: 'metadr sweep beyond-final' trains it again."
)

PER_BATCH = {**PER_IMAGE, "dr.per": "batch"}
BY_PAIR = {**PER_IMAGE, "dr.pick": "pair"}
META = {"meta-dr.per": "image", "meta-dr.pick": "operation"}
META_OF_THE_PAPER = {"meta-dr.per": "image", "meta-dr.pick": "pair"}  # as calibration reads it
PSI3 = "brightness+color+contrast+solarize+grayscale+invert+rotate+gaussian_noise+blur"
EVERY = f"{PSI3}+rgb_rand"
SOME_CLEAN = f"{PSI3}+identity"
UPRIGHT = PSI3.replace("rotate", "rotate:-20:20:30")  # psi3 turns digits by up to 60 degrees
FASTER, FASTEST = {"later_lr": 1e-4}, {"later_lr": 3e-4}
ALL_DOMAINS = {"tested_by": "domains"}
FIXED = {"later_norm": "fixed"}
FALLING = {"later_lr": 1e-4, "decay": "cosine"}
FALLING_FAR = {"later_lr": 3e-4, "decay": "cosine"}
OF_MEMORY = {**PER_IMAGE, "lwf.new": 0.0}
HALF = {"average.past": 0.5}

# Their order is that of the runs.
STAGES: dict[str, tuple[C, ...]] = {
    "the paper's methods by its text, and with a transformation for every image, by operation": (
        C("naive"),
        C("dr", BY_PAIR),
        C("dr", PER_BATCH),
        C("dr", PER_IMAGE),
        C("er"),
        C("dr+er", BY_PAIR),
        C("dr+er", PER_IMAGE),
        C("meta-dr", META_OF_THE_PAPER),
        C("meta-dr", META),
        C("dr+meta-dr", {**PER_IMAGE, **META}),
        C("er+meta-dr", META_OF_THE_PAPER),
        C("er+meta-dr", META),
    ),
    "tested by batch norm's statistics of all domains, which cost no memory of images": (
        C("naive", ALL_DOMAINS),
        C("dr", {**BY_PAIR, **ALL_DOMAINS}),
        C("dr", {**PER_IMAGE, **ALL_DOMAINS}),
        C("dr", {**PER_IMAGE, **ALL_DOMAINS}, FASTER),
        *(C("dr+l2", {**PER_IMAGE, **ALL_DOMAINS, "l2.strength": strength}) for strength in (0.01, 0.1)),
        C("dr+l2", {**PER_IMAGE, **ALL_DOMAINS, "l2.strength": 0.1}, FASTER),
        C("meta-dr", {**META_OF_THE_PAPER, **ALL_DOMAINS}),
        C("dr+er", {**PER_IMAGE, **ALL_DOMAINS}, FASTER),
        C("dr+er", {**PER_IMAGE, **ALL_DOMAINS}, FASTEST),
    ),
    "batch norm's statistics stay those of the first domain, and training knows": (
        C("naive", FIXED),
        C("dr", {**BY_PAIR, **FIXED}),
        C("dr", {**PER_IMAGE, **FIXED}),
        C("dr", {**PER_IMAGE, **FIXED}, FASTER),
        C("dr+l2", {**PER_IMAGE, **FIXED, "l2.strength": 0.001}, FASTER),
        C("dr+l2", {**PER_IMAGE, **FIXED, "l2.strength": 0.01}, FASTER),
        C("dr+er", {**PER_IMAGE, **FIXED}),
        C("dr+er", {**PER_IMAGE, **FIXED}, FASTER),
        C("dr+er", {**PER_IMAGE, **FIXED}, FASTEST),
    ),
    "held back by what the network said before": (
        C("lwf"),
        *(C("dr+lwf", {**PER_IMAGE, "lwf.strength": strength}) for strength in (0.5, 1.0, 2.0)),
        *(C("dr+lwf", {**PER_IMAGE, "lwf.strength": strength}, FASTER) for strength in (0.5, 1.0, 2.0, 4.0)),
        C("dr+lwf", {**PER_IMAGE, **FIXED}),
        C("dr+lwf", {**PER_IMAGE, **FIXED}, FASTER),
        C("dr+l2+lwf", {**PER_IMAGE, "l2.strength": 0.01}, FASTER),
        C("dr+er+lwf", PER_IMAGE, FASTER),
    ),
    "back to a mean of the weights before and after a domain, from further away": (
        *(C("average+dr", {**PER_IMAGE, "average.past": past}, FASTER) for past in (0.3, 0.5)),
        *(C("average+dr", {**PER_IMAGE, "average.past": past}, FASTEST) for past in (0.3, 0.5)),
        *(C("average+dr", {**PER_IMAGE, "average.past": past}, {"later_lr": 1e-3}) for past in (0.5, 0.7)),
        C("average+dr", {**PER_IMAGE, "average.past": 0.5}, FALLING_FAR),
        C("average", {"average.past": 0.5}, FASTEST),
        *(C("average+dr+lwf", {**PER_IMAGE, "lwf.strength": 0.25}, faster) for faster in (FASTER, FASTEST)),
        # Between those of the first of these that were run.
        C("average+dr", {**PER_IMAGE, "average.past": 0.6}, FASTEST),
        C("average+dr+lwf", {**PER_IMAGE, "lwf.strength": 0.5}, FASTEST),
        C("average+dr+lwf", {**PER_IMAGE, "lwf.strength": 0.25}, FALLING_FAR),
        C("average+dr+er", PER_IMAGE, FASTER),
        *(C("average+dr+er", {**PER_IMAGE, "average.past": past}, FASTEST) for past in (0.3, 0.5)),
        C("average+dr+er", PER_IMAGE, FALLING_FAR),
        C("average+dr+er+lwf", {**PER_IMAGE, "lwf.strength": 0.25}, FASTEST),
    ),
    "held to what was said of a memory's images, and free to learn new ones": (
        *(C("dr+er+lwf", {**OF_MEMORY, "lwf.strength": strength}, FASTEST) for strength in (1.0, 4.0)),
        *(C("dr+er+lwf", OF_MEMORY, rate) for rate in (FASTER, FALLING_FAR)),
        C("dr+er+lwf", {**OF_MEMORY, "lwf.new": 0.25}, FASTEST),
        C("dr+er+lwf", {**OF_MEMORY, "dr.compositions": 1}, FASTEST),
        C("dr+er+lwf", {**OF_MEMORY, "er.replay_batch": 128}, FASTEST),
        *(C("average+dr+er+lwf", OF_MEMORY, rate) for rate in (FASTEST, FALLING_FAR)),
        C("average+dr+er+lwf", {**OF_MEMORY, "average.past": 0.5}, {"later_lr": 1e-3}),
    ),
    "around the best of these, which were at an edge": (
        *(C("dr+lwf", {**PER_IMAGE, "lwf.strength": strength}, FASTER) for strength in (0.1, 0.25)),
        *(C("dr+lwf", {**PER_IMAGE, "lwf.strength": strength}, FASTEST) for strength in (0.25, 0.5)),
        *(C("dr+lwf", {**PER_IMAGE, **FIXED, "lwf.strength": strength}, FASTER) for strength in (0.25, 0.5)),
        C("dr+lwf", {**BY_PAIR, "lwf.strength": 0.5}, FASTER),
        C("dr+lwf", {**PER_IMAGE, "dr.compositions": 1, "lwf.strength": 0.5}, FASTER),
        C("dr+lwf", {**PER_IMAGE, "dr.transforms": EVERY, "lwf.strength": 0.5}, FASTER),
        *(C("dr+lwf", {**PER_IMAGE, "lwf.strength": 0.5, "lwf.temperature": warm}, FASTER) for warm in (1.0, 4.0)),
        C("dr+l2+lwf", {**PER_IMAGE, "l2.strength": 0.001, "lwf.strength": 0.5}, FASTER),
        C("dr+ewc+lwf", {**PER_IMAGE, "ewc.strength": 100.0, "lwf.strength": 0.25}, FASTER),
        *(C("dr+er+lwf", {**PER_IMAGE, "lwf.strength": strength}, FASTER) for strength in (0.25, 0.5)),
        C("dr+er+lwf", {**PER_IMAGE, "lwf.strength": 0.5}, FASTEST),
        C("dr+er+lwf", {**PER_IMAGE, "dr.compositions": 1, "lwf.strength": 0.5}, FASTER),
        C("dr+er+lwf", {**PER_IMAGE, **FIXED, "lwf.strength": 0.5}, FASTER),
    ),
    "the rate falls along every domain, from further up": (
        C("dr", PER_IMAGE, FALLING),
        *(C("dr+lwf", {**PER_IMAGE, "lwf.strength": 0.5}, falling) for falling in (FALLING, FALLING_FAR)),
        C("dr+lwf", {**PER_IMAGE, "lwf.strength": 0.25}, FALLING_FAR),
        *(C("dr+er", PER_IMAGE, falling) for falling in (FALLING, FALLING_FAR)),
        C("dr+er", {**PER_IMAGE, "dr.compositions": 1}, FALLING_FAR),
        *(C("dr+er+lwf", PER_IMAGE, falling) for falling in (FALLING, FALLING_FAR)),
        C("dr+er+lwf", {**PER_IMAGE, "lwf.strength": 0.5}, FALLING_FAR),
        C("dr+er+lwf", {**PER_IMAGE, "dr.compositions": 1, "lwf.strength": 0.5}, FALLING_FAR),
    ),
    "around the best again: held more, replayed more, or several of what helps at once": (
        C("average+dr+lwf", {**PER_IMAGE, "lwf.strength": 0.5}, FASTER),
        C("average+dr+lwf", {**PER_IMAGE, "lwf.strength": 0.25, "lwf.temperature": 1.0}, FASTER),
        C("average+dr+lwf", {**PER_IMAGE, **FIXED, "lwf.strength": 0.25}, FASTER),
        *(C("average+dr+lwf", {**PER_IMAGE, **HALF, "lwf.strength": strength}, FASTER) for strength in (0.1, 0.25)),
        C("average+dr+lwf", {**PER_IMAGE, "lwf.strength": 0.5}, FALLING_FAR),
        C("average+dr+lwf", {**PER_IMAGE, **HALF, "lwf.strength": 0.25}, FALLING_FAR),
        C("average+dr", {**PER_IMAGE, **FIXED, **HALF}, FASTER),
        C("dr+er+lwf", {**OF_MEMORY, "lwf.strength": 16.0}, FASTEST),
        C("dr+er+lwf", {**OF_MEMORY, "lwf.strength": 4.0, "lwf.temperature": 4.0}, FASTEST),
        C("dr+er+lwf", {**OF_MEMORY, "lwf.strength": 4.0, "er.replay_batch": 128}, FASTEST),
        C("dr+er+lwf", {**OF_MEMORY, "lwf.strength": 4.0}, FALLING_FAR),
        C("dr+er+lwf", {**OF_MEMORY, "lwf.strength": 4.0, "er.replay_batch": 128}, FALLING_FAR),
        *(C("average+dr+er+lwf", {**OF_MEMORY, "lwf.strength": 4.0}, rate) for rate in (FASTEST, FALLING_FAR)),
        C("average+dr+er+lwf", {**OF_MEMORY, **HALF}, FALLING_FAR),
        C("average+dr+er+lwf", {**OF_MEMORY, "er.replay_batch": 128}, FALLING_FAR),
        C("average+dr+er+lwf", {**OF_MEMORY, "lwf.strength": 4.0, "er.replay_batch": 128}, FALLING_FAR),
    ),
    "how far later domains may move the weights; a memory may allow more": (
        *(C("dr", PER_IMAGE, {"later_lr": rate}) for rate in (1e-4, 3e-4, 1e-5)),
        *(C("dr+er", PER_IMAGE, {"later_lr": rate}) for rate in (1e-4, 3e-4, 1e-3)),
        C("er", {}, FASTEST),
    ),
    "held back by weights instead of by the rate": (
        *(C("dr+ewc", {**PER_IMAGE, "ewc.strength": strength}) for strength in (1.0, 10.0, 100.0)),
        *(C("dr+ewc", {**PER_IMAGE, "ewc.strength": strength}, FASTER) for strength in (10.0, 100.0)),
        *(C("dr+l2", {**PER_IMAGE, "l2.strength": strength}) for strength in (0.001, 0.01, 0.1)),
        *(C("dr+l2", {**PER_IMAGE, "l2.strength": strength}, FASTER) for strength in (0.01, 0.1)),
    ),
    "how a memory is used": (
        C("dr+er", {**PER_IMAGE, "er.replay_batch": 128}, FASTER),
        C("dr+er", {**PER_IMAGE, "er.replay_batch": 192}, FASTER),
        C("dr+er", {**PER_IMAGE, "er.replay_batch": 128}, FASTEST),
        C("dr+er", {**PER_IMAGE, "dr.replayed": False}, FASTER),
        C("dr+er+ewc", {**PER_IMAGE, "ewc.strength": 100.0}, FASTER),
        C("dr+er+l2", {**PER_IMAGE, "l2.strength": 0.01}, FASTER),
        C("dr+er", PER_IMAGE, {"lr": 1e-3, "later_lr": 3e-4}),
        C("dr+er", {**PER_IMAGE, "dr.transforms": UPRIGHT}, FASTER),
        C("dr+er", {**PER_IMAGE, "dr.transforms": EVERY}, FASTER),
        C("dr+er", {**PER_IMAGE, "dr.compositions": 1}, FASTER),
        C("dr+er", {**PER_IMAGE, "dr.compositions": 3}, FASTER),
    ),
    "which transformations": (
        *(C("dr", {**PER_IMAGE, "dr.transforms": psi}) for psi in (UPRIGHT, EVERY, SOME_CLEAN, "psi2")),
        *(C("dr", {**PER_IMAGE, "dr.compositions": count}) for count in (1, 3)),
        C("dr", {**PER_IMAGE, "dr.transforms": EVERY, "dr.compositions": 3}),
    ),
    "meta-learning on top": (
        C("dr+meta-dr", {**PER_IMAGE, **META}, FASTER),
        C("dr+er+meta-dr", {**PER_IMAGE, **META}, FASTER),
        C("dr+meta-dr", {**PER_IMAGE, **META, "meta-dr.adapt": 0.0}),  # DR itself is good on T(x)
        C("meta-dr", {**META, "meta-dr.inner_lr": 0.01}),
    ),
    "several at once, and other optimisers": (
        C("dr+ewc", {**PER_IMAGE, "dr.transforms": UPRIGHT, "ewc.strength": 100.0}, FASTER),
        C("dr", {**PER_IMAGE, "dr.transforms": UPRIGHT}, FASTER),
        C("dr", {**PER_IMAGE, "dr.transforms": EVERY, "dr.compositions": 3}, FASTER),
        C("dr", PER_IMAGE, {"scaling": "imagenet"}),
        C("dr", PER_IMAGE, {"batch_size": 128}),  # as many images as Meta-DR sees in a step
        C("dr", PER_IMAGE, {"optimizer": "sgd", "momentum": 0.9, "lr": 0.01, "later_lr": 0.001}),
    ),
}
CONFIGURATIONS = tuple(each for stage in STAGES.values() for each in stage)


def table(tiny: bool = False) -> Table:
    about = "digits P1, validation images: what keeps most, by configuration"
    rows = tuple(_row(each, tiny=tiny) for each in CONFIGURATIONS)
    return Table("beyond", about, rows, (SYN, NOTE), judged="mean")


def _row(each: C, *, tiny: bool) -> Row:
    held_out = {"num_val": 16, "num_train": 80} if tiny else {"num_val": 1000}
    recipe = p1(each.method, tiny=tiny, test_on="val", **held_out, **each.fields_on(CHOSEN_ON))
    point = (("method", each.method), ("settings", each.settings))
    return Row(
        " ".join(filter(None, dict(point).values())), (recipe,), point=point, part=_part(recipe.memory_per_domain)
    )


def _part(memory: int) -> str:
    return WITH if memory else WITHOUT
