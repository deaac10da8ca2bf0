"""One claim beside its null, as a row of the `claims` table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.metrics import exceedance_p, interval

COLUMNS = ["claim", "observed", "null", "low", "high", "p", "n", "verdict", "note"]
N_DRAWS = 1000  # of a null that is drawn (ours)
Tables = Mapping[str, pd.DataFrame]


def claim(
    name: str, observed: float, draws: NDArray[Any], n: int, note: str, *, two_sided: bool = False
) -> dict[str, Any]:
    """One row: the observed value, the null's mean and 95 % interval, p and verdict.

    "beyond" means that the observed value lies outside the null on the side the claim names (on either side when
    `two_sided`), at p <= 0.05; "within" that it does not; "not testable" that there is no null or no value.
    """
    draws = np.asarray(draws, dtype=float)
    draws = draws[np.isfinite(draws)]
    if len(draws) == 0 or not np.isfinite(observed):
        return untestable(name, observed, n, note)
    p = exceedance_p(observed, draws)
    if two_sided:
        p = min(1.0, 2 * min(p, exceedance_p(-observed, -draws)))
    low, high = interval(draws)
    verdict = "beyond" if p <= 0.05 else "within"
    return dict(zip(COLUMNS, (name, observed, float(draws.mean()), low, high, p, n, verdict, note), strict=True))


def untestable(name: str, observed: float, n: int, note: str) -> dict[str, Any]:
    """A row that says why there is no verdict."""
    nan = float("nan")
    return dict(zip(COLUMNS, (name, observed, nan, nan, nan, nan, n, "not testable", note), strict=True))
