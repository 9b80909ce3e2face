"""PACS: sketches, cartoons, paintings and photographs of seven classes, with a network that knows ImageNet."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from metadr import settings
from metadr.benchmarks.settled import part_defaults
from metadr.core import Benchmark, Domain, Found, Task, Training
from metadr.data.pacs import PAPER, Reading, content_of, found_in, is_listed, load
from metadr.data.pacs_scan import CLASSES, DOMAINS
from metadr.progress import Watch

SPLIT_HERE = "split here"  # in a run's fingerprint, where a domain has no official lists


def configure(how: Reading) -> Benchmark:
    """The benchmark as it is read by these settings."""

    def load_domain(domain: str) -> Domain:
        # Checked: what a run trains on is what its key says.
        return load(domain, how, checked=True)

    def fingerprint(order: tuple[str, ...]) -> str:
        """Of the pixels and labels of these domains alone: the others need not be there."""
        parts = []
        for domain in sorted(order):
            split = "" if is_listed(domain) else f" {SPLIT_HERE}"
            parts.append(f"{domain} {content_of(domain, how)[:16]}{split}")
        held = [f"{how.num_val} held out"] if how.num_val else []
        return ", ".join([*parts, *held, *(["tested on these"] if how.test_on == "val" else [])])

    def prepare(order: tuple[str, ...], watch: Watch | None) -> Mapping[str, Found]:
        found = {domain: found_in(domain, how, watch=watch) for domain in order}
        with ThreadPoolExecutor() as pool:  # 1.5 GB are compared with their hashes: a domain for each core
            list(pool.map(load_domain, order))
        return found

    return Benchmark(
        name="pacs",
        about="seven classes in four styles, 224x224: sketches, cartoons, paintings, photographs",
        task=Task(num_classes=len(CLASSES)),
        domains=DOMAINS,
        protocols={"p1": DOMAINS},
        load=load_domain,
        fingerprint=fingerprint,
        training=Training(
            model="resnet18",
            weights="imagenet",
            steps=3000,
            batch_size=64,
            optimizer="sgd",
            lr=0.01,
            later_lr=0.001,
            scaling="imagenet",
        ),
        part_defaults=part_defaults("psi4", inner_lr=0.1),
        tiny={"steps": 3, "batch_size": 8, "limit": 16, "model": "tiny_resnet", "weights": None},
        classes=CLASSES,
        settings=how,
        reading=settings.names(Reading),
        configure=configure,
        prepare=prepare,
    )


PACS = configure(PAPER)
