"""Which features last: survival by entropy at the onset, and Kaplan-Meier over lineages (D23)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest

from tl_lifehist.errors import InputError, one_of
from tl_lifehist.inference.curves import beside_curve
from tl_lifehist.inference.exchange import CALIPER, strata_of
from tl_lifehist.lifehistory.forecast import ONSET, onset_step
from tl_lifehist.lifehistory.lineages import Lineages, Profiles
from tl_lifehist.lifehistory.recruitment import RATE_BLOCK
from tl_lifehist.nulls import Null

N_GROUPS = 10
COLUMNS = ["decile", "entropy_low", "entropy_high", "n", "survival", "low", "high", "survival_by_rate"]


def wilson_interval(successes: int, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion (Wilson 1927); NaN when `n` is 0."""
    if n == 0:
        return float("nan"), float("nan")
    found = binomtest(successes, n).proportion_ci(confidence_level=0.95, method="wilson")
    return float(found.low), float(found.high)


@dataclass(frozen=True, eq=False)
class Cohort:
    """The features alive at the onset.

    Attributes:
        hook_names: hook point of each, `[feature]`.
        entropy: its activation entropy (D10).
        rate: its firing rate.
        reached: its lineage reaches the last checkpoint.
    """

    hook_names: NDArray[np.generic]
    entropy: NDArray[np.float64]
    rate: NDArray[np.float64]
    reached: NDArray[np.bool_]


def onset_cohort(
    profiles: Profiles, lineages: Lineages, *, onset: int | None = None, onset_share: float = ONSET
) -> Cohort:
    """The features alive at the onset; see `survival_by_entropy`."""
    onset = onset_step(lineages.steps, onset_share=onset_share) if onset is None else onset
    if onset not in lineages.steps or any((onset, h) not in profiles for h in lineages.hook_names):
        raise InputError(f"There are no profiles at the onset {onset}; the checkpoints are {list(lineages.steps)}.")
    table = lineages.to_dataframe()
    at_end = table.loc[table["step"] == lineages.steps[-1], "lineage"]
    here = table[table["step"] == onset]
    names, features = here["hook_name"].to_numpy(dtype=str), here["feature"].to_numpy()
    entropy, rate = np.zeros(len(here)), np.zeros(len(here))
    for h in lineages.hook_names:
        inside, profile = names == h, profiles[onset, h]
        entropy[inside] = profile.entropy[features[inside]]
        rate[inside] = profile.firing_rate[features[inside]]
    # hook points in depth order, as the profiles have them
    order = np.argsort([lineages.hook_names.index(h) for h in names], kind="stable")
    reached = here["lineage"].isin(at_end).to_numpy()
    return Cohort(names[order], entropy[order], rate[order], reached[order])


def survival_at_equal_rate(
    cohort: Cohort, *, block: int = RATE_BLOCK, caliper: float = CALIPER, n_draws: int = 1000, seed: int = 0
) -> Null:
    """How much more often the broader half of the features survives than the narrower half, at equal firing rate,
    beside draws in which survival is exchanged within blocks of neighbouring rate (D23).

    Entropy is taken less what a smooth curve of the log rate explains of it within the layer, since the two nearly are
    one quantity.

    Args:
        cohort: from `onset_cohort`.
        block: features of like rate among which survival is exchanged (ours).
        caliper: how far they may lie apart, in decades (ours).
        n_draws: draws of the null.
        seed: of the draws.

    Returns:
        The difference of the two shares, and its draws: none where no block holds both survivors and others.
    """
    log_rate = np.log10(np.maximum(cohort.rate, 1e-30))
    beyond = beside_curve(cohort.entropy, log_rate, cohort.hook_names)
    strata = strata_of(cohort.reached, cohort.hook_names, log_rate, block=block, caliper=caliper)
    side = np.zeros(len(beyond))
    for group in strata.groups:
        order, half = group[np.argsort(beyond[group], kind="stable")], len(group) // 2
        side[order[:half]], side[order[len(group) - half :]] = -1.0, 1.0
    if not (side > 0).any():
        return Null(float("nan"), np.zeros(0))
    weight = side / (side > 0).sum()
    draws = strata.draws(n_draws, np.random.default_rng(seed))
    return Null(float(cohort.reached @ weight), draws @ weight, rounding=1e-12)


