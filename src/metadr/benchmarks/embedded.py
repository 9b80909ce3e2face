"""The embedded benchmark: four digit domains that need no download, and a small network."""

import functools

from metadr.core import Benchmark, Domain, Split, Task, Training
from metadr.synthetic import embedded_digits


@functools.cache
def load(name: str) -> Domain:
    made = embedded_digits.make(name)
    return Domain(name, Split(made.train_x, made.train_y), Split(made.test_x, made.test_y))


EMBEDDED = Benchmark(
    name="embedded",
    about="four digit domains without any download: handwritten, blended over photographs, rendered, street numbers",
    task=Task(num_classes=10),
    domains=embedded_digits.NAMES,
    protocols={"p1": embedded_digits.NAMES, "p2": embedded_digits.NAMES[::-1]},
    load=load,
    fingerprint=f"embedded digits, revision {embedded_digits.REVISION}",
    training=Training(model="small_resnet", steps=120, lr=1e-3, later_lr=3e-4),
    tiny={"steps": 3, "batch_size": 8, "limit": 16, "model": "tiny_resnet"},
)
