"""A domain as a list: a .csv file with the columns path, label and, where there is a split, split."""

import csv
import io
import os
from pathlib import Path
from typing import NamedTuple

from metadr.data.source import reading
from metadr.errors import UserError

COLUMNS = ("path", "label", "split")
SPLITS = ("train", "test")


class Row(NamedTuple):
    """An image that a list names."""

    name: str  # where it lies, seen from the list; as written, where that is elsewhere
    path: Path
    label: str
    split: str


def read_list(path: Path) -> list[Row]:
    """The rows of a list, in order; a path that is not absolute begins at the folder of the list."""
    with reading(path):
        data = path.read_bytes()
    rows: list[Row] = []
    lines: dict[Path, int] = {}
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True)
        columns = _columns(path, next(reader, None))
        for cells in reader:
            if not cells:
                continue
            row = _row(path, reader.line_num, columns, cells)
            if row.path in lines:
                raise _wrong(path, reader.line_num, f"{row.name} is in line {lines[row.path]} already")
            lines[row.path] = reader.line_num
            rows.append(row)
    except (csv.Error, UnicodeDecodeError) as error:
        raise UserError(
            f"{path} is not a list of images ({error}). Write it as UTF-8 text with commas, and columns path and label."
        ) from None
    if not rows:
        raise UserError(f"{path} names no images. Write a line 'path,label' for each image, or remove it.")
    return rows


def _columns(path: Path, head: list[str] | None) -> list[str]:
    columns = [cell.strip() for cell in head or ()]
    missing = [name for name in ("path", "label") if name not in columns]
    if missing:
        raise UserError(
            f"{path} has no column '{missing[0]}' in its first line. That line must name the columns: path,label or "
            "path,label,split."
        )
    if len(set(columns)) < len(columns):
        raise UserError(f"{path} names a column twice in its first line. Give every column a name of its own.")
    return columns


def _row(path: Path, number: int, columns: list[str], cells: list[str]) -> Row:
    if len(cells) != len(columns):
        raise _wrong(path, number, f"it has {len(cells)} cells for {len(columns)} columns")
    values = {name: cell.strip() for name, cell in zip(columns, cells, strict=True)}
    for name in COLUMNS:
        if name in values and not values[name]:
            raise _wrong(path, number, f"its {name} is empty")
    split = values.get("split", "train")
    if split not in SPLITS:
        raise _wrong(path, number, f"its split is '{split}', not train or test")
    if "\0" in values["path"]:
        raise _wrong(path, number, "its path holds a zero byte")
    image = Path(os.path.normpath(path.parent / values["path"]))
    with reading(image):
        if image.is_dir():
            raise _wrong(path, number, f"{image} is a folder, not an image")
        if not image.exists():
            raise _wrong(path, number, f"there is no file {image}")
    if not image.is_relative_to(path.parent):  # as it is written; it may lead back here through links
        image = Path(os.path.realpath(image.parent), image.name)
    inside = image.is_relative_to(path.parent)
    return Row(image.relative_to(path.parent).as_posix() if inside else values["path"], image, values["label"], split)


def _wrong(path: Path, number: int, what: str) -> UserError:
    return UserError(f"{path}, line {number}: {what}. Correct or remove the line.")
