"""Runs of a folder as one file, for another machine to report on or to go on from."""

from metadr.packs.pack import Only, Packed, pack
from metadr.packs.unpack import Unpacked, unpack

__all__ = ["Only", "Packed", "Unpacked", "pack", "unpack"]
