"""When a small mask becomes enough: the onset of sufficiency (formula 18)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tl_lifehist.errors import InputError, nearest

MAX_LOST = 0.1
MARGIN = 0.01  # of the variance mask's loss, by which a mask has to beat it (ours): less is rounding
CELL = ["step", "hook_name", "method"]
COLUMNS = ["step", "hook_name", "site", "layer", "method", "onset", "full_lost_fraction"]


def onset_of_sufficiency(
    frontier: pd.DataFrame, *, full_lost_fraction: float, max_lost: float = MAX_LOST, margin: float = MARGIN
) -> float:
    """The least soft mass of a sweep that keeps the model's behaviour and beats variance (formula 18 of the sufficiency
    methods, ours).

    That is the least `soft_mass` among the rows with `lost_fraction <= max_lost` and `lost_fraction` at least 1 %
    (`margin`) below `variance_lost_fraction`. It is NaN where no row passes, and where the full mask loses more than
    `max_lost` (or is NaN): then the dictionary misses what the model needs, and no mask over it can show when little is
    enough. Nothing is interpolated between the masks of the sweep: a value between two of them was never injected.

    Args:
        frontier: the masks of a sweep in one cell: `soft_mass`, `lost_fraction` (KL over KL of mean ablation) and
            `variance_lost_fraction` (the same for the top-variance mask of equal mass).
        full_lost_fraction: that of the full mask.
        max_lost: what may be lost (ours: 0.1).
        margin: share of the variance mask's loss by which a mask has to beat it (ours: 0.01); less is rounding.

    How it can mislead: it is no smaller than the smallest mask of the sweep and jumps between its masks, so compare
    onsets of one sweep only. It has no interval: another text can move it by a step of the sweep. At a site where mean
    ablation costs nearly nothing, a tenth of it is nothing: read the empty mask's KL first.

    Raises:
        InputError: a column is missing, or `max_lost` outside [0, 1].
    """
    require_columns(frontier, ["soft_mass", "lost_fraction", "variance_lost_fraction"], "frontier")
    if not 0 <= max_lost <= 1:
        raise InputError(f"max_lost={max_lost} must lie between 0 and 1: it is a share of what mean ablation costs.")
    if not full_lost_fraction <= max_lost:  # NaN fails too
        return float("nan")
    lost = frontier["lost_fraction"]
    enough = frontier.loc[(lost <= max_lost) & (lost < (1 - margin) * frontier["variance_lost_fraction"]), "soft_mass"]
    return float(enough.min()) if len(enough) else float("nan")


def onset_table(
    frontier: pd.DataFrame, evaluation: pd.DataFrame, *, max_lost: float = MAX_LOST, margin: float = MARGIN
) -> pd.DataFrame:
    """The onset of every cell of a study: step, hook_name, site, layer, method, onset, full_lost_fraction.

    One row for each (step, hook_name, method) of `frontier`; the full mask's figure is that of the rows of `evaluation`
    with `mask == "full"`, NaN where a cell has none. See `onset_of_sufficiency`, also for how it can mislead.

    Raises:
        InputError: as `onset_of_sufficiency`.
    """
    require_columns(frontier, [*CELL, "site", "layer"], "frontier")
    require_columns(evaluation, [*CELL, "mask", "lost_fraction"], "evaluation")
    full = evaluation[evaluation["mask"] == "full"].groupby(CELL)["lost_fraction"].mean().to_dict()
    rows = []
    # by layer, not by hook name, which puts block 10 before block 2
    for cell, sweep in frontier.groupby(["step", "site", "layer", "hook_name", "method"], dropna=False):
        step, site, layer, hook_name, method = cell
        lost = float(full.get((step, hook_name, method), float("nan")))
        onset = onset_of_sufficiency(sweep, full_lost_fraction=lost, max_lost=max_lost, margin=margin)
        rows.append((step, hook_name, site, layer, method, onset, lost))
    return pd.DataFrame(rows, columns=COLUMNS)


def require_columns(table: pd.DataFrame, columns: Sequence[str], name: str) -> None:
    """Refuse a table that lacks a column, naming the nearest it has."""
    for column in columns:
        if column not in table:
            raise InputError(
                f"The {name} table has no column {column!r}; the nearest it has: {nearest(column, table.columns)}."
            )
