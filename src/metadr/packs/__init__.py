"""Runs of a folder as one file, for another machine to report on or to go on from; the network of one as another."""

from metadr.packs.pack import Only, Packed, pack
from metadr.packs.unpack import Unpacked, unpack
from metadr.packs.weights import Written, beginning, unlike_images, write_weights

__all__ = ["Only", "Packed", "Unpacked", "Written", "beginning", "pack", "unlike_images", "unpack", "write_weights"]
