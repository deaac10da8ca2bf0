"""Drawing equals: for each value one of the nearest others within a distance, without replacement (D19)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

N_NEAREST = 10
CALIPER = 0.25  # decades of a firing rate or a mass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def draw_within_caliper(
    wanted: Floats,
    pool: Floats,
    rng: np.random.Generator,
    *,
    n_nearest: int = N_NEAREST,
    caliper: float = CALIPER,
    or_nearest: bool = False,
) -> tuple[Ints, Ints]:
    """One value of the pool for each wanted one: which of `wanted` found an equal, and which of `pool` it is.

    In random order, each takes one at random of the `n_nearest` free values within `caliper` (equally near ones in the
    pool's order), and what is taken is no longer free.

    Args:
        wanted: `[w]`, on the scale that the caliper is measured on.
        pool: `[p]`, on the same scale.
        rng: makes every choice.
        or_nearest: where nothing free lies within the caliper take the nearest free value, whatever its distance.

    Returns:
        Two arrays of indices of one length, in the order of the draws.

    How it can mislead: who comes last finds least, and where `wanted` are about as many as the pool the draws hardly
    differ: look at how many found nothing and at the balance of what was drawn.
    """
    order = np.argsort(pool, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    start, stop = _window(pool[order], wanted, caliper)
    free = np.ones(len(pool), dtype=bool)  # by rank: a window is then a slice, and most of the pool is never looked at
    kept, picked = [], []
    for i in rng.permutation(np.arange(len(wanted))).tolist():
        near, limit = order[start[i] : stop[i]][free[start[i] : stop[i]]], n_nearest
        if not len(near) and or_nearest:
            near, limit = order[free], 1
        if not len(near):
            continue
        near = np.sort(near)
        nearest = near[np.argsort(np.abs(pool[near] - wanted[i]), kind="stable")[:limit]]
        kept.append(i)
        picked.append(int(nearest[rng.integers(len(nearest))]))
        free[rank[picked[-1]]] = False
    return np.array(kept, dtype=np.int64), np.array(picked, dtype=np.int64)


def n_without_equal(wanted: Floats, pool: Floats, *, caliper: float = CALIPER) -> int:
    """How many of the wanted values have nothing of the pool within the caliper."""
    start, stop = _window(np.sort(pool), wanted, caliper)
    return int((start == stop).sum())


def _window(ordered: Floats, wanted: Floats, caliper: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.searchsorted(ordered, wanted - caliper, "left"), np.searchsorted(ordered, wanted + caliper, "right")
