"""Spearman correlation in many samples at once: the bootstrap and the permutations of trajectories."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def spearman(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Spearman of x and y `[cell]` in samples that hold cell i `weights[draw, i]` times; NaN where x or y is constant.

    The order of the values is the same in all samples, so ranks come from cumulated counts and nothing is sorted anew.
    """
    a, b = _centred_ranks(x, weights), _centred_ranks(y, weights)
    return _over((weights * a * b).sum(axis=1), (weights * a**2).sum(axis=1) * (weights * b**2).sum(axis=1))


def _centred_ranks(values: Floats, weights: Floats) -> Floats:
    """Mid-ranks minus their mean, `[draw, cell]`."""
    _, level = np.unique(values, return_inverse=True)
    order = np.argsort(level, kind="stable")
    starts = np.flatnonzero(np.diff(level[order], prepend=-1))
    return _mid_ranks(np.add.reduceat(weights[:, order], starts, axis=1))[:, level]


def _mid_ranks(counts: Floats) -> Floats:
    """Centred mid-rank of each value in order, from how often it occurs: `[draw, value]`."""
    below = np.cumsum(counts, axis=1) - counts
    return below + counts / 2 - counts.sum(axis=1, keepdims=True) / 2


def reordered(x: Floats, y: Floats, n_draws: int, rng: np.random.Generator) -> Floats:
    """Spearman with the distinct values of x put in random order, each keeping its cells: `[draw]`."""
    _, level, count = np.unique(x, return_inverse=True, return_counts=True)
    order = rng.permuted(np.tile(np.arange(len(count)), (n_draws, 1)), axis=1)
    ranks = _mid_ranks(count[order].astype(np.float64))  # of the level that comes at each place
    y_ranks = _centred_ranks(y, np.ones((1, len(y))))[0]
    by_level = np.bincount(level, weights=y_ranks)
    return _over((ranks * by_level[order]).sum(axis=1), (count[order] * ranks**2).sum(axis=1) * (y_ranks**2).sum())


def _over(covariance: Floats, variances: Floats) -> Floats:
    positive = variances > 0
    root = np.sqrt(np.where(positive, variances, 1.0))
    return np.where(positive, np.clip(covariance / root, -1, 1), np.nan)
