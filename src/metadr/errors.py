"""Mistakes a user can make, each told in one sentence: what, which value, what is allowed, what to do next."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

MOST_NAMES = 40  # in a sentence, of what is listed nowhere else


class UserError(Exception):
    """Something the caller can put right. The command line prints it as it is and exits with 2."""


class NoRoom(UserError):
    """A device has no memory left for what is asked; it may have when less is running beside it."""


def unknown(kind: str, name: object, known: Iterable[str], *, within: str = "", hint: str = "") -> UserError:
    """The error for a name that does not exist, with the closest one that does.

    >>> str(unknown("part", "drr", ["dr", "ewc"], within=" in method 'ewc+drr'"))
    "No part 'drr' in method 'ewc+drr'. Closest: 'dr'."
    """
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    told = [f"No {kind} '{name}'{within}."]
    if close:
        told.append(f"Closest: '{close[0]}'.")
    elif not hint or len(names) <= MOST_NAMES:
        shown = names if len(names) <= MOST_NAMES else [*names[:MOST_NAMES], f"and {len(names) - MOST_NAMES} more"]
        told.append(f"Known: {', '.join(shown) or 'none'}.")
    return UserError(" ".join([*told, *([hint] if hint else [])]))


class Problems:
    """What is wrong with several things, one after another, to be told all at once.

    `with problems.kept(): ...` for each of them, then `problems.tell()`.
    """

    def __init__(self) -> None:
        self._told: dict[str, None] = {}

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except UserError as error:
            self._told[str(error)] = None

    def tell(self) -> None:
        if self._told:
            raise UserError(" ".join(self._told))
