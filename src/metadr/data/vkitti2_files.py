"""Virtual KITTI 2 on disk: its scenes, conditions and cameras, wherever they lie below a folder, and how they stand."""

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from metadr.data.source import reading
from metadr.data.vkitti2_record import BUILD as BUILD
from metadr.data.vkitti2_record import NAME as NAME
from metadr.data.vkitti2_record import RENDERED as RENDERED
from metadr.data.vkitti2_record import Record, read_record, what_of
from metadr.errors import UserError
from metadr.vkitti2_classes import CAMERAS, CONDITIONS, FRAMES, RECORD

HOMEPAGE = "https://europe.naverlabs.com/research/computer-vision/proxy-virtual-worlds-vkitti-2/"
Kind = Literal["rgb", "classSegmentation"]
PATTERNS: dict[Kind, str] = {"rgb": r"rgb_(\d+)\.jpg", "classSegmentation": r"classgt_(\d+)\.png"}
ARCHIVES: dict[Kind, str] = {kind: f"vkitti_2.0.3_{kind}.tar" for kind in get_args(Kind)}  # as it is published
DEPTH = 4  # folders that scenes may be below the one that is searched
FEWEST = 4  # frames of a sequence that leave some to train, to validate and to test on


class Place(NamedTuple):
    """A folder of frames: `Scene01/clone/frames/rgb/Camera_0`."""

    scene: str
    condition: str
    kind: Kind
    camera: int

    @property
    def path(self) -> Path:
        return Path(self.scene, self.condition, "frames", self.kind, f"Camera_{self.camera}")


class Frame(NamedTuple):
    """An image and its mask."""

    image: Path
    mask: Path


PLACES = tuple(
    Place(scene, condition, kind, camera)
    for scene in FRAMES
    for condition in CONDITIONS
    for kind in get_args(Kind)
    for camera in CAMERAS
)
BY_ROLE = {str(place.path): place for place in PLACES}
DOMAINS = {f"{scene.lower()}-{condition}": (scene, condition) for scene in FRAMES for condition in CONDITIONS}
Found = dict[Place, Path]


def find(root: Path) -> Found:
    """The folders of frames at or below a folder; images and masks may lie apart. Of each the nearest."""
    found: Found = {}
    level = [root] if root.is_dir() else []
    for _ in range(DEPTH + 1):
        for place in PLACES:
            for folder in level:
                if place not in found and (folder / place.path).is_dir():
                    found[place] = folder / place.path
        level = [below for folder in level for below in _folders(folder)]
    return found


def _folders(folder: Path) -> Iterator[Path]:
    with reading(folder):
        entries = sorted(folder.iterdir())
    return (entry for entry in entries if entry.is_dir() and entry.name not in FRAMES and entry.name[0] != ".")


def record_of(root: Path, found: Found) -> Path | None:
    """The record of a stand-in, beside the scenes that were found or in the folder that was searched."""
    homes = [root, *(path.parents[len(place.path.parts) - 1] for place, path in found.items())]
    return next((home / RECORD for home in dict.fromkeys(homes) if (home / RECORD).exists()), None)


def misplaced(name: str, root: Path, found: Found) -> str:
    """Why scenes are not those of a name: rendered ones are never taken for the published, nor the reverse."""
    record = record_of(root, found)
    if name == NAME and record:
        return (
            f"{root} does not hold Virtual KITTI 2 ({what_of(record)}). Run benchmark {RENDERED} on it, with --data "
            f"{root}. {advice(name)[:-1]} for the published frames."
        )
    if name == RENDERED and not record:
        what = "which does not say what it holds" if found else "where there is nothing"
        return (
            f"Benchmark {RENDERED} needs scenes rendered here, with their record {RECORD}, in {root}, {what}. "
            f"{advice(name)} Or give their folder with --data, or run {NAME} on the published frames."
        )
    if record:
        try:
            read_record(record)
        except UserError as error:
            return str(error)
    return ""


def advice(name: str) -> str:
    """The next command for whoever lacks the frames of a name."""
    return f"Run '{f'metadr data fetch {name}' if name == NAME else BUILD}' or 'metadr data import {name} FOLDER'."


def due(benchmark: str, scene: str, record: Record | None) -> int | None:
    """How many frames of a scene there must be; None where a stand-in does not say."""
    if benchmark == NAME:
        return FRAMES[scene]
    if record is None or "frames" not in record.content:
        return None
    return min(record.content["frames"] or FRAMES[scene], FRAMES[scene])


def numbers_in(folder: Path, kind: Kind) -> dict[int, Path]:
    """The files of a folder by the number of their frame."""
    with reading(folder):
        matched = [(re.fullmatch(PATTERNS[kind], path.name), path) for path in folder.iterdir()]
    return {int(match[1]): path for match, path in matched if match}


