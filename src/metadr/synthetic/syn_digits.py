"""Synthetic numbers after Ganin and Lempitsky (2015): one to three digits in print, labelled by the centre one.

Their set was "generated from Windows fonts by varying the text (that includes different one-, two-, and three-digit
numbers), positioning, orientation, background and stroke colors, and the amount of blur". The ranges were chosen by
hand and are not published, nor is the list of fonts: `RANGES` and `fonts.FAMILIES` are ours (docs/syn.md).

Images are 32x32 RGB, each a function of (seed, split, index), the variant and the fonts: `plan` draws every random
number, `draw` none.
"""

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.io import savemat

from metadr.errors import UserError, unknown
from metadr.files import write_file
from metadr.synthetic.fonts import FontSet, find
from metadr.synthetic.syn_drawing import SIDE, Colour, Plan, draw

REVISION: int = 3
"""Part of the fingerprint of the data: raise it when any pixel or label changes."""

Split = Literal["train", "test"]
Variant = Literal["easy", "standard", "hard"]
Watch = Callable[[int], None]
Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Random = np.random.Generator
Range = tuple[float, float]

COUNTS: dict[Split, int] = {"train": 10_000, "test": 9_553}
FILES: dict[Split, str] = {"train": "synth_train_32x32.mat", "test": "synth_test_32x32.mat"}
SETS: dict[Variant, str] = {"standard": "syn", "easy": "syn_easy", "hard": "syn_hard"}  # data sets, each in its folder

CHUNK = 250  # images that a process makes at a time


class Ranges(NamedTuple):
    """What is drawn at random for one image; a pair is a uniform range."""

    digits: tuple[float, float, float]  # shares of one-, two- and three-digit numbers
    height: Range  # of the centre digit, pixels
    stretch: Range  # of the number's width
    shift: float  # of the centre digit from the middle, at most, pixels along each axis
    degrees: float  # of rotation, at most, either way
    slant: float  # of upright strokes, at most, either way: how far they lean to the side on a pixel of height
    weight: Range  # by how much strokes are grown on either side, or worn off, as a part of the font's own width
    gap: Range  # between neighbouring digits, as a part of the height
    grey: Range  # of each colour, the level of 0 to 255 that its channels lie around
    tint: float  # of a channel from that level, at most, either way
    contrast: Range  # between two colours that touch: root of the mean squared difference of their channels
    outlined: float  # share of numbers with an outline in a third colour
    outline: Range  # its width, pixels
    blur: Range  # standard deviation of the Gaussian, pixels


RANGES: dict[Variant, Ranges] = {
    "easy": Ranges(
        digits=(0.5, 0.3, 0.2),
        height=(22, 26),
        stretch=(0.9, 1.1),
        shift=1,
        degrees=5,
        slant=0.1,
        weight=(-0.05, 0.1),
        gap=(0.1, 0.25),
        grey=(0, 255),
        tint=40,
        contrast=(140, 255),
        outlined=0.1,
        outline=(0.7, 1.2),
        blur=(0, 0.7),
    ),
    "standard": Ranges(
        digits=(0.3, 0.35, 0.35),
        height=(17, 28),
        stretch=(0.6, 1.4),
        shift=3,
        degrees=20,
        slant=0.35,
        weight=(-0.25, 0.45),
        gap=(0.03, 0.2),
        grey=(0, 240),
        tint=40,
        contrast=(115, 255),
        outlined=0.2,
        outline=(0.7, 1.8),
        blur=(0, 1.2),
    ),
    "hard": Ranges(
        digits=(0.1, 0.35, 0.55),
        height=(17, 30),
        stretch=(0.5, 1.5),
        shift=3.5,
        degrees=25,
        slant=0.4,
        weight=(-0.25, 0.5),
        gap=(-0.02, 0.12),
        grey=(20, 235),
        tint=120,
        contrast=(20, 80),
        outlined=0.5,
        outline=(0.7, 2.2),
        blur=(0.5, 2),
    ),
}


