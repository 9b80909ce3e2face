"""Segmentation without a download: three short drives that are rendered when they are asked for, and a small U-Net."""

import functools

import numpy as np
import torch

from metadr.benchmarks.settled import part_defaults
from metadr.core import Benchmark, Domain, Split, Task, Training
from metadr.synthetic.street.frames import Frame, render
from metadr.synthetic.street.writing import REVISION
from metadr.vkitti2_classes import CLASSES, FRAMES

SIZE = (104, 32)  # width and height: a quarter of the study's
NUM_FRAMES, NUM_TRAIN = 60, 42  # of a drive, evenly spread; the first 70 % are for training
DRIVES = {"clear": ("Scene02", "clone"), "rain": ("Scene06", "rain"), "fog": ("Scene01", "fog")}  # vkitti2/p2/7
CLASS_NAMES = tuple(name for name, _ in CLASSES if name != "Undefined")
IGNORED = len(CLASS_NAMES)


@functools.cache
def load(name: str) -> Domain:
    scene, condition = DRIVES[name]
    moments = np.linspace(0, FRAMES[scene] - 1, NUM_FRAMES).round().astype(int)
    frames = [render(scene, int(moment), 0, [condition], size=SIZE) for moment in moments]
    return Domain(name, _split(frames[:NUM_TRAIN], condition), _split(frames[NUM_TRAIN:], condition))


def _split(frames: list[Frame], condition: str) -> Split:
    pictures = np.stack([frame.pictures[condition] for frame in frames]).transpose(0, 3, 1, 2)
    return Split(torch.tensor(pictures), torch.tensor(np.stack([frame.labels for frame in frames])))


STREETS = Benchmark(
    name="streets",
    about="segmentation without any download: three short drives rendered here, in clear weather, rain and fog",
    task=Task(num_classes=len(CLASS_NAMES), score="miou", ignore_index=IGNORED),
    domains=tuple(DRIVES),
    protocols={"p1": tuple(DRIVES)},
    load=load,
    fingerprint=f"streets {SIZE[0]}x{SIZE[1]}, revision {REVISION}",
    training=Training(
        model="small_unet", steps=250, batch_size=4, lr=3e-3, later_lr=1e-3, scaling="imagenet", mirror=True
    ),
    part_defaults=part_defaults("psi4", inner_lr=0.01),
    tiny={"steps": 2, "batch_size": 2, "limit": 4, "model": "tiny_unet"},
    classes=CLASS_NAMES,
)
