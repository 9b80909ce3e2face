"""The paper's digits: MNIST, MNIST-M, SYN and SVHN, in its two orders and in all others."""

import dataclasses
import itertools
from collections.abc import Mapping

from metadr import settings
from metadr.benchmarks.settled import part_defaults
from metadr.core import Benchmark, Domain, Found, Task, Training
from metadr.data.digits import PAPER, content_of, get_source, load
from metadr.data.source import Decoding, Source
from metadr.errors import Problems
from metadr.progress import Watch
from metadr.synthetic.syn_digits import SETS

DOMAINS = ("mnist", "mnist_m", "syn", "svhn")
PROTOCOLS = {
    "p1": DOMAINS,
    "p2": DOMAINS[::-1],
    # All 24 orders, by what they are: p1 and p2 are two of them under another name.
    **{"-".join(order): order for order in itertools.permutations(DOMAINS)},
}


def configure(decoding: Decoding) -> Benchmark:
    """The benchmark as it is read by these settings."""

    def of(domain: str) -> tuple[Source, Decoding]:
        """The data set that a domain is read from, and how."""
        name = SETS[decoding.syn] if domain == "syn" else domain
        # `first` concerns MNIST alone: the authors' other loaders begin at the first image.
        return get_source(name), decoding if domain == "mnist" else dataclasses.replace(decoding, first=0)

    def load_domain(domain: str) -> Domain:
        # Checked: what a run trains on is what its key says.
        return load(*of(domain), checked=True).domain._replace(name=domain)

    def fingerprint(order: tuple[str, ...]) -> str:
        """Of the pixels and labels of these domains alone: the others need not be there."""
        parts = [f"{domain} {content_of(*of(domain))[:16]}" for domain in sorted(order)]
        held = [f"{decoding.num_val} held out"] if decoding.num_val else []
        return ", ".join([*parts, *held, *(["tested on these"] if decoding.test_on == "val" else [])])

    def prepare(order: tuple[str, ...], watch: Watch | None) -> Mapping[str, Found]:
        problems = Problems()
        for domain in order:
            with problems.kept():
                load(*of(domain), watch=watch)
        problems.tell()
        return {}  # the published files hold what they hold

    return Benchmark(
        name="digits",
        about="the paper's four digit data sets, 10,000 training images each: MNIST, MNIST-M, SYN, SVHN",
        task=Task(num_classes=10),
        domains=DOMAINS,
        protocols=PROTOCOLS,
        load=load_domain,
        fingerprint=fingerprint,
        training=Training(
            model="resnet18", steps=3000, batch_size=64, optimizer="adam", lr=3e-4, later_lr=3e-5, scaling="unit"
        ),
        part_defaults=part_defaults("psi3", inner_lr=0.1),
        tiny={"steps": 3, "batch_size": 8, "limit": 64, "model": "tiny_resnet"},
        settings=decoding,
        reading=settings.names(Decoding),
        configure=configure,
        prepare=prepare,
    )


DIGITS = configure(PAPER)
