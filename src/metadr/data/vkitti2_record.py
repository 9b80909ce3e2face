"""The record beside rendered scenes, `vkitti2.json`: what they are, how they were made, which are complete."""

import json
import shlex
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

from metadr.data.source import data_root
from metadr.errors import UserError
from metadr.vkitti2_classes import CONDITIONS

NAME = "vkitti2"
RENDERED = f"{NAME}-rendered"  # the benchmark on scenes of ours in the same layout, and their folder in the data root
BUILD = f"metadr data build {NAME}"
IDENTITY = ("size", "frames", "seed", "revision")  # what decides every pixel: renderings that differ are not mixed


class Record(NamedTuple):
    """What a stand-in says of itself; that it is one is all that it must say."""

    path: Path
    content: dict[str, Any]

    @property
    def size(self) -> str:
        """WIDTHxHEIGHT; nothing where the record does not say."""
        return "x".join(map(str, self.content.get("size", ())))

    def is_complete(self, scene: str, condition: str) -> bool:
        """Whether a scene was rendered to its end; so it is where a record does not say which were."""
        return "complete" not in self.content or condition in self.content["complete"].get(scene, ())

    def command(self, scene: str = "", conditions: Collection[str] = CONDITIONS) -> str:
        """The command that renders what is lacking, of a scene or of all; nothing where it is not of `data build`."""
        if any(name not in self.content for name in (*IDENTITY, "complete")):
            return ""
        frames, seed, folder = self.content["frames"], self.content["seed"], self.path.parent
        words = ["--size", self.size]
        words += ["--frames", str(frames)] if frames else []
        words += ["--seed", str(seed)] if seed else []
        words += ["--scenes", scene.removeprefix("Scene")] if scene else []
        if set(conditions) != set(CONDITIONS):
            words += ["--conditions", ",".join(each for each in CONDITIONS if each in conditions)]
        if folder.resolve() != (data_root() / RENDERED).resolve():
            words += ["--out", shlex.quote(str(folder))]
        return " ".join([BUILD, *words])


def read_record(path: Path) -> Record:
    """A record, or one sentence on why it is none: what cannot be read must not count as complete."""
    content = _loaded(path)
    if content is None or not all(good(content[name]) for name, good in _GOOD.items() if name in content):
        raise UserError(
            f"'{path}' cannot be read, so nobody knows what is beside it. Restore it, or remove the folder and render "
            f"it anew with '{BUILD}'."
        )
    return Record(path, content)


def difference(before: Record, new: Record) -> str:
    """How a rendering differs from another, in words; nothing where they are of one."""
    names = IDENTITY if any(name in before.content or name in new.content for name in IDENTITY) else ("what",)
    pairs = {name: (before.content.get(name), new.content.get(name)) for name in names}
    return ", ".join(f"{name} {was}, not {now}" for name, (was, now) in pairs.items() if was != now)


def what_of(path: Path) -> str:
    """What a stand-in is, in its own words."""
    return str((_loaded(path) or {}).get("what", f"made by someone ({path.name} cannot be read)"))


def _loaded(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_GOOD: dict[str, Callable[[Any], bool]] = {
    "size": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_int, value)),
    "frames": lambda value: value is None or (_is_int(value) and value > 0),
    "seed": _is_int,
    "revision": _is_int,
    "complete": lambda value: isinstance(value, dict) and all(isinstance(each, list) for each in value.values()),
}
