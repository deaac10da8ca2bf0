"""The one error a user's input can cause: a sentence that says what was wrong and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """What was given cannot be worked with. The message is one sentence for a person, with the remedy."""


def nearest(name: object, known: Iterable[object], n: int = 3) -> str:
    """The known names most like `name`, joined for an error message."""
    names = [str(k) for k in known]
    close = difflib.get_close_matches(str(name), names, n=n, cutoff=0.0)
    return ", ".join(close) if close else "none"


def one_of(name: str, value: object, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices.

    Raises:
        InputError: e.g. `mode='half' is unknown: use "zero", "mean" or "resample".`
    """
    known = list(choices)
    if value not in known:
        *first, last = [f'"{choice}"' for choice in known]
        raise InputError(f"{name}={value!r} is unknown: use {', '.join(first)} or {last}.")
