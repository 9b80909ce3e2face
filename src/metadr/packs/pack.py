"""Pack runs. A pack is a .tar.gz in pieces: the manifest, one piece per run, the end; each a gzip stream of its own.

So a run is read once and compressed once, and how many fit into one file is known before any is written. The same runs
give the same bytes: names are sorted, and no time, owner or mode is kept.
"""

import gzip
import hashlib
import json
import logging
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from metadr.errors import UserError
from metadr.files import told, write_file
from metadr.packs.content import FORMAT, MANIFEST, as_file, is_named_after, newest_moment, run_folders

log = logging.getLogger("metadr")

Only = Literal["finished", "unfinished", "all"]
CHUNK = 1 << 20  # bytes copied at once
FRAME = 4096  # bytes: more than a pack takes besides its runs and the manifest's lines on them


class Packed(NamedTuple):
    """What was packed, and what was left out because it cannot be read."""

    files: list[Path]
    finished: int
    unfinished: int
    checkpoints: int
    left_out: int


class _Piece(NamedTuple):
    """One run, packed: where its bytes are in the spool, and its lines of the manifest."""

    name: str
    start: int
    size: int
    hashes: dict[str, str]

    @property
    def needs(self) -> int:
        """Bytes of a file, at most."""
        return self.size + len(_json({self.name: self.hashes}))


def pack(
    file: str | Path,
    *,
    out: str | Path = "runs",
    only: Only = "all",
    light: bool = False,
    checkpoints: bool = False,
    max_size: int | None = None,
) -> Packed:
    """Write the runs below a folder to a file, whole or not at all.

    No run is locked or stopped: one that is going on is packed as of its newest checkpoint. That is safe, because its
    files appear whole, a checkpoint's name has its hash, and the scores so far are taken from the checkpoint itself.

    Args:
        file: where to; several files FILE-1, FILE-2 and so on if one would be larger than `max_size`.
        out: folder of runs.
        only: finished or unfinished ones, or all.
        light: no checkpoint of any run; unfinished ones would start afresh.
        checkpoints: also the last checkpoint, with the weights, of finished runs.
        max_size: bytes of a file, at most.
    """
    file, root = Path(file), Path(out)
    if light and checkpoints:
        raise UserError("--light leaves all checkpoints out and --checkpoints takes more of them. Give one of the two.")
    if file.is_dir():
        raise UserError(f"{file} is a folder. Give the file to write, such as {file / 'runs.tar.gz'}.")
    if not root.is_dir():
        raise UserError(f"No folder {root}. Give a folder of runs, such as the --out of 'metadr run'.")
    with told(root, "read"):
        folders = list(run_folders(root))
    with told(file), tempfile.TemporaryFile(dir=file.parent) as spool:  # it has no name: a kill leaves nothing
        pieces, left_out = _spool(root, folders, spool, only, light=light, checkpoints=checkpoints)
        if not pieces:
            raise UserError(
                f"No {'' if only == 'all' else only + ' '}runs in {root}"
                f"{f' that can be read ({left_out} cannot)' if left_out else ''}. Nothing was packed: "
                "give the folder of another --out."
            )
        groups = _split(pieces, max_size)
        files = [file] if len(groups) == 1 else [_numbered(file, number) for number in range(1, len(groups) + 1)]
        for target, group in zip(files, groups, strict=True):
            write_file(target, _pack_of(group, spool))
    finished = sum("done.json" in piece.hashes for piece in pieces)
    num_checkpoints = sum(name.startswith("checkpoint-") for piece in pieces for name in piece.hashes)
    return Packed(files, finished, len(pieces) - finished, num_checkpoints, left_out)


def _spool(
    root: Path, folders: list[Path], spool: IO[bytes], only: Only, *, light: bool, checkpoints: bool
) -> tuple[list[_Piece], int]:
    """Write every run's piece to the spool; how many cannot be read comes with them."""
    pieces: dict[str, _Piece] = {}
    left_out = 0
    for folder in folders:
        if only != "all" and (only == "finished") != (folder / "done.json").exists():
            continue
        try:
            contents = _contents(folder, light=light, checkpoints=checkpoints)
            name = _name(folder, root, json.loads(contents["recipe.json"]))
            if name in pieces:
                raise ValueError(f"there is another {name}")
        except (UserError, ValueError) as error:
            log.warning("%s is left out: %s", folder, error)
            left_out += 1
            continue
        blob = _compressed({f"{name}/{each}": data for each, data in contents.items()})
        hashes = {each: hashlib.sha256(data).hexdigest() for each, data in contents.items()}
        pieces[name] = _Piece(name, spool.tell(), spool.write(blob), hashes)
    return [pieces[name] for name in sorted(pieces)], left_out


