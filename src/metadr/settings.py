"""Named settings: dataclass fields with a line of documentation, a type and a range, checked where they are made."""

import dataclasses
import functools
import math
import sys
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal

from metadr.errors import UserError, unknown


def setting(
    default: Any, doc: str, *, low: float | None = None, above: float | None = None, below: float | None = None
) -> Any:
    """A dataclass field that says what it means and what it may be.

    Args:
        default: the value unless told otherwise.
        doc: one line, shown by `metadr list`.
        low: the smallest allowed value.
        above: a bound that the value must exceed.
        below: a bound that the value must stay under.
    """
    return dataclasses.field(default=default, metadata={"doc": doc, "low": low, "above": above, "below": below})


def check(owner: Any) -> None:
    """Check every field of a frozen dataclass against its annotation and range; call it from `__post_init__`.

    A whole number given for a float becomes a float and a list a tuple, so that equal settings are equal values.
    """
    kind: type = type(owner)
    hints = _hints(kind)
    for field in dataclasses.fields(owner):
        value = _fit(getattr(owner, field.name), hints[field.name])
        if value is _MISFIT or not _in_range(value, field.metadata):
            raise _refusal(kind, field.name, getattr(owner, field.name))
        object.__setattr__(owner, field.name, value)


@functools.cache  # a table checks thousands of settings
def _hints(owner: type) -> dict[str, Any]:
    return typing.get_type_hints(owner)


def names(owner: type) -> tuple[str, ...]:
    """The names of a dataclass's settings."""
    return tuple(field.name for field in dataclasses.fields(owner))


def parse(owner: type, name: str, text: str) -> Any:
    """Read a setting's value from the command line, by the type that its field declares."""
    if name not in names(owner):
        raise unknown("field", name, names(owner), within=f" in {owner.__name__}")
    value = _read(text, _hints(owner)[name])
    if value is _MISFIT:
        raise _refusal(owner, name, text)
    return value


def assignments(texts: Iterable[str]) -> dict[str, str]:
    """What --set was given: 'field=value', each, as text."""
    assigned = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UserError(f"--set takes field=value, such as inner_lr=0.05. Got '{text}' instead.")
        assigned[name.strip()] = value.strip()
    return assigned


def describe(owner: type, name: str) -> str:
    """What a field allows, in words: 'a number >= 0'."""
    hint = _hints(owner)[name]
    field = next(field for field in dataclasses.fields(owner) if field.name == name)
    low, above, below = (field.metadata.get(name) for name in ("low", "above", "below"))
    bound = f" >= {low:g}" if low is not None else f" > {above:g}" if above is not None else ""
    bound += f" and < {below:g}" if below is not None else ""
    if type(None) in typing.get_args(hint):
        return (
            " or ".join(_in_words(kind) + bound for kind in typing.get_args(hint) if kind is not type(None))
            + ", or none"
        )
    return _in_words(hint) + bound


_MISFIT: Any = object()
_NOT_A_VALUE = ("none", "null", "")


def _refusal(owner: type, name: str, value: object) -> UserError:
    return UserError(
        f"The '{name}' parameter of {owner.__name__} must be {describe(owner, name)}. Got {value!r} instead."
    )


def _in_range(value: Any, bounds: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    low, above, below = (bounds.get(name) for name in ("low", "above", "below"))
    finite = isinstance(value, int) or math.isfinite(value)
    inside = (low is None or value >= low) and (above is None or value > above) and (below is None or value < below)
    return finite and inside


def _fit(value: Any, hint: Any) -> Any:
    """The value as the type `hint` asks for, or _MISFIT."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value if value in typing.get_args(hint) else _MISFIT
    if origin in (types.UnionType, typing.Union):
        fits = (_fit(value, option) for option in typing.get_args(hint))
        return next((fit for fit in fits if fit is not _MISFIT), _MISFIT)
    if origin is tuple:
        elements = typing.get_args(hint)
        if not isinstance(value, list | tuple):
            return _MISFIT
        if elements[-1] is Ellipsis:
            elements = elements[:1] * len(value)
        if len(elements) != len(value):
            return _MISFIT
        fitted = tuple(_fit(item, element) for item, element in zip(value, elements, strict=True))
        return _MISFIT if _MISFIT in fitted else fitted
    if hint is Any:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) <= sys.float_info.max else _MISFIT
    if hint is int and isinstance(value, bool):
        return _MISFIT
    return value if isinstance(value, hint) else _MISFIT


def _read(text: str, hint: Any) -> Any:
    """The text as a value of the type `hint`, or _MISFIT."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union):
        kinds = sorted(typing.get_args(hint), key=lambda kind: kind is not types.NoneType)  # 'none' is a text too
        options = (_read(text, option) for option in kinds)
        return next((value for value in options if value is not _MISFIT), _MISFIT)
    if origin is tuple:
        return tuple(item.strip() for item in text.split(",") if item.strip())
    if origin is Literal:
        return text if text in typing.get_args(hint) else _MISFIT
    if hint is types.NoneType:
        return None if text.lower() in _NOT_A_VALUE else _MISFIT
    if hint is bool:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
            text.lower(), _MISFIT
        )
    try:
        return hint(text)
    except ValueError:
        return _MISFIT


def _in_words(hint: Any) -> str:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return "one of " + ", ".join(repr(option) for option in typing.get_args(hint))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_in_words(option) for option in typing.get_args(hint))
    if origin is tuple:
        return "names separated by commas"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a name"}.get(
        hint, "none" if hint is types.NoneType else "a value"
    )
