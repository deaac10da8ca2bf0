"""A path over checkpoints: does it climb or fall, or does it only wander?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from tl_lifehist.nulls import Null

LEAST_CHECKPOINTS = 7  # ours: 64 sign patterns, so that a two-sided p can reach 0.031
EXACT = 12  # increments up to which every pattern of signs is tried
N_FLIPS = 2000

Floats = NDArray[np.float64]


def path_null(path: Floats, *, n_flips: int = N_FLIPS, seed: int = 0) -> Null:
    """Rank correlation of a path with its order, beside that of paths whose increments have their signs flipped.

    Checkpoints are no independent points: a random walk correlates with time by itself. Under a walk without direction
    the sign of each increment is a coin.

    Args:
        path: a value for each checkpoint, in order.
        n_flips: patterns of signs where there are too many to try all.
        seed: of the patterns.

    How it can mislead: a path that rises early and then rests is a trend of its first checkpoints. Fewer than seven
    checkpoints cannot reach a p of 0.05.
    """
    steps = np.diff(np.asarray(path, dtype=float))
    n = len(steps)
    if n <= EXACT:
        patterns = 1.0 - 2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        patterns = patterns[1:]  # the first is the path itself, which counts as observed
    else:
        patterns = np.random.default_rng(seed).choice([-1.0, 1.0], size=(n_flips, n))
    paths = np.concatenate([np.zeros((len(patterns), 1)), np.cumsum(patterns * steps, axis=1)], axis=1)
    observed = _with_order(np.concatenate([[0.0], np.cumsum(steps)])[None])
    return Null(float(observed[0]), _with_order(paths), rounding=1e-9)


def _with_order(paths: Floats) -> Floats:
    """Spearman correlation of each row with its positions; NaN for a constant row."""
    scale = np.abs(paths).max(axis=1, keepdims=True)
    ranks = rankdata(np.round(paths / np.where(scale > 0, scale, 1.0), 9), axis=1)
    order = np.arange(paths.shape[1], dtype=float)
    ranks, order = ranks - ranks.mean(axis=1, keepdims=True), order - order.mean()
    with np.errstate(invalid="ignore"):
        return (ranks @ order) / np.sqrt((ranks**2).sum(axis=1) * (order @ order))
