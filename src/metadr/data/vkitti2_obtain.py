"""Get Virtual KITTI 2 into the data root, and say how a copy of it stands."""

import shutil
from collections.abc import Callable
from pathlib import Path

from metadr.data.archives import is_archive, unpack
from metadr.data.decode import in_order
from metadr.data.digits import State, Status, Verified
from metadr.data.fetch import Download, fetch
from metadr.data.obtain import replace_folder, workplace
from metadr.data.remote import RemoteFile
from metadr.data.source import Counts, data_root
from metadr.data.vkitti2 import parts, picture
from metadr.data.vkitti2_files import (
    ADVICE,
    CAMERAS,
    DOMAINS,
    HOMEPAGE,
    NAME,
    PLACES,
    RECORD,
    Found,
    Frame,
    find,
    frames_of,
    stand_in,
)
from metadr.errors import UserError
from metadr.progress import Meter, Watch
from metadr.vkitti2_classes import CONDITIONS, FRAMES

ADDRESS = "https://download.europe.naverlabs.com/virtual_kitti_2.0.3"
FILES = tuple(
    RemoteFile(name, (f"{ADDRESS}/{name}",), f"md5:{md5}", size)
    for name, md5, size in (
        ("vkitti_2.0.3_rgb.tar", "1e00a143a397c2c53aa9720a868fe34a", 7_532_472_320),
        ("vkitti_2.0.3_classSegmentation.tar", "e8658ab49250e61f1caa174625563263", 1_015_961_600),
    )
)
HINT = f"Get the files by hand ({HOMEPAGE}) and run 'metadr data import {NAME} FOLDER'."


def counts_of(frames: int) -> Counts:
    """Training and test images of a sequence of so many moments, of both cameras."""
    train, _, test = parts(frames)
    return Counts(len(CAMERAS) * train.stop, len(CAMERAS) * (test.stop - test.start))


def _sum(counts: list[Counts]) -> Counts:
    return Counts(sum(each.train for each in counts), sum(each.test for each in counts))


EXPECTED = _sum([counts_of(frames) for frames in FRAMES.values() for _ in CONDITIONS])


def status(root: Path | None = None) -> Status:
    """What there is: quick, from the files' names. A scene under a condition may be all there is."""
    folder = (root or data_root()) / NAME
    sequences, problems = _sequences(folder)
    if not sequences and not problems:
        return Status(NAME, "missing", folder, None, EXPECTED, (f"{NAME}: no data in {folder}. {ADVICE}",))
    found = _sum([counts_of(len(frames) // len(CAMERAS)) for frames in sequences.values()])
    state: State = "broken" if problems else "present" if len(sequences) == len(DOMAINS) else "partial"
    return Status(NAME, state, folder, found, EXPECTED, tuple(problems))


def verify(root: Path | None = None, *, watch: Watch | None = None) -> Verified:
    """Decode every frame and read every mask; nothing of it is kept."""
    seen = status(root)
    sequences, _ = _sequences(seen.folder)
    problems = list(seen.problems)
    for domain, frames in sequences.items():
        try:
            _look_at(domain, frames, watch)
        except UserError as error:
            problems.append(str(error))
    return Verified(seen._replace(state="broken", problems=tuple(problems)) if problems and sequences else seen)


def download(root: Path | None = None, *, watch: Callable[[Download], None] | None = None) -> Status:
    """Fetch both archives, 8.5 GB, from their publisher, unpack them and put the frames in their place."""
    root = root or data_root()
    archives = root / "downloads" / NAME
    fetch(FILES, archives, hint=HINT, watch=watch)
    now = bring(archives, root)
    shutil.rmtree(archives)
    return now


def bring(place: str | Path, root: Path | None = None, *, watch: Watch | None = None) -> Status:
    """Copy the frames of the six conditions from a folder, or from archives in it, into the data root.

    The copy appears when all of it is there; one that was there before is replaced only then, and a sound one only by
    one without a missing file.
    """
    root, place = root or data_root(), Path(place)
    if not place.exists():
        raise UserError(f"There is no {place} to import {NAME} from. Give a folder or an archive that holds it.")
    if place.is_dir() and stand_in(place):
        raise UserError(
            f"{place} does not hold Virtual KITTI 2 ({stand_in(place)}). Run benchmark {NAME}-rendered on it: "
            f"metadr run {NAME}-rendered --data {place}"
        )
    with workplace(root) as work:
        found = find(place)
        for number, archive in enumerate(_archives(place)):
            found = {**find(unpack(archive, work / f"unpacked-{number}", watch=watch)), **found}
        if not found:
            raise UserError(
                f"{place} holds no frames of {NAME}, such as {PLACES[0].path}, nor an archive of them. {HINT}"
            )
        problems = _sequences_in(found, place)[1]
        if problems and status(root).state in ("present", "partial"):
            raise UserError(f"{problems[0]} The {NAME} that is in {root / NAME} was kept.")
        _take(found, work, work / "copy", watch)
        replace_folder(work / "copy", root / NAME)
    return status(root)


def _archives(place: Path) -> list[Path]:
    if place.is_dir():
        return [path for path in sorted(place.iterdir()) if path.name.startswith("vkitti") and is_archive(path)]
    if not is_archive(place):
        raise UserError(f"{place} is neither a folder nor an archive (zip, tar, gz, bz2, xz). {HINT}")
    return [place]


def _take(found: Found, work: Path, copy: Path, watch: Watch | None) -> None:
    meter = Meter(f"copying {NAME}", len(found), watch)
    for place, folder in found.items():
        there = copy / place.path
        there.parent.mkdir(parents=True, exist_ok=True)
        if folder.is_relative_to(work):
            folder.rename(there)  # it was unpacked for this
        else:
            shutil.copytree(folder, there)
        meter.add()


def _sequences(folder: Path) -> tuple[dict[str, list[Frame]], list[str]]:
    if stand_in(folder):
        return {}, [f"{folder} does not hold Virtual KITTI 2 ({stand_in(folder)}). Move it away: {RECORD} says so."]
    return _sequences_in(find(folder), folder)


def _sequences_in(found: Found, root: Path) -> tuple[dict[str, list[Frame]], list[str]]:
    """The frames of every domain that is there, and what is wrong with the others of which something is."""
    sequences, problems = {}, []
    for domain, (scene, condition) in DOMAINS.items():
        if any((place.scene, place.condition) == (scene, condition) for place in found):
            try:
                sequences[domain] = frames_of(found, domain, CAMERAS, root=root, complete=True)
            except UserError as error:
                problems.append(str(error))
    return sequences, problems


def _look_at(domain: str, frames: list[Frame], watch: Watch | None) -> None:
    masks = {frame.image: frame.mask for frame in frames}
    sizes = {
        seen.labels.shape
        for seen in in_order(
            lambda image: picture(Frame(image, masks[image])), list(masks), what=f"verifying {domain}", watch=watch
        )
    }
    if len(sizes) > 1:
        told = " and ".join(f"{width}x{height}" for height, width in sorted(sizes))
        raise UserError(f"{domain}: frames of {told}; a sequence has one size. {ADVICE}")
