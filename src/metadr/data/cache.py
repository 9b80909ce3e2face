"""Decoded images as files that open memory-mapped: one safetensors file per (what, how, from which files)."""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from metadr.errors import UserError
from metadr.files import told, write_file

log = logging.getLogger("metadr")

FORMAT = 1  # of the files below; part of their names


class Entry(NamedTuple):
    """Tensors that lie in a file, and what is known of them."""

    tensors: dict[str, Tensor]
    about: dict[str, Any]
    content: str
    """SHA-256 of every tensor's name, shape, type and bytes."""
    path: Path


def cached(
    folder: Path,
    name: str,
    settings: Mapping[str, Any],
    inputs: str,
    make: Callable[[], tuple[dict[str, Tensor], dict[str, Any]]],
    *,
    checked: bool = False,
) -> Entry:
    """Open the entry for these inputs, made first where there is none or the one there is damaged.

    Args:
        folder: where the cache lies.
        name: what is cached.
        settings: how it is decoded, as JSON.
        inputs: the fingerprint of the files it is made from. An entry made from others is replaced.
        make: decodes it: the tensors, and what to remember of them as JSON.
        checked: compare every byte with the hash that was stored; otherwise only the file's structure is looked at.
    """
    stem = f"{name}-{short_hash({'format': FORMAT, 'settings': dict(settings)}, 8)}"
    path = folder / f"{stem}-{inputs}.safetensors"
    entry = _open(path, checked)
    if entry is not None:
        return entry
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{stem}.lock"):
        entry = _open(path, checked, loud=True)  # another process may have made it while this one waited
        if entry is None:
            tensors, about = make()
            _write(path, tensors, about)
            for old in folder.glob(f"{stem}-*.safetensors*"):
                if old != path:
                    old.unlink(missing_ok=True)  # whoever has it open keeps it
            entry = _open(path, checked=False)
    if entry is None:
        raise UserError(f"{path} vanished as soon as it was written. Do not remove files of a cache while it is used.")
    return entry


def fingerprint(paths: Iterable[str | Path]) -> str:
    """A hash of the files' names, sizes and times of change: quick, and enough to notice that a copy was replaced."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            stat = os.stat(path)  # noqa: PTH116 (making 20,000 Paths would take longer than asking for the files)
            digest.update(f"{os.path.basename(path)}\0{stat.st_size}\0{stat.st_mtime_ns}\n".encode())  # noqa: PTH119
        except OSError:
            digest.update(f"{path}\0unreadable\n".encode())  # who reads it will say why
    return digest.hexdigest()[:16]


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of every tensor's name, shape, type and bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def short_hash(value: Any, length: int) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


_SOUND: dict[
    Path, tuple[int, int]
] = {}  # what this process has compared byte by byte, and when the file had changed last


def _moment(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _open(path: Path, checked: bool, *, loud: bool = False) -> Entry | None:
    """The entry in a file; none where there is no file, or it is damaged."""
    try:
        # The tensors are views of the mapped file: nothing is read before it is used.
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        entry = Entry(tensors, json.loads(metadata["about"]), metadata["content"], path)
        if checked and _SOUND.get(path) != (moment := _moment(path)):
            if content_hash(tensors) != entry.content:
                raise ValueError("its hash differs")
            _SOUND[path] = moment
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}. Make it readable or remove it.") from None
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        if loud:
            log.warning("%s is damaged (%s): decoding it anew.", path, error)
        return None
    return entry


def _write(path: Path, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
    """All of it or nothing: a new file beside it, synced, then renamed into place."""
    metadata = {"about": json.dumps(about), "content": content_hash(tensors)}
    data = save({name: value.contiguous() for name, value in tensors.items()}, metadata=metadata)
    write_file(path, data)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that the system lets go of when the process dies, however it dies."""
    with told(path):
        handle = path.open("a")
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("Waiting for another process that decodes the same data (%s).", path)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
