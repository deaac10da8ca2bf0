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
