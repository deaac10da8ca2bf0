"""How masks change over training and over depth, beside the same correlations of their nulls (formula 17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
from tl_lifehist.metrics import exceedance_p, interval
from tl_lifehist.sufficiency.onset import require_columns
from tl_lifehist.sufficiency.ranks import reordered, spearman

QUANTITIES = ("relative_kl", "soft_mass", "nmse", "enrichment_tau", "enrichment_omega", "kl", "lost_fraction")
NULL_MASKS = ("empty", "full")
AGAINST = {"checkpoint": "step", "depth": "layer"}
MAX_P = 0.05
COLUMNS = [
    *("site", "mask", "quantity", "against", "pooled", "pooled_low", "pooled_high"),
    *("stratified", "stratified_low", "stratified_high", "n_cells", "n_strata", "n_constant"),
    *("empty", "full", "absolute_kl", "clean_entropy", "p", "claimed"),
]
_CELL = ["site", "mask", "step", "layer", "hook_name", "method"]
_CONSTANT = 1e-6  # relative spread below which a quantity is taken not to vary: its ranks would be those of rounding
_ROUNDING = 1e-9  # equal correlations may differ in the last bit

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]


def trajectories(
    table: pd.DataFrame,
    *,
    quantities: Sequence[str] | None = None,
    checkpoints: pd.DataFrame | None = None,
    n_bootstrap: int = 1000,
    max_p: float = MAX_P,
    seed: int = 0,
) -> pd.DataFrame:
    """Spearman correlation of each quantity with training progress and with depth (formula 17 of the sufficiency
    methods): a row for each site, mask, quantity and "checkpoint" or "depth". Sites are never pooled.

    A cell is a (step, hook_name, method); seeds are averaged first. Columns:

    - `pooled`, over all cells of a site and mask, and `pooled_low`, `pooled_high`, the 95 % interval when whole (step,
      hook_name) units are resampled with all their methods, which read the same activations (the unit is ours);
    - `stratified`, the mean over strata: with the checkpoint within each layer and method, with depth within each
      checkpoint and method; its interval resamples layers, or checkpoints, with all their methods. It is NaN with
      a single one. A stratum where the quantity or the position does not vary is NaN, left out and counted in
      `n_constant`; `n_strata` are the others;
    - `empty`, `full`, `absolute_kl`, `clean_entropy`: the pooled correlation of the empty and of the full mask's same
      quantity, of the mask's KL in nats, and of the mean entropy of the clean predictions;
    - `p`: how often the steps (or layers) in random order give a pooled correlation as large in size, two-sided. Its
      units are the steps or layers themselves, so fewer than five can never reach 0.05 (ours);
    - `claimed` (ours): the pooled interval excludes 0, `p` is at most `max_p`, `stratified` does not have the other
      sign, and the empty mask does not show the same: it has the other sign, or lies outside the pooled interval and
      nearer to 0, or does not vary. Nor may the normaliser explain it: every figure but the KL in nats has to follow
      the steps or layers more closely than the clean entropy does, since the penalty on a mask is relative too, and a
      relative KL or a lost fraction needs a KL in nats of the same sign; a lost fraction has to follow them more
      closely than the empty mask's KL in nats, which it is divided by. Never without an empty mask.

    Args:
        table: the `evaluation` table: step, hook_name, site, layer, method, mask and the quantities; `seed` and
            `clean_entropy` where there are any.
        quantities: columns of it; by default those of `QUANTITIES` that it has.
        checkpoints: the `checkpoints` table, read for `clean_entropy` by (step, hook_name).
        n_bootstrap: draws of each interval and of `p`.
        max_p: the largest `p` of a claimed trajectory (ours).

    How it can mislead: relative KL divides by an entropy that itself changes over training, so the normaliser alone
    can make a trajectory: compare `absolute_kl` and `clean_entropy`. All cells come from one training of one model;
    neighbouring checkpoints and layers are alike, so the intervals are too narrow, and with a handful of layers or
    checkpoints the stratified one most of all. `p` is about order, not cause: any slow drift over training has a small
    one. Pooled cells mix methods and layers and can even reverse the sign within them.

    Raises:
        InputError: a column that is missing or holds no numbers, no draws.
    """
    require_columns(table, [*_CELL, *(quantities or ())], "evaluation")
    if n_bootstrap < 1:
        raise InputError(f"n_bootstrap={n_bootstrap} must be at least 1.")
    chosen = list(quantities) if quantities is not None else [name for name in QUANTITIES if name in table]
    for name in chosen:
        if not pd.api.types.is_numeric_dtype(table[name]):
            raise InputError(f"The column {name!r} holds no numbers: name quantities that were measured.")
    if checkpoints is not None:
        require_columns(checkpoints, ["step", "hook_name", "clean_entropy"], "checkpoints")
        entropy = checkpoints.groupby(["step", "hook_name"], as_index=False)["clean_entropy"].mean()
        table = table.drop(columns="clean_entropy", errors="ignore").merge(
            entropy, on=["step", "hook_name"], how="left"
        )
    beside = [name for name in ("kl", "clean_entropy") if name in table]
    measured = list(dict.fromkeys([*chosen, *beside]))
    cells = table.groupby(_CELL, as_index=False, dropna=False)[measured].mean()
    rows = []
    for (site, mask), group in cells.groupby(["site", "mask"], sort=False):
        if mask in NULL_MASKS:
            continue
        nulls = {name: cells[(cells["site"] == site) & (cells["mask"] == name)] for name in NULL_MASKS}
        for quantity in chosen:
            for against in AGAINST:
                found = _row(group, nulls, quantity, against, n_bootstrap, seed, max_p)
                rows.append({"site": site, "mask": mask, "quantity": quantity, "against": against} | found)
    return pd.DataFrame(rows, columns=COLUMNS)


def _row(
    group: pd.DataFrame,
    nulls: dict[str, pd.DataFrame],
    quantity: str,
    against: str,
    n_draws: int,
    seed: int,
    max_p: float,
) -> dict[str, Any]:
    cells = group[np.isfinite(group[quantity].astype(float)) & group[AGAINST[against]].notna()]
    x, y = _values(cells, AGAINST[against]), _values(cells, quantity)
    rng = np.random.default_rng(seed)  # anew for every row: a further quantity changes no other's interval
    pooled, low, high, p = _pooled(cells, quantity, against), *(float("nan"),) * 3
    if np.isfinite(pooled):
        unit = cells.groupby(["step", "hook_name"]).ngroup().to_numpy()
        low, high = interval(spearman(x, y, _resampled(unit, n_draws, rng)[:, unit]))
        p = exceedance_p(abs(pooled) - _ROUNDING, np.abs(reordered(x, y, n_draws, rng)))
    stratified = _stratified(cells, quantity, against, n_draws, rng)
    empty = _pooled(nulls["empty"], quantity, against)
    same = empty * pooled > 0 and (abs(empty) >= abs(pooled) or low <= empty <= high)
    absolute, clean = _pooled(cells, "kl", against), _pooled(cells, "clean_entropy", against)
    # penalty and figures are relative, so the entropy alone can move both: only the KL in nats is free of it
    normaliser = quantity != "kl" and abs(clean) >= abs(pooled) - _ROUNDING
    normaliser = normaliser or (quantity.endswith(("relative_kl", "lost_fraction")) and absolute * pooled <= 0)
    # of a lost fraction the KL of mean ablation is the normaliser, and the empty mask's own value is always 1
    normaliser = normaliser or (
        quantity.endswith("lost_fraction") and abs(_pooled(nulls["empty"], "kl", against)) >= abs(pooled) - _ROUNDING
    )
    claimed = low * high > 0 and p <= max_p and not stratified["stratified"] * pooled < 0 and not same
    claimed = claimed and not normaliser
    return stratified | {
        "pooled": pooled,
        "pooled_low": low,
        "pooled_high": high,
        "n_cells": len(cells),
        "empty": empty,
        "full": _pooled(nulls["full"], quantity, against),
        "absolute_kl": absolute,
        "clean_entropy": clean,
        "p": p,
        "claimed": bool(claimed and len(nulls["empty"]) > 0),
    }


def _values(cells: pd.DataFrame, column: str) -> Floats:
    return cells[column].to_numpy(dtype=np.float64)


def _pooled(cells: pd.DataFrame, quantity: str, against: str) -> float:
    """Spearman over all cells where both are known; NaN where the quantity or the position does not vary."""
    if quantity not in cells:
        return float("nan")
    x, y = _values(cells, AGAINST[against]), _values(cells, quantity)
    known = np.isfinite(x) & np.isfinite(y)
    x, y = x[known], y[known]
    if len(y) < 2 or np.ptp(y) <= _CONSTANT * np.abs(y).max():
        return float("nan")
    return float(spearman(x, y, np.ones((1, len(y))))[0])


def _stratified(
    cells: pd.DataFrame, quantity: str, against: str, n_draws: int, rng: np.random.Generator
) -> dict[str, float]:
    """Mean of the correlations within strata, and its interval when whole layers (or checkpoints) are resampled."""
    outer = "hook_name" if against == "checkpoint" else "step"
    strata = [(key[0], _pooled(part, quantity, against)) for key, part in cells.groupby([outer, "method"])]
    rho = np.array([value for _, value in strata], dtype=np.float64)
    defined = np.isfinite(rho)
    found = {"stratified": float("nan"), "stratified_low": float("nan"), "stratified_high": float("nan")}
    if defined.any():
        found["stratified"] = float(rho[defined].mean())
        _, unit = np.unique(np.array([key for key, _ in strata])[defined], return_inverse=True)
        if unit.max() > 0:
            weights = _resampled(unit, n_draws, rng)[:, unit]
            found["stratified_low"], found["stratified_high"] = interval(weights @ rho[defined] / weights.sum(axis=1))
    return found | {"n_strata": int(defined.sum()), "n_constant": int((~defined).sum())}


def _resampled(unit: Ints, n_draws: int, rng: np.random.Generator) -> Floats:
    """How often each unit is in each bootstrap sample: `[draw, unit]`."""
    n_units = int(unit.max()) + 1
    return rng.multinomial(n_units, np.full(n_units, 1 / n_units), size=n_draws).astype(np.float64)
