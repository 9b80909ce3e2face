"""Anyone's own images: a folder of domains, each of class folders or a list."""

from collections.abc import Mapping

from metadr.core import Benchmark, Domain, Found, Task, Training
from metadr.data.cache import short_hash
from metadr.data.folder import Folder, content_of, found_in, load, look
from metadr.progress import Watch

ABOUT = "your own images: --data ROOT with ROOT/DOMAIN/CLASS/images, or ROOT/DOMAIN.csv of paths and labels"
TRAINING = Training(model="resnet18", steps=3000, batch_size=64, optimizer="adam", lr=3e-4, later_lr=3e-5)
TINY = {"steps": 3, "batch_size": 8, "limit": 16, "model": "tiny_resnet"}


def configure(folder: Folder) -> Benchmark:
    """The benchmark of a folder: its domains and classes are what lies there."""
    scanned = look(folder)
    classes = short_hash(scanned.classes, 16)

    def load_domain(name: str) -> Domain:
        return load(folder, scanned, name)

    def fingerprint(order: tuple[str, ...]) -> str:
        parts = [f"{name} {content_of(folder, scanned, name)}" for name in sorted(order)]
        held = [f"{folder.num_val} held out"] if folder.num_val else []
        return ", ".join([*parts, f"classes {classes}", *held])

    def prepare(order: tuple[str, ...], watch: Watch | None) -> Mapping[str, Found]:
        return {name: found_in(folder, scanned, name, watch=watch) for name in order}

    domains = tuple(scanned.domains)
    return Benchmark(
        name="folder",
        about=ABOUT,
        task=Task(num_classes=len(scanned.classes)),
        domains=domains,
        protocols={"alphabetical": domains},
        load=load_domain,
        fingerprint=fingerprint,
        training=TRAINING,
        tiny=TINY,
        classes=scanned.classes,
        only_tested=tuple(name for name, domain in scanned.domains.items() if not domain.train),
        settings=folder,
        configure=configure,
        prepare=prepare,
    )


def _no_folder(name: str) -> Domain:
    return configure(Folder()).load(name)


# What it is before somebody names a folder: no domains.
FOLDER = Benchmark(
    name="folder",
    about=ABOUT,
    task=Task(),
    domains=(),
    protocols={},
    load=_no_folder,
    fingerprint="no folder",
    training=TRAINING,
    tiny=TINY,
    settings=Folder(),
    configure=configure,
)
