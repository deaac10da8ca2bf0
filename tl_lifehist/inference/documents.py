"""Documents as units: is a mean over text above zero on new text?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

LEAST_DOCUMENTS = 8  # ours: below, no bootstrap of documents holds its size
N_DRAWS = 1999
POWER = 0.8

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tested:
    """A mean with its interval and test.

    Attributes:
        mean: the mean.
        low: lower end of its 95 % interval.
        high: upper end.
        p: one-sided, of a mean this far above zero; NaN where there are too few units.
        detectable: the least mean that a one-sided test at 5 % finds four times out of five.
        n: units.
    """

    mean: float
    low: float = float("nan")
    high: float = float("nan")
    p: float = float("nan")
    detectable: float = float("nan")
    n: int = 0


def over_documents(
    totals: Floats,
    counts: Floats,
    *,
    n_draws: int = N_DRAWS,
    least: int = LEAST_DOCUMENTS,
    seed: int = 0,
) -> Tested:
    """The mean of a quantity over all positions of a text, tested on new text: bootstrap-t over documents.

    Args:
        totals: the sum of the quantity over each document's positions, `[document]`.
        counts: the positions of each document, `[document]`.
        n_draws: samples of documents.
        least: documents below which nothing is tested (ours).
        seed: of the samples.

    How it can mislead: it says what other documents of the same kind would give for these very masks, SAEs and this
    model, nothing about another training of any of them. Where few documents hold most of the effect it rejects too
    often: 10 % at 16 log-normal documents.
    """
    kept = np.isfinite(totals) & (counts > 0)
    totals, counts = np.asarray(totals, dtype=float)[kept], np.asarray(counts, dtype=float)[kept]
    n = len(totals)
    if n == 0:
        return Tested(float("nan"))
    mean, error = (float(v[0]) for v in _ratio(totals[None], counts[None]))
    if n < least or not error > 0:
        return Tested(mean, n=n)
    picked = np.random.default_rng(seed).integers(0, n, size=(n_draws, n))
    means, errors = _ratio(totals[picked], counts[picked])
    varied = errors > 1e-9 * error
    drawn = (means[varied] - mean) / errors[varied]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Tested(
        mean=mean,
        low=mean - float(high) * error,
        high=mean - float(low) * error,
        p=float((1 + (drawn >= mean / error).sum()) / (len(drawn) + 1)),
        detectable=detectable_mean(error, n),
        n=n,
    )


def over_units(values: Floats, *, least: int = 3) -> Tested:
    """The mean over a handful of units that are alike and independent, such as hook points: Student's t.

    Args:
        values: one a unit; those that are not finite are left out.
        least: units below which nothing is tested (ours).

    How it can mislead: hook points of one model share their text and their training; the test takes what they have in
    common for the effect.
    """
    kept = np.asarray(values, dtype=float)
    kept = kept[np.isfinite(kept)]
    n = len(kept)
    if n == 0:
        return Tested(float("nan"))
    mean, error = float(kept.mean()), float(kept.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0
    if n < least or not error > 1e-12 * abs(mean):
        return Tested(mean, n=n)
    reach = float(student.ppf(0.975, n - 1)) * error
    return Tested(
        mean, mean - reach, mean + reach, float(student.sf(mean / error, n - 1)), detectable_mean(error, n), n
    )


def detectable_mean(error: float, n: int, *, level: float = 0.05, power: float = POWER) -> float:
    """The least mean that a one-sided t-test of `n` units at `level` finds with probability `power`."""
    return float(student.ppf(1 - level, n - 1) + student.ppf(power, n - 1)) * error


def _ratio(totals: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Mean per position and its standard error, linearised, for each row of documents."""
    n = totals.shape[1]
    whole = counts.sum(axis=1)
    mean = totals.sum(axis=1) / whole
    rest = totals - mean[:, None] * counts
    return mean, np.sqrt((rest**2).sum(axis=1) * n / max(n - 1, 1)) / whole
