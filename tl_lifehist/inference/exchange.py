"""Labels exchanged among equals: does a marked set of features differ from others of like mass or rate?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.nulls import Null

BLOCK = 8  # neighbours in log mass (ours): wider blocks reject too often, narrower ones hold few of both labels
CALIPER = 0.25  # decades of a mass or a rate that a block spans at most (ours)

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Strata:
    """Groups of like items, each with both labels, within which a label is exchanged.

    Attributes:
        labels: which items are marked, `[item]`.
        groups: indices of the items of each group.
    """

    labels: Bools
    groups: Sequence[Ints]

    @property
    def inside(self) -> Bools:
        """Which items can be exchanged at all, `[item]`."""
        inside = np.zeros(len(self.labels), dtype=bool)
        for group in self.groups:
            inside[group] = True
        return inside

    @property
    def marked(self) -> Bools:
        """The marked items that have an equal: what the draws are compared with."""
        return self.labels & self.inside

    @property
    def unmatched_share(self) -> float:
        """Share of the marked items without an equal; NaN where nothing is marked."""
        return 1 - float(self.marked.sum() / self.labels.sum()) if self.labels.any() else float("nan")

    def draws(self, n_draws: int, rng: np.random.Generator) -> Bools:
        """Marked sets under exchange, `[draw, item]`: as many marked items in each group as there are."""
        found = np.zeros((n_draws, len(self.labels)), dtype=bool)
        rows = np.arange(n_draws)[:, None]
        for group in self.groups:
            count = int(self.labels[group].sum())
            order = rng.random((n_draws, len(group))).argsort(axis=1)[:, :count]
            found[rows, group[order]] = True
        return found


def strata_of(
    labels: Bools,
    within: NDArray[np.generic],
    values: Floats | None = None,
    *,
    block: int = BLOCK,
    caliper: float = CALIPER,
) -> Strata:
    """Items of one layer in blocks of neighbouring values; blocks of a single label are left out.

    Args:
        labels: which items are marked, `[item]`.
        within: the layer of each item, `[item]`; labels never leave it.
        values: what makes items equal, on the scale that `caliper` is measured on, `[item]`. None: all items of a
            layer are equals.
        block: items of a block at most.
        caliper: how far the values of a block lie apart at most.

    How it can mislead: within a block the marked items may still be the upper ones, and so be the heavier ones; take
    the slope on the sets' total out as well (`without_slope`).
    """
    blocks = blocks_of(within, values, block=block, caliper=caliper)
    return Strata(np.asarray(labels, dtype=bool), [b for b in blocks if labels[b].any() and not labels[b].all()])


def blocks_of(
    within: NDArray[np.generic], values: Floats | None, *, block: int = BLOCK, caliper: float = CALIPER
) -> list[Ints]:
    """Items of one layer in blocks of neighbouring values; see `strata_of`."""
    found: list[Ints] = []
    for layer in np.unique(within):
        items = np.flatnonzero(within == layer)
        if values is None:
            found.append(items)
        else:
            items = items[np.argsort(values[items], kind="stable")]
            found += _blocks(items, values[items], block, caliper)
    return found


def shuffled_within(blocks: Sequence[Ints], n: int, rng: np.random.Generator) -> Ints:
    """An order of `n` items that moves each within its block, those of no block staying where they are."""
    order = np.arange(n)
    for items in blocks:
        order[items] = rng.permutation(items)
    return order


def _blocks(items: Ints, ordered: Floats, block: int, caliper: float) -> list[Ints]:
    """Runs of values that no gap wider than the caliper parts, cut into blocks of equal size."""
    found, start = [], 0
    while start < len(items):
        stop = start + int(np.searchsorted(ordered[start:], ordered[start] + caliper, "right"))
        if stop - start > block:  # as many blocks as fit, so that no small rest is left at their end
            stop = start + (block if stop - start >= 2 * block else (stop - start + 1) // 2)
        found.append(items[start:stop])
        start = stop
    return found


@dataclass(frozen=True, eq=False)
class Exchanged:
    """A cost of the marked set beside that of sets under exchange.

    Attributes:
        null: each less what its total explains.
        observed: of the marked set, as it is.
        costs: of the sets, as they are, `[draw]`.
    """

    null: Null
    observed: float
    costs: Floats


def exchanged(
    strata: Strata,
    cost: Callable[[Bools], float],
    n_draws: int,
    rng: np.random.Generator,
    *,
    measure: Floats | None = None,
) -> Exchanged:
    """The cost of the marked items that have an equal, beside that of sets in which the label is exchanged.

    Args:
        strata: groups of equals.
        cost: of a set, `[item]` of true and false.
        n_draws: sets.
        rng: makes every draw.
        measure: what makes items equal, `[item]`; the straight line of the cost on its total is taken out. None where
            all are equals.
    """
    marked, sets = strata.marked, strata.draws(n_draws, rng)
    observed, costs = cost(marked), np.array([cost(drawn) for drawn in sets], dtype=float)
    if measure is None:
        return Exchanged(Null(observed, costs), observed, costs)
    return Exchanged(without_slope(observed, costs, float(marked @ measure), sets @ measure), observed, costs)


def without_slope(observed: float, draws: Floats, total: float, totals: Floats) -> Null:
    """An observed value beside its draws, each less what follows from the set's total by a straight line.

    The line is fitted to the draws and the observed value alike, so that under exchange none of them is special.

    Args:
        observed: of the marked set.
        draws: of sets under exchange, `[draw]`.
        total: of the marked set, such as its mass.
        totals: of the sets under exchange, `[draw]`.
    """
    y, x = np.append(draws, observed), np.append(totals, total)
    spread = x - x.mean()
    scale = float(spread @ spread)
    slope = float(spread @ y) / scale if scale > 1e-12 * max(float(x @ x), 1e-300) else 0.0
    centre = float(totals.mean()) if len(totals) else total
    return Null(observed - slope * (total - centre), draws - slope * (totals - centre))