def survival_by_entropy(
    profiles: Profiles,
    lineages: Lineages,
    *,
    onset: int | None = None,
    onset_share: float = ONSET,
    n_groups: int = N_GROUPS,
) -> pd.DataFrame:
    """Share of the features alive at the onset whose lineage reaches the last checkpoint, by entropy decile (D23).

    One row a decile, 1 the lowest: decile, entropy_low, entropy_high, n, survival, low, high (Wilson, 95 %), and
    survival_by_rate, the survival of the same decile by firing rate. All hook points together.
    Fewer features than groups leave deciles empty and NaN; an onset at the last checkpoint reads 1 everywhere.

    Args:
        onset: the checkpoint to start at; None is the first at or after `onset_share` of training.
        onset_share: see `onset_step`.
        n_groups: how many groups of equal size; with 10 the column `decile` says what it holds.

    How it can mislead: entropy nearly is log firing rate, and frequent features are matched more easily from checkpoint
    to checkpoint; only what `survival` shows beyond `survival_by_rate` is about entropy. The intervals take
    lineages as independent.

    Raises:
        InputError: no profiles at the onset.
    """
    cohort = onset_cohort(profiles, lineages, onset=onset, onset_share=onset_share)
    entropies, survived = cohort.entropy, cohort.reached
    by_entropy = np.array_split(np.argsort(entropies, kind="stable"), n_groups)
    by_rate = np.array_split(np.argsort(cohort.rate, kind="stable"), n_groups)
    rows = []
    for i, (group, other) in enumerate(zip(by_entropy, by_rate, strict=True)):
        n, count = len(group), int(survived[group].sum())
        bounds = (entropies[group[0]], entropies[group[-1]]) if n else (np.nan, np.nan)
        shares = (count / n, survived[other].mean()) if n else (np.nan, np.nan)
        rows.append((i + 1, *bounds, n, shares[0], *wilson_interval(count, n), shares[1]))
    return pd.DataFrame(rows, columns=COLUMNS)


def kaplan_meier(lineages: Lineages, *, clock: str = "age") -> pd.DataFrame:
    """The Kaplan-Meier estimate of how long lineages last, by hook point and for "all" (D23).

    S(t) = product over times u <= t of 1 - deaths(u) / at_risk(u). One row a time: hook_name, step, at_risk, deaths,
    survival. A lineage alive at the last checkpoint is censored there: it counts as at risk and never as a death.

    Args:
        clock: what `step` counts. "age": training steps since the lineage's birth, at risk from 0 on. "training":
            the training step itself; a lineage is at risk from the first checkpoint after its birth (delayed entry).

    How it can mislead: a death is an unmatched feature, so the curve falls by SAE noise alone at every checkpoint,
    and the more checkpoints there are the faster; deaths are only seen at checkpoints.

    Raises:
        InputError: an unknown clock.
    """
    one_of("clock", clock, ("age", "training"))
    table = lineages.summary()
    birth = table["birth"].to_numpy(dtype=float)
    died = table["death"].notna().to_numpy()
    exit_ = table["death"].fillna(lineages.steps[-1]).to_numpy(dtype=float)
    entry = birth if clock == "training" else np.zeros(len(table))
    exit_ = exit_ if clock == "training" else exit_ - birth
    rows = []
    for name in (*lineages.hook_names, "all"):
        inside = np.ones(len(table), dtype=bool) if name == "all" else (table["hook_name"] == name).to_numpy()
        rows += [(name, *row) for row in _product_limit(entry[inside], exit_[inside], died[inside])]
    return pd.DataFrame(rows, columns=["hook_name", "step", "at_risk", "deaths", "survival"])


def _product_limit(
    entry: NDArray[np.float64], exit_: NDArray[np.float64], died: NDArray[np.bool_]
) -> list[tuple[int, int, int, float]]:
    if not len(entry):
        return []
    start = entry.min()
    rows = [(int(start), int((entry == start).sum()), 0, 1.0)]
    survival = 1.0
    for time in np.unique(exit_[exit_ > start]):
        at_risk = int(((entry < time) & (exit_ >= time)).sum())
        if at_risk == 0:  # all that end here were born here: they were never watched
            continue
        deaths = int((died & (exit_ == time)).sum())
        survival *= 1 - deaths / at_risk
        rows.append((int(time), at_risk, deaths, survival))
    return rows
