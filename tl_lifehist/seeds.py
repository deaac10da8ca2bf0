"""Seeds: every use of randomness has a stream of its own, and none of them is the global one."""

from __future__ import annotations

import numpy as np


def derive_seed(*parts: int) -> int:
    """One seed out of several numbers."""
    return int(np.random.SeedSequence([abs(int(p)) for p in parts]).generate_state(1)[0])