def frames_of(
    found: Found,
    domain: str,
    cameras: tuple[int, ...],
    *,
    root: Path,
    benchmark: str,
    record: Path | None = None,
) -> list[Frame]:
    """The frames of a domain in the order of time, those of its cameras beside each other.

    Args:
        found: what `find` found.
        domain: such as `scene01-clone`.
        cameras: those that are wanted.
        root: the folder that was searched, for sentences.
        benchmark: whose domain it is; of the published one as many frames as were published are needed.
        record: of rendered scenes, where it is not found from the folder that was searched.
    """
    record = (record or record_of(root, found)) if benchmark == RENDERED else None
    search = Search(found, root, benchmark, read_record(record) if record else None)
    _refuse_stopped(search, domain)
    by_camera = [_of_camera(search, domain, camera) for camera in cameras]
    then = search.advice(*DOMAINS[domain])
    counts = {f"camera {camera}": len(frames) for camera, frames in zip(cameras, by_camera, strict=True)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{count} of {name}" for name, count in counts.items())
        raise UserError(f"{domain}: the cameras differ in their number of frames ({told}) in {root}. {then}")
    if alone := set[int]().union(*by_camera) - set(by_camera[0]).intersection(*by_camera):
        raise UserError(
            f"{domain}: frame {min(alone)} is not there of every camera in {root}, and frames of one moment belong "
            f"together. {then}"
        )
    _refuse_gaps(search, domain, by_camera[0].keys())
    return [frames[number] for number in by_camera[0] for frames in by_camera]


class Search(NamedTuple):
    """A folder that was searched for the scenes of a benchmark, and what was found; of rendered ones their record."""

    found: Found
    root: Path
    benchmark: str
    record: Record | None

    def advice(self, scene: str, condition: str) -> str:
        """The next command for whoever lacks frames of a scene under a condition."""
        if self.record is None:
            return advice(self.benchmark)
        command = self.command(scene, condition)
        return f"Run '{command}'." if command else f"Restore it, or run 'metadr data import {self.benchmark} FOLDER'."

    def command(self, scene: str, condition: str) -> str:
        """What renders all that a scene lacks under this condition and those that are there, if that is known."""
        there = {place.condition for place in self.found if place.scene == scene}
        return self.record.command(scene, there | {condition}) if self.record else ""


def _refuse_stopped(search: Search, domain: str) -> None:
    """A rendering that was begun and not ended: what it lacks is nothing else that is wrong."""
    scene, condition = DOMAINS[domain]
    begun = any((place.scene, place.condition) == (scene, condition) for place in search.found)
    if begun and search.record and not search.record.is_complete(scene, condition):
        command = search.command(scene, condition)
        then = f"'{command}'" if command else f"the same '{BUILD}' as before"
        raise UserError(f"{domain}: its rendering in {search.root} was stopped before its end. Go on with {then}.")


def _of_camera(search: Search, domain: str, camera: int) -> dict[int, Frame]:
    """The frames of a camera by their number: every image has a mask, and the reverse."""
    images, masks = (_numbered(search, Place(*DOMAINS[domain], kind, camera)) for kind in get_args(Kind))
    if images.keys() != masks.keys():
        number = min(images.keys() ^ masks.keys())
        there, missing = ("mask", "image") if number in masks else ("image", "mask")
        there_path = masks[number] if number in masks else images[number]
        raise UserError(
            f"{domain}: the {missing} of frame {number} is missing, of which {there_path} is the {there}. "
            f"{search.advice(*DOMAINS[domain])}"
        )
    return {number: Frame(images[number], masks[number]) for number in sorted(images)}


def _numbered(search: Search, place: Place) -> dict[int, Path]:
    """The files of a place by the number of their frame, or one sentence on what is missing."""
    found, then = search.found, search.advice(place.scene, place.condition)
    domain = f"{place.scene}/{place.condition}"
    if place not in found:
        kinds = {each.kind for each in found if each[:2] == place[:2]}
        if search.benchmark == NAME and kinds and place.kind not in kinds:
            archive = f"metadr data import {NAME} {ARCHIVES[place.kind]}"
            then = f"Run '{archive}' with the archive that has it; what is there stays."
        raise UserError(f"{domain}: no folder {place.path} in {search.root}. {then}")
    numbered = numbers_in(found[place], place.kind)
    if not numbered:
        raise UserError(f"{domain}: no frames in {found[place]}. {then}")
    count = due(search.benchmark, place.scene, search.record) if search.record else None
    if count is not None and numbered.keys() != set(range(count)):
        number = min(numbered.keys() ^ set(range(count)))
        told = f"of the {count} frames that {RECORD} tells of"
        if number < count:
            raise UserError(f"{domain}: frame {number} is missing in {found[place]}, {told}. {then}")
        raise UserError(f"{domain}: {numbered[number]} is none {told}. Move it away.")
    return numbered


def _refuse_gaps(search: Search, domain: str, numbers: Collection[int]) -> None:
    """As many frames as there must be, and of the published ones no number left out between the others."""
    scene, condition = DOMAINS[domain]
    if search.benchmark == NAME:
        gaps, count = set(range(min(numbers), max(numbers))) - set(numbers), len(numbers)
        missing, then = f"frame {min(gaps, default=0)} is missing", search.advice(scene, condition)
        if count != FRAMES[scene]:
            where = f"{search.root}, where {missing}" if gaps else f"{search.root}"
            raise UserError(f"{domain}: expected {FRAMES[scene]} frames, found {count} in {where}. {then}")
        if gaps:
            raise UserError(f"{domain}: {missing} in {search.root}, between others that are there. {then}")
    if len(numbers) < FEWEST:
        raise UserError(
            f"{domain}: {len(numbers)} frames in {search.root}; at least {FEWEST} are needed, to train, validate and "
            "test on."
        )
