"""An observed value beside what a null gives: the same mean, interval and p everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from tl_lifehist.metrics import exceedance_p, interval


@dataclass(frozen=True, eq=False)
class Null:
    """An observed value and draws from its null. Draws that are not finite count as not drawn.

    Attributes:
        observed: the value that was measured; NaN where the draws alone matter.
        draws: the same quantity under the null, one value a draw.
        rounding: by how much a draw may fall short of `observed` and still count as equal (and exceed it, on the other
            side), for quantities whose last bits depend on the order of a sum.

    How it can mislead: p says how rare the value is under this null, and a null that lacks what everybody expects is
    beaten by anything. With n draws no p lies below 1 / (n + 1).
    """

    observed: float
    draws: NDArray[Any]
    rounding: float = 0.0

    @cached_property
    def _drawn(self) -> NDArray[np.float64]:
        draws = np.asarray(self.draws, dtype=float)
        return draws[np.isfinite(draws)]

    @property
    def n(self) -> int:
        """How many draws there are."""
        return len(self._drawn)

    @property
    def mean(self) -> float:
        """Mean of the draws; NaN where there is none."""
        return float(self._drawn.mean()) if self.n else float("nan")

    @property
    def sd(self) -> float:
        """Standard deviation of the draws (over n, not n - 1); NaN where there is none."""
        return float(self._drawn.std()) if self.n else float("nan")

    @property
    def low(self) -> float:
        """Lower end of the central 95 % of the draws; NaN where there is none."""
        return interval(self._drawn)[0]

    @property
    def high(self) -> float:
        """Upper end of the central 95 % of the draws; NaN where there is none."""
        return interval(self._drawn)[1]

    @property
    def shifted(self) -> tuple[float, float]:
        """The 95 % interval of observed less null: the null's own spread, moved to where the value was observed."""
        low, high = interval(self._drawn - self.mean)
        return self.observed - self.mean - high, self.observed - self.mean - low

    @property
    def p(self) -> float:
        """One-sided: (1 + number of draws at least as large) / (n + 1); NaN without draws or an observed value."""
        return exceedance_p(self.observed - self.rounding, self._drawn) if self._testable else float("nan")

    @property
    def p_low(self) -> float:
        """One-sided towards small values: (1 + number of draws at most as large) / (n + 1)."""
        return exceedance_p(-self.observed - self.rounding, -self._drawn) if self._testable else float("nan")

    @property
    def p_two_sided(self) -> float:
        """Twice the smaller one-sided p, at most 1."""
        return min(1.0, 2 * min(self.p, self.p_low)) if self._testable else float("nan")

    @property
    def detectable(self) -> float:
        """How far above the mean a value must lie to be found at a one-sided p of 0.05 four times out of five, where
        such values scatter as the draws do and these are near normal; NaN without draws.
        """
        return (norm.ppf(0.95) + norm.ppf(0.8)) * self.sd

    @property
    def _testable(self) -> bool:
        return self.n > 0 and bool(np.isfinite(self.observed))