def render(
    count: int,
    *,
    split: Split,
    seed: int = 0,
    variant: Variant = "standard",
    fonts: FontSet | None = None,
    processes: int = 1,
    watch: Watch | None = None,
) -> tuple[Pixels, Labels]:
    """Make the first `count` images of a split: (N, 32, 32, 3) uint8 and their labels.

    The number of processes changes nothing but the time, and fewer images are a prefix of more. A new process
    takes seconds to start, the time of thousands of images.

    Args:
        fonts: What to draw with; the fixed list of `fonts.FAMILIES` if not given.
        watch: Told the number of images made so far, now and then.

    Raises:
        UserError: If an argument is out of its range, or a font is missing.
    """
    _check(count, split, seed, variant, processes)
    paths = tuple(str(path) for path in (find() if fonts is None else fonts).paths)
    work = [_Chunk(start, min(start + CHUNK, count), split, seed, variant, paths) for start in range(0, count, CHUNK)]
    images = np.empty((count, SIDE, SIDE, 3), dtype=np.uint8)
    for chunk, pixels in zip(work, _results(work, min(processes, len(work))), strict=True):
        images[chunk.start : chunk.stop] = pixels
        if watch is not None:
            watch(chunk.stop)
    return images, labels(0, count, split=split, seed=seed)


def build(
    folder: Path,
    *,
    seed: int = 0,
    variant: Variant = "standard",
    fonts: FontSet | None = None,
    counts: dict[Split, int] | None = None,
    processes: int = 1,
    watch: Watch | None = None,
) -> Path:
    """Write both splits in the layout of Ganin's release, and syn.json, which says how they were made.

    synth_{train,test}_32x32.mat hold X (32, 32, 3, N) uint8 and y (N, 1) uint8, in which 10 is the digit 0. syn.json is
    written before them without the hashes of their pixels, and after them with: then the folder is complete. Of another
    variant it is syn_easy.json or syn_hard.json, so that one is not taken for another.

    Returns:
        The path of syn.json.

    Raises:
        UserError: As `render`, or if the folder cannot be written or holds such files from elsewhere: those are kept.
    """
    fonts = find() if fonts is None else fonts
    counts = COUNTS if counts is None else counts
    for split, count in counts.items():
        _check(count, split, seed, variant, processes)
    record = f"{SETS[variant]}.json"
    _check_folder(folder, record)
    done = 0

    def watch_both(now: int) -> None:
        if watch is not None:
            watch(done + now)

    made: dict[Split, tuple[Pixels, Labels]] = {}
    for split, count in counts.items():
        made[split] = render(
            count, split=split, seed=seed, variant=variant, fonts=fonts, processes=processes, watch=watch_both
        )
        done += count
    kind = "" if variant == "standard" else f", {variant} to read,"
    content = {
        "what": f"synthetic numbers{kind} rendered after Ganin and Lempitsky (2015); not their files",
        "revision": REVISION,
        "seed": seed,
        "variant": variant,
        "fonts": fonts.hash,
        "counts": dict(counts),
    }

    def write_record(pixels: dict[Split, str] | None) -> None:
        write_file(folder / record, (json.dumps({**content, "pixels": pixels}, indent=1) + "\n").encode())

    write_record(None)
    for split, (images, digits) in made.items():
        write_file(folder / FILES[split], to_mat(images, digits))
    write_record({split: pixel_hash(*both) for split, both in made.items()})
    return folder / record


def labels(start: int, stop: int, *, split: Split, seed: int = 0) -> Labels:
    """The labels of some images in a row. Every ten hold each digit once, so no class is more than one ahead."""
    first, last = start // 10, (stop + 9) // 10
    tens = [np.argsort(_random(seed, split, "labels", ten).random(10)) for ten in range(first, last)]
    return np.concatenate(tens)[start - 10 * first : stop - 10 * first].astype(np.int64)


def plan(label: int, random: Random, ranges: Ranges, num_fonts: int) -> Plan:
    """Draw all that is random about an image.

    Only `random.random` is used, which does least to the bits of the generator: numpy promises those for all versions,
    but not what its other methods make of them.
    """
    u: Iterator[float] = iter(random.random(16).tolist())

    def within(low: float, high: float) -> float:
        return low + (high - low) * next(u)

    share = next(u)
    left, right, side = int(10 * next(u)), int(10 * next(u)), next(u) < 0.5
    three, two = share < ranges.digits[2], share < ranges.digits[2] + ranges.digits[1]
    font = int(num_fonts * next(u))
    height, stretch = within(*ranges.height), within(*ranges.stretch)
    shift = within(-ranges.shift, ranges.shift), within(-ranges.shift, ranges.shift)
    degrees, gap = within(-ranges.degrees, ranges.degrees), within(*ranges.gap)
    slant, weight = within(-ranges.slant, ranges.slant), within(*ranges.weight)
    outlined, outline, blur = next(u) < ranges.outlined, within(*ranges.outline), within(*ranges.blur)
    ground, ink = _colours_apart(random, ranges)
    return Plan(
        label=label,
        left=left if three or (two and side) else None,
        right=right if three or (two and not side) else None,
        font=font,
        height=height,
        stretch=stretch,
        shift=shift,
        degrees=degrees,
        slant=slant,
        weight=weight,
        gap=gap,
        ground=ground,
        ink=ink,
        rim=_colour_apart(ink, random, ranges) if outlined else None,
        outline=outline,
        blur=blur,
    )


