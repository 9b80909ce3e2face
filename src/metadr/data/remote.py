"""Files that can be had from somewhere."""

from typing import NamedTuple


class RemoteFile(NamedTuple):
    """A file that a data set is published as."""

    name: str
    """Its path inside the data set's folder."""
    urls: tuple[str, ...]
    """Where it can be had: mirrors, to be tried in this order."""
    checksum: str | None = None
    """As 'md5:...' or 'sha256:...'; none where the publisher states none."""
    size: int | None = None
    """In bytes, where known."""
