"""Two copies of Virtual KITTI 2 as one: the frames that are imported, beside those that are there."""

import json
from pathlib import Path

from metadr.data.source import Files
from metadr.data.vkitti2_files import BY_ROLE, RENDERED, Found, due, find, misplaced, numbers_in, record_of
from metadr.data.vkitti2_record import Record, difference, read_record
from metadr.errors import UserError
from metadr.files import link_tree
from metadr.vkitti2_classes import CONDITIONS, FRAMES, RECORD


def found_in(files: Files) -> Found:
    """The folders of frames among files that are to be imported."""
    return {BY_ROLE[role]: path for role, path in files.items() if role in BY_ROLE}


def unlike(name: str, place: Path, there: Found, files: Files) -> str:
    """Why new files cannot be added to a copy: renderings are joined only where they are of one."""
    problem = misplaced(name, place, there)
    if problem or name != RENDERED:
        return problem
    differing = difference(_record(place, there), read_record(files[RECORD]))
    return f"{place} holds another rendering than the one to import: {differing}." if differing else ""


def refuse_fewer(name: str, there: Found, files: Files, record: Path | None) -> None:
    """Frames are not to vanish because a folder with some of them is imported over one with more."""
    for place, path in found_in(files).items():
        if place not in there:
            continue
        new = numbers_in(path, place.kind)
        lost = numbers_in(there[place], place.kind).keys() - new.keys()
        if lost and len(new) != due(name, place.scene, read_record(record) if record else None):
            raise UserError(
                f"{there[place]} holds frame {min(lost)}, which the {name} to import lacks, and was kept. Move it away "
                "to import that one instead, or give a folder that holds all of its frames."
            )


def keep(place: Path, copy: Path, files: Files) -> bool:
    """Add to a new copy all that is in place, but for the frames and the record that the new ones take the place of."""
    there = find(place)
    if place.exists():
        replaced = {there[each] for each in found_in(files) if each in there}
        if RECORD in files and there:
            joined = _joined(_record(place, there), there, read_record(files[RECORD]), found_in(files))
            (copy / RECORD).write_text(json.dumps(joined, indent=1) + "\n")
        link_tree(place, copy, without={*replaced, place / RECORD})
    return bool(there)


def _record(place: Path, there: Found) -> Record:
    path = record_of(place, there)
    assert path is not None  # `misplaced` refuses rendered scenes without
    return read_record(path)


def _joined(before: Record, there: Found, new: Record, added: Found) -> dict[str, object]:
    """The record of both: complete is what one of them has, and says so."""
    if "complete" not in before.content and "complete" not in new.content:
        return new.content
    complete = {
        (place.scene, place.condition)
        for record, found in ((before, there), (new, added))
        for place in found
        if record.is_complete(place.scene, place.condition)
    }
    scenes = {scene: [each for each in CONDITIONS if (scene, each) in complete] for scene in FRAMES}
    return {**new.content, "complete": {scene: conditions for scene, conditions in scenes.items() if conditions}}
