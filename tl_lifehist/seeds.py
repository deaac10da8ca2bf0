"""Seeds: every use of randomness has a stream of its own, and none of them is the global one."""

from __future__ import annotations

from typing import Any

import numpy as np

from tl_lifehist.errors import InputError
from tl_lifehist.setting_types import fitted


def study_seed(seed: Any) -> int:
    """The seed of a study as a whole number of Python's.

    Raises:
        InputError: no whole number, or one below 0.
    """
    held: int = fitted("seed", seed, int)
    if held < 0:
        raise InputError(f"seed={held} must not be below 0.")
    return held


def derive_seed(*parts: int) -> int:
    """One seed out of several numbers."""
    return int(np.random.SeedSequence([abs(int(p)) for p in parts]).generate_state(1)[0])
