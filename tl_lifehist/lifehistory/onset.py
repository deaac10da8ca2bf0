"""The checkpoint that carriers are predicted from, as a setting."""

from __future__ import annotations

from collections.abc import Sequence

from tl_lifehist.errors import InputError


def require_onset(onset: int | None, steps: Sequence[int]) -> None:
    """Refuse an onset that is no checkpoint."""
    if onset is not None and onset not in steps:
        raise InputError(f"onset={onset} is no step of the series, which has {list(steps)}: name one of these.")
