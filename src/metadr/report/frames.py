"""What runs saw, as a note: a table of shortened scenes, or of another split, must not look like the paper's."""

from collections.abc import Sequence

from metadr.benchmarks.pacs import SPLIT_HERE
from metadr.data.vkitti2_files import DOMAINS, RENDERED
from metadr.data.vkitti2_set import counts_of
from metadr.report.records import Record
from metadr.vkitti2_classes import FRAMES


def frames_note(records: Sequence[Record]) -> list[str]:
    """The size of the frames and how many of a scene were tested on, beside how many the published set has."""
    streets = [record for record in records if record.identity["benchmark"] == RENDERED]
    if not streets:
        return []
    tested = {(row["on"], row["images"]) for record in streets for row in record.rows}
    found, published = {count for _, count in tested}, {_published(domain) for domain, _ in tested}
    if all(count == _published(domain) for domain, count in tested):
        told = f"as many as Virtual KITTI 2 has: tested on {_range(found)} of a scene"
    else:
        told = f"fewer than Virtual KITTI 2 has: tested on {_range(found)} of a scene, not on {_range(published)}"
    return [f"These runs are on frames{_sizes(streets)}, {told}."]


def split_note(records: Sequence[Record]) -> list[str]:
    """Images that were split here, for want of the publisher's lists, are told: the paper's numbers are on these."""
    if not any(SPLIT_HERE in record.identity["data"] for record in records):
        return []
    return ["Some runs are on images that were split here, without the publisher's lists: not the paper's split."]


def _published(domain: str) -> int:
    """Test frames of a whole scene, of both cameras."""
    return counts_of(FRAMES[DOMAINS[domain][0]]).test


def _sizes(records: Sequence[Record]) -> str:
    """Of what size frames are, in words; nothing where runs are too old to say."""
    sizes = {tuple(record.environment["images"]) for record in records if "images" in record.environment}
    return f" of {' and '.join(f'{width}x{height}' for height, width in sorted(sizes))}" if sizes else ""


def _range(counts: set[int]) -> str:
    return " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