def to_mat(images: Pixels, digits: Labels) -> bytes:
    """A .mat file in the layout of the release (SVHN's): 10 stands for the digit 0."""
    buffer = io.BytesIO()
    y = np.where(digits == 0, 10, digits).astype(np.uint8)[:, None]
    savemat(buffer, {"X": np.moveaxis(images, 0, -1), "y": y}, do_compression=True)
    # The head of a .mat file is free text; scipy puts the time there, and equal data should be equal files.
    return b"MATLAB 5.0 MAT-file, rendered by metadr".ljust(116) + buffer.getvalue()[116:]


def pixel_hash(images: Pixels, digits: Labels) -> str:
    """The SHA-256 of images (N, 32, 32, 3), then labels as bytes."""
    return hashlib.sha256(images.tobytes() + digits.astype(np.uint8).tobytes()).hexdigest()


class _Chunk(NamedTuple):
    start: int
    stop: int
    split: Split
    seed: int
    variant: Variant
    paths: tuple[str, ...]


def _make(chunk: _Chunk) -> Pixels:
    """One process's share."""
    ranges, digits = RANGES[chunk.variant], labels(chunk.start, chunk.stop, split=chunk.split, seed=chunk.seed)
    images = np.empty((len(digits), SIDE, SIDE, 3), dtype=np.uint8)
    for row, digit in enumerate(digits.tolist()):
        random = _random(chunk.seed, chunk.split, "image", chunk.start + row)
        images[row] = np.asarray(draw(plan(digit, random, ranges, len(chunk.paths)), chunk.paths))
    return images


def _results(work: list[_Chunk], processes: int) -> Iterator[Pixels]:
    if processes == 1:
        yield from map(_make, work)
        return
    # Spawned, not forked: a fork of a process with threads (torch has some) can hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(_make, work)
        except BrokenProcessPool:
            raise UserError(
                "A process that renders digits was stopped from outside. Run it again with fewer processes."
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _random(seed: int, split: Split, *meaning: str | int) -> Random:
    """An independent stream for what it is used for, whatever was drawn before."""
    words = [word if isinstance(word, int) else int.from_bytes(word.encode(), "big") for word in (split, *meaning)]
    return np.random.default_rng([seed, *words])


def _colour(random: Random, ranges: Ranges) -> Colour:
    low, high = ranges.grey
    level, *tints = random.random(4).tolist()
    around = low + (high - low) * level
    red, green, blue = (round(min(255.0, max(0.0, around + ranges.tint * (2 * u - 1)))) for u in tints)
    return red, green, blue


def _colours_apart(random: Random, ranges: Ranges) -> tuple[Colour, Colour]:
    """Two colours that touch, both drawn anew until they differ enough: few have a partner far from a middle grey."""
    while True:
        one = _colour(random, ranges)
        other = _colour(random, ranges)
        if _are_apart(one, other, ranges):
            return one, other


def _colour_apart(other: Colour, random: Random, ranges: Ranges) -> Colour:
    """A colour apart from one that has a partner already: there are more, so the loop ends."""
    while True:
        colour = _colour(random, ranges)
        if _are_apart(colour, other, ranges):
            return colour


def _are_apart(one: Colour, other: Colour, ranges: Ranges) -> bool:
    low, high = ranges.contrast
    return low <= math.dist(one, other) / math.sqrt(3) <= high


def _check_folder(folder: Path, record: str) -> None:
    """Make it, and refuse it if it holds files that were not made here."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"Cannot write the folder '{folder}': {error.strerror}. Choose another one.") from None
    theirs = [name for name in FILES.values() if (folder / name).exists()]
    if theirs and not (folder / record).exists():
        raise UserError(
            f"'{folder}' holds {' and '.join(theirs)} but no {record}: files from elsewhere, which rendering would "
            "overwrite. Move them away, or choose another folder."
        )


def _check(count: int, split: str, seed: int, variant: str, processes: int) -> None:
    if split not in get_args(Split):
        raise unknown("split", split, get_args(Split))
    if variant not in RANGES:
        raise unknown("variant", variant, RANGES, within=" of the synthetic numbers")
    for name, value, least in (("count", count, 1), ("seed", seed, 0), ("processes", processes, 1)):
        if value < least:
            raise UserError(
                f"The '{name}' of the synthetic numbers must be an integer >= {least}. Got {value} instead."
            )
