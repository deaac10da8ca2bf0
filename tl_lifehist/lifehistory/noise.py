"""Control C1: how much of what looks like change is noise of SAE training.

Two levels, never mixed: `data` (same initial weights, other row order) and `init` (other weights and order).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.lineages import MIN_SHARE, trace_lineages
from tl_lifehist.lifehistory.matching import MIN_SIMILARITY, match_features
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.nulls import Null

LEVELS = ("data", "init")


def rematch_table(
    base: Mapping[tuple[int, str], FeatureProfiles],
    replicates: Mapping[tuple[int, str], Mapping[str, FeatureProfiles]],
    *,
    min_similarity: float = MIN_SIMILARITY,
    method: str = "gated",
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> pd.DataFrame:
    """Re-match rates within checkpoints: step, hook_name, level, replicate, matched, n_alive, rate (C1).

    Args:
        base: the run's own profiles by (step, hook point).
        replicates: `{(step, "data1"): {hook_name: profiles}}`; the name is the level and a number.
        min_similarity: see `match_features`, as for the three that follow.
        method: how the match is assigned.
        min_rate: of an alive feature.
        min_count: of an alive feature.
    """
    rows = []
    for (step, replicate), at_step in replicates.items():
        level = replicate.rstrip("0123456789")
        for hook_name, profile in at_step.items():
            match = match_features(
                base[step, hook_name],
                profile,
                min_similarity=min_similarity,
                method=method,
                min_rate=min_rate,
                min_count=min_count,
            )
            alive = len(match.pairs) + len(match.unmatched_a)
            rows.append((step, hook_name, level, replicate, len(match.pairs), alive, match.rate))
    columns = ["step", "hook_name", "level", "replicate", "matched", "n_alive", "rate"]
    return pd.DataFrame(rows, columns=columns)


def floors(rematch: pd.DataFrame, hook_name: str, step: int) -> dict[str, float]:
    """Re-match rate at each level for a transition that starts at `step`: of the nearest checkpoint that has one."""
    found = {}
    for level in LEVELS:
        rows = rematch[(rematch["hook_name"] == hook_name) & (rematch["level"] == level)]
        if rows.empty:
            found[level] = float("nan")
            continue
        gap = (np.log10(rows["step"] + 1) - np.log10(step + 1)).abs()
        found[level] = float(rows.loc[gap == gap.min(), "rate"].mean())
    return found


def rematch_frequencies(
    base: FeatureProfiles,
    others: Sequence[FeatureProfiles],
    *,
    min_similarity: float = MIN_SIMILARITY,
    method: str = "gated",
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> NDArray[np.float64]:
    """For each alive feature of `base`, in how many of the other trainings it is matched: `[alive, replicate]` of
    0 and 1. The keyword arguments are those of `match_features`.
    """
    alive = np.flatnonzero(base.alive(min_rate=min_rate, min_count=min_count))
    columns = []
    for other in others:
        match = match_features(
            base, other, min_similarity=min_similarity, method=method, min_rate=min_rate, min_count=min_count
        )
        columns.append(np.isin(alive, match.pairs[:, 0]))
    return np.stack(columns, axis=1).astype(np.float64) if columns else np.zeros((len(alive), 0))


@dataclass(frozen=True, eq=False)
class CarrierNull:
    """How many carriers there would be if nothing but noise were at work.

    Attributes:
        draws: number of carriers in each simulated history.
        mean: their mean.
        low: lower end of the central 95 %.
        high: upper end.
    """

    draws: NDArray[np.int64]

    @property
    def mean(self) -> float:
        return self._null.mean

    @property
    def low(self) -> float:
        return self._null.low

    @property
    def high(self) -> float:
        return self._null.high

    @property
    def _null(self) -> Null:
        return Null(float("nan"), self.draws)


def frozen_null(
    frequencies: Mapping[str, NDArray[np.float64]],
    *,
    n_snapshots: int,
    min_snapshots: int,
    n_draws: int = 500,
    seed: int = 0,
) -> CarrierNull:
    """Carriers expected if the model never changed and only the SAEs were trained anew at each checkpoint (C1).

    A feature slot that holds a feature re-matched with probability q keeps its lineage over a transition with
    probability q; otherwise a new lineage starts in it. q is drawn for each feature from its own re-match counts with a
    Beta prior fitted to those of its hook point (beta-binomial moments), and features are resampled, so the interval
    holds both their spread and the small number of trainings. One common rate would understate the number: the stable
    features stay stable. A flat prior would too: three matches out of three do not say that the fourth fails.

    Args:
        frequencies: `{hook_name: [feature, replicate]}` from `rematch_frequencies`, three or more trainings in all.
        n_snapshots: checkpoints after initialisation.
        min_snapshots: what the observed carriers had to reach.

    How it can mislead: q is estimated at one checkpoint, and SAEs of an untrained model are noisier or less noisy.
    """
    if any(f.shape[1] < 2 for f in frequencies.values()):
        raise InputError("The frozen null needs at least two further trainings of one checkpoint: give more.")
    rng = np.random.default_rng(seed)
    draws = np.zeros(n_draws, dtype=np.int64)
    for matched in frequencies.values():
        hits, tries = matched.sum(axis=1), matched.shape[1]
        alpha, beta = beta_prior(hits, tries)
        for draw in range(n_draws):
            picked = rng.integers(0, len(hits), len(hits)) if len(hits) else np.zeros(0, dtype=np.int64)
            q = rng.beta(hits[picked] + alpha, tries - hits[picked] + beta)
            kept = rng.random((len(q), n_snapshots - 1)) < q[:, None]
            # the lineage alive at the end is as old as the run of kept transitions that ends there
            trailing = np.cumprod(kept[:, ::-1], axis=1).sum(axis=1) + 1
            draws[draw] += int((trailing >= min_snapshots).sum())
    return CarrierNull(draws)


def beta_prior(hits: NDArray[np.float64], tries: int) -> tuple[float, float]:
    """Parameters of the Beta distribution whose binomial counts have the mean and variance of these."""
    mean = float(np.clip((hits.sum() + 0.5) / (len(hits) * tries + 1), 1e-6, 1 - 1e-6))
    excess = np.var(hits / tries) * tries / (mean * (1 - mean)) - 1 if len(hits) else 0.0
    overlap = float(np.clip(excess / (tries - 1), 1e-3, 0.99))  # correlation of two trainings' matches
    strength = 1 / overlap - 1
    return mean * strength, (1 - mean) * strength


def unrelated_null(
    profiles: Mapping[tuple[int, str], FeatureProfiles],
    *,
    min_snapshots: int | None = None,
    min_share: float = MIN_SHARE,
    consecutive: bool = True,
    alive_at_end: bool = True,
    n_draws: int = 3,
    seed: int = 0,
    transformed: float | None = None,
    max_gap: int = 0,
    min_similarity: float = MIN_SIMILARITY,
    method: str = "gated",
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> CarrierNull:
    """Carriers left when the rows of every profile are shuffled: chance matches, about 0 (C1, C3).

    Args:
        profiles: those that the observed lineages were traced in.
        min_snapshots: as the observed carriers were chosen, see `Lineages.carriers`; so the three that follow.
        min_share: of the checkpoints after step 0.
        consecutive: whether these follow each other.
        alive_at_end: whether the last checkpoint is one of them.
        n_draws: how often the rows are shuffled.
        transformed: as the observed lineages were traced, see `trace_lineages`; so the five that follow.
        max_gap: checkpoints that a lineage may skip.
        min_similarity: of a match.
        method: how the match is assigned.
        min_rate: of an alive feature.
        min_count: of an alive feature.
    """
    counts = []
    for draw in range(n_draws):
        shuffled = {key: p.permuted(seed + 7919 * draw + 31 * i) for i, (key, p) in enumerate(profiles.items())}
        lineages = trace_lineages(
            shuffled,
            min_similarity=min_similarity,
            method=method,
            transformed=transformed,
            max_gap=max_gap,
            min_rate=min_rate,
            min_count=min_count,
        )
        chosen = lineages.carriers(
            min_snapshots=min_snapshots, min_share=min_share, consecutive=consecutive, alive_at_end=alive_at_end
        )
        counts.append(len(chosen))
    return CarrierNull(np.array(counts, dtype=np.int64))


def seed_stable(
    base: Mapping[str, FeatureProfiles],
    replicates: Sequence[Mapping[str, FeatureProfiles]],
    *,
    min_similarity: float = MIN_SIMILARITY,
    method: str = "gated",
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> dict[str, list[int]]:
    """Alive features found again in every replicate, by hook point: stable under SAE training, whatever their
    history. The keyword arguments are those of `match_features`.
    """
    stable = {}
    for name, profile in base.items():
        others = [r[name] for r in replicates]
        matched = rematch_frequencies(
            profile, others, min_similarity=min_similarity, method=method, min_rate=min_rate, min_count=min_count
        )
        alive = np.flatnonzero(profile.alive(min_rate=min_rate, min_count=min_count))
        stable[name] = alive[matched.all(axis=1)].tolist() if matched.shape[1] else []
    return stable
