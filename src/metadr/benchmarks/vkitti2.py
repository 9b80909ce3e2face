"""Virtual KITTI 2: street scenes under changing conditions, pixel by pixel, in the paper's three protocols."""

from collections.abc import Callable, Mapping

from metadr.benchmarks.settled import part_defaults
from metadr.core import Benchmark, Domain, Found, Task, Training
from metadr.data import vkitti2 as frames
from metadr.data.vkitti2 import IGNORED, Reading
from metadr.data.vkitti2_files import DOMAINS, NAME, RENDERED
from metadr.progress import Watch
from metadr.vkitti2_classes import CLASSES

CONDITIONS = {"p1": ("clone", "fog", "overcast"), "p2": ("clone", "rain", "fog"), "p3": ("clone", "sunset", "morning")}
# Appendix A lists eleven; Section 5.1 speaks of ten.
SCENES = (
    ("02", "01", "06"),
    ("06", "01", "18"),
    ("20", "01", "18"),
    ("02", "18", "20"),
    ("06", "01", "02"),
    ("20", "18", "01"),
    ("02", "06", "01"),
    ("18", "20", "02"),
    ("20", "06", "01"),
    ("18", "06", "02"),
    ("06", "20", "18"),
)
PROTOCOLS = {
    f"{protocol}/{number}": tuple(f"scene{scene}-{look}" for scene, look in zip(scenes, conditions, strict=True))
    for protocol, conditions in CONDITIONS.items()
    for number, scenes in enumerate(SCENES, start=1)
}
CLASS_NAMES = tuple(name for name, _ in CLASSES if name != "Undefined")
TRAINING = Training(
    model="unet_resnet34",
    weights="imagenet",
    epochs=20,
    later_epochs=10,
    sampling="shuffled",
    stream="auto",
    mirror=True,
    batch_size=8,
    lr=3e-4,
    later_lr=3e-5,
    scaling="imagenet",
)
TINY = {
    "model": "tiny_unet",
    "weights": None,
    "steps": 2,
    "epochs": None,
    "later_epochs": None,
    "batch_size": 2,
    "limit": 4,
}


def configured(name: str, about: str) -> Callable[[Reading], Benchmark]:
    """The benchmark of a name, for each reading of its frames."""

    def configure(reading: Reading) -> Benchmark:
        def load(domain: str) -> Domain:
            return frames.load(name, reading, domain)

        def fingerprint(order: tuple[str, ...]) -> str:
            """Of the pixels and masks of these domains alone: the others need not be there."""
            return ", ".join(f"{domain} {frames.content_of(name, reading, domain)}" for domain in sorted(order))

        def prepare(order: tuple[str, ...], watch: Watch | None) -> Mapping[str, Found]:
            for domain in order:
                frames.entry_of(name, reading, domain, watch=watch)
            return {}  # what is not whole is refused

        return Benchmark(
            name=name,
            about=about,
            task=Task(num_classes=len(CLASS_NAMES), score="miou", ignore_index=IGNORED),
            domains=tuple(DOMAINS),
            protocols=PROTOCOLS,
            load=load,
            fingerprint=fingerprint,
            training=TRAINING,
            part_defaults=part_defaults("psi4", inner_lr=0.01, recall=10.0, adapt=10.0),
            tiny=TINY,
            classes=CLASS_NAMES,
            settings=reading,
            reading=("cameras", "size"),
            configure=configure,
            prepare=prepare,
            num_train=lambda domain: frames.num_train(name, reading, domain),
            size_of=lambda domain: frames.size_of(name, reading, domain),
        )

    return configure


VKITTI2 = configured(NAME, "Virtual KITTI 2, segmentation: five street scenes under six conditions, three protocols")(
    Reading()
)
VKITTI2_RENDERED = configured(
    RENDERED, "the same on street scenes rendered here, a stand-in: not Virtual KITTI 2's images"
)(Reading())
