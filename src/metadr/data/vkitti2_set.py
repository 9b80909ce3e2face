"""Virtual KITTI 2, and what is rendered in its layout, as the commands for data see them."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from metadr.data.decode import in_order
from metadr.data.remote import RemoteFile
from metadr.data.source import Counts, Files
from metadr.data.standing import State, Status, Verified
from metadr.data.vkitti2 import parts, picture
from metadr.data.vkitti2_files import (
    ARCHIVES,
    BUILD,
    BY_ROLE,
    DOMAINS,
    HOMEPAGE,
    NAME,
    PLACES,
    RENDERED,
    Found,
    Frame,
    advice,
    due,
    find,
    frames_of,
    misplaced,
    record_of,
)
from metadr.data.vkitti2_join import found_in, keep, refuse_fewer, unlike
from metadr.data.vkitti2_record import Record, read_record
from metadr.errors import UserError
from metadr.progress import Watch
from metadr.vkitti2_classes import CAMERAS, CONDITIONS, FRAMES, RECORD

ADDRESS = "https://download.europe.naverlabs.com/virtual_kitti_2.0.3"
FILES = tuple(
    RemoteFile(name, (f"{ADDRESS}/{name}",), f"md5:{md5}", size)
    for name, md5, size in (
        (ARCHIVES["rgb"], "1e00a143a397c2c53aa9720a868fe34a", 7_532_472_320),
        (ARCHIVES["classSegmentation"], "e8658ab49250e61f1caa174625563263", 1_015_961_600),
    )
)
Sequences = dict[str, list[Frame]]


@dataclass(frozen=True)
class Streets:
    """Scenes under conditions: the published ones, or those that were rendered here."""

    name: str
    files: tuple[RemoteFile, ...] = ()
    homepage: str = ""
    build: str = ""
    holds: ClassVar[str] = f"folders such as {PLACES[0].path}"
    readable: ClassVar[frozenset[str]] = frozenset()
    adds: ClassVar[bool] = True

    @property
    def published(self) -> bool:
        return self.name == NAME

    def locate(self, folder: Path) -> dict[str, Path]:
        """The folders of frames by where they belong, and the record of rendered ones."""
        found = find(folder)
        if not found:
            raise UserError(f"{self.name}: no frames, such as {PLACES[0].path}, in {folder}. {advice(self.name)}")
        problem = misplaced(self.name, folder, found)
        if problem:
            raise UserError(problem)
        record = record_of(folder, found)
        return {**{str(place.path): path for place, path in found.items()}, **({RECORD: record} if record else {})}

    def lands(self, role: str, found: Path) -> str:
        return role

    def check(self, files: Files, root: Path, watch: Watch | None = None) -> None:
        """Refuse frames without their masks, or fewer than there should be; `verify` decodes them."""
        problems = self._of(files)[1]
        if problems:
            raise UserError(problems[0])

    def taken(self, files: Files, place: Path) -> Files:
        """All of it, but for what would break a domain that is sound; it is added to the domains that are there."""
        there = find(place)
        if not there:
            return files
        sound, whole = self._in(place)[0], self._of(files)[0]
        problem = unlike(self.name, place, there, files)
        if problem:
            raise UserError(f"{problem} Nothing was changed: move {place} away, then import again.")
        scenes = [role for role in files if role in BY_ROLE and (_domain(role) in whole or _domain(role) not in sound)]
        if not scenes:
            raise UserError(f"{self._of(files)[1][0]} The {self.name} that is in {place} is sound, and was kept.")
        refuse_fewer(self.name, there, {role: files[role] for role in scenes}, files.get(RECORD))
        return {role: path for role, path in files.items() if role == RECORD or role in scenes}

    def keep(self, place: Path, copy: Path, files: Files) -> bool:
        return keep(place, copy, files)

    def status(self, root: Path) -> Status:
        """What there is: quick, from the files' names. A scene under a condition may be all there is."""
        folder = root / self.name
        sequences, problems = self._in(folder)
        record = None if self.published else self._record(folder)
        if not sequences and not problems:
            begun = record.command() if record else ""
            then = f"Run '{begun}'." if begun else advice(self.name)
            lacking = f"{self.name}: no data in {folder}. {then}"
            return Status(self.name, "missing", folder, None, EXPECTED, (lacking,))
        state: State = "broken" if problems else "present" if len(sequences) == len(DOMAINS) else "partial"
        lengths = {domain: len(frames) // len(CAMERAS) for domain, frames in sequences.items()}
        found = _sum([counts_of(number) for number in lengths.values()])
        promised = [counts_of(number) for scene, _ in DOMAINS.values() if (number := due(self.name, scene, record))]
        expected = EXPECTED if self.published else _sum(promised) if promised else found
        origin = "" if self.published else _rendered(lengths, record)
        return Status(self.name, state, folder, found, expected, tuple(problems), origin)

    def verify(self, root: Path, watch: Watch | None = None) -> Verified:
        """Decode every frame and read every mask; nothing of it is kept."""
        seen = self.status(root)
        sequences, _ = self._in(seen.folder)
        problems = list(seen.problems)
        for domain, frames in sequences.items():
            try:
                self._look_at(domain, frames, watch)
            except UserError as error:
                problems.append(str(error))
        return Verified(seen._replace(state="broken", problems=tuple(problems)) if problems and sequences else seen)

    def _record(self, folder: Path) -> Record | None:
        """What rendered scenes say of themselves; nothing where it is missing or cannot be read."""
        path = record_of(folder, find(folder))
        with suppress(UserError):
            return read_record(path) if path else None
        return None

    def _in(self, folder: Path) -> tuple[Sequences, list[str]]:
        found = find(folder)
        problem = misplaced(self.name, folder, found) if found else ""
        return ({}, [problem]) if problem else self._sequences(found, folder)

    def _of(self, files: Files) -> tuple[Sequences, list[str]]:
        """The same of files that are to be imported, with the record that came with them."""
        found = found_in(files)
        place, path = next(iter(found.items()))
        return self._sequences(found, path.parents[len(place.path.parts) - 1], files.get(RECORD))

    def _sequences(self, found: Found, folder: Path, record: Path | None = None) -> tuple[Sequences, list[str]]:
        """The frames of every domain that is there, and what is wrong with the others of which something is."""
        sequences, problems = {}, {}
        for domain, (scene, condition) in DOMAINS.items():
            if any((place.scene, place.condition) == (scene, condition) for place in found):
                try:
                    sequences[domain] = frames_of(
                        found, domain, CAMERAS, root=folder, benchmark=self.name, record=record
                    )
                except UserError as error:
                    problems[domain] = str(error)
        return sequences, _told_once(problems)

    def _look_at(self, domain: str, frames: list[Frame], watch: Watch | None) -> None:
        masks = {frame.image: frame.mask for frame in frames}
        sizes = {
            seen.labels.shape
            for seen in in_order(
                lambda image: picture(Frame(image, masks[image])), list(masks), what=f"verifying {domain}", watch=watch
            )
        }
        if len(sizes) > 1:
            told = " and ".join(f"{width}x{height}" for height, width in sorted(sizes))
            raise UserError(f"{domain}: frames of {told}; a sequence has one size. {advice(self.name)}")


def _rendered(lengths: dict[str, int], record: Record | None) -> str:
    """What renderings are, of which size and length: shortened scenes must not look like whole ones."""
    told = [record.size] if record and record.size else []
    if any(number != FRAMES[DOMAINS[domain][0]] for domain, number in lengths.items()):
        published = f"where that has {min(FRAMES.values())} to {max(FRAMES.values())}"
        own = sorted({min(lengths.values()), max(lengths.values())})
        told.append(f"{' to '.join(map(str, own))} frames of a scene, {published}")
    elif lengths:
        told.append("as many frames of a scene")
    return ": ".join(filter(None, ("rendered here; not Virtual KITTI 2", ", ".join(told)))) + "."


def _told_once(problems: dict[str, str]) -> list[str]:
    """What is wrong with domains, each reason once for a scene: with the first domain, and which others share it."""
    alike: dict[tuple[str, str], list[str]] = {}
    for domain, problem in problems.items():
        scene, condition = DOMAINS[domain]
        reason = problem.replace(domain, "").replace(f"{scene}/{condition}", "")
        alike.setdefault((scene, reason), []).append(domain)
    return [
        problems[first] + (f" The same goes for {', '.join(others)}." if others else "")
        for first, *others in alike.values()
    ]


def _domain(role: str) -> str:
    return f"{BY_ROLE[role].scene.lower()}-{BY_ROLE[role].condition}"


def counts_of(frames: int) -> Counts:
    """Training and test images of a sequence of so many moments, of both cameras."""
    train, _, test = parts(frames)
    return Counts(len(CAMERAS) * train.stop, len(CAMERAS) * (test.stop - test.start))


def _sum(counts: list[Counts]) -> Counts:
    return Counts(sum(each.train for each in counts), sum(each.test for each in counts))


EXPECTED = _sum([counts_of(frames) for frames in FRAMES.values() for _ in CONDITIONS])
VKITTI2 = Streets(NAME, FILES, HOMEPAGE)
VKITTI2_RENDERED = Streets(RENDERED, build=BUILD)