def _name(folder: Path, root: Path, identity: dict[str, Any]) -> str:
    """Where a run is below the folder of runs; always within its benchmark's, also if `root` is that or the run."""
    relative = folder.relative_to(root)
    return relative.as_posix() if len(relative.parts) > 1 else f"{identity['benchmark']}/{folder.resolve().name}"


def _contents(folder: Path, *, light: bool, checkpoints: bool) -> dict[str, bytes]:
    """The files of a run as they go into a pack; a ValueError says why it cannot be one."""
    found = {}
    for name in ("done.json", "recipe.json", "environment.json", "failed.json", "rows.json"):  # done.json first:
        with told(folder / name, "read"):  # where it is, the others do not change any more
            if (data := _read(folder / name)) is not None:
                found[name] = data
    parsed = {name: _parsed(name, data) for name, data in found.items()}
    name, identity = folder.resolve().name, parsed.get("recipe.json")
    if not is_named_after(name, identity):
        raise ValueError("its name does not end with the key of its recipe.json")
    finished = "done.json" in found
    if finished and not {"rows.json", "environment.json"} <= found.keys():
        raise ValueError("it is marked as done, but has no rows.json or no environment.json")
    moment = newest_moment(folder) if not light and (checkpoints or not finished) else None
    if moment and not name.endswith(f"-{moment.position['key']}"):
        raise ValueError(f"its {moment.name} belongs to another recipe")
    if finished:
        if moment and moment.position["rows"] == parsed["rows.json"]:  # its own last one
            found[moment.name] = moment.data
    elif moment:
        found |= {moment.name: moment.data, "rows.json": as_file(moment.position["rows"])}
    return dict(sorted(found.items()))


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _parsed(name: str, data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {name} is damaged ({error})") from None


def _split(pieces: list[_Piece], max_size: int | None) -> list[list[_Piece]]:
    groups: list[list[_Piece]] = [[]]
    size = FRAME
    for piece in pieces:
        if max_size is not None and FRAME + piece.needs > max_size:
            raise UserError(
                f"Run {piece.name} alone takes {FRAME + piece.needs} bytes, more than --max-size {max_size}. "
                "Nothing was packed: allow more, or leave checkpoints out with --light."
            )
        if max_size is not None and size + piece.needs > max_size:
            groups.append([])
            size = FRAME
        groups[-1].append(piece)
        size += piece.needs
    return groups


def _numbered(file: Path, number: int) -> Path:
    suffix = next((each for each in (".tar.gz", file.suffix) if file.name.endswith(each)), "")
    return file.with_name(f"{file.name.removesuffix(suffix)}-{number}{suffix}")


def _pack_of(pieces: list[_Piece], spool: IO[bytes]) -> Iterator[bytes]:
    runs = {piece.name: piece.hashes for piece in pieces}
    yield _compressed({MANIFEST: _json({"format": FORMAT, "count": len(runs), "runs": runs})})
    for piece in pieces:
        spool.seek(piece.start)
        for start in range(0, piece.size, CHUNK):
            yield spool.read(min(CHUNK, piece.size - start))
    yield gzip.compress(bytes(2 * tarfile.BLOCKSIZE), mtime=0)  # the end of a tar


def _compressed(members: dict[str, bytes]) -> bytes:
    blocks = []
    for name, data in members.items():
        header = tarfile.TarInfo(name)
        header.size = len(data)
        blocks += [header.tobuf(tarfile.PAX_FORMAT), data, bytes(-len(data) % tarfile.BLOCKSIZE)]
    return gzip.compress(b"".join(blocks), 6, mtime=0)


def _json(content: object) -> bytes:
    return (json.dumps(content, indent=1, sort_keys=True) + "\n").encode()
