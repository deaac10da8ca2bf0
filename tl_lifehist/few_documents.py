"""What a text of too few documents for an interval is told, on the line of the caller's own code."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.metrics import MIN_GROUPS

_OURS = ("tl_lifehist.", "torch.", "jaxtyping.", "beartype.")  # the others' are wrappers: no_grad, checks of shapes


def too_few(documents: NDArray[Any]) -> str:
    """How many there are and how many an interval needs; empty where they are enough."""
    found = len(np.unique(documents))
    if found >= MIN_GROUPS:
        return ""
    held = "1 document" if found == 1 else f"{found} documents"
    return f"the scored positions lie in {held}, and an interval over documents needs {MIN_GROUPS}"


def warn_of_few(documents: NDArray[Any], what: str) -> None:
    """Warn that the interval `what` is NaN where the documents are fewer than `MIN_GROUPS`."""
    reason = too_few(documents)
    if not reason:
        return
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        frame, level = frame.f_back, level + 1
    message = f"{what} is NaN: {reason}. Take windows from more documents, as in tokens[::4]."
    warnings.warn(message, UserWarning, stacklevel=level)
