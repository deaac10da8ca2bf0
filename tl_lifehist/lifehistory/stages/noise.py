"""Noise of SAE training: re-match rates within checkpoints and the two nulls of the number of carriers (C1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import torch

from tl_lifehist.dictionaries.protocol import decoder_directions
from tl_lifehist.lifehistory import noise as levels
from tl_lifehist.lifehistory.config import Alive, CarrierRule, Matching
from tl_lifehist.lifehistory.direction import aligned_cosines
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.lifehistory.matching import match_features
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.lifehistory.stages.lineages import same_feature, tracing
from tl_lifehist.stages import Inputs, Outputs

Replicates = Mapping[tuple[int, str], Mapping[str, FeatureProfiles]]


def noise(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    replicates: tuple[tuple[int, str], ...],
    frozen_level: str,
    alive: Alive,
    matching: Matching,
    rule: CarrierRule,
    frozen_draws: int,
    unrelated_draws: int,
    seed: int,
) -> Outputs:
    """Tables `rematch`, `nulls`, `direction_noise`, and the features that other initial weights find again.

    Args:
        replicates: further trainings, `(step, "data1")`.
        frozen_level: replicates that repeat the run's own way to initialise.
    """
    history, same = History(inputs, steps, hook_names), same_feature(alive, matching)
    found = {(step, name): history.profiles_of(step, name) for step, name in replicates}
    at_end = {name: profiles for (step, name), profiles in found.items() if step == history.last}
    own = [profiles for name, profiles in at_end.items() if name.startswith(frozen_level)]
    other = [profiles for name, profiles in at_end.items() if name.startswith("init")]
    wanted = history.carriers(rule).min_snapshots
    draws: dict[str, np.ndarray] = {}
    if len(own) > 1:  # one alone gives no spread
        again = {h: levels.rematch_frequencies(history.final[h], [one[h] for one in own], **same) for h in hook_names}
        trained = sum(step > 0 for step in steps)
        draws["frozen"] = levels.frozen_null(
            again, n_snapshots=trained, min_snapshots=wanted, n_draws=frozen_draws, seed=seed
        ).draws
    draws["unrelated"] = levels.unrelated_null(
        history.profiles, **tracing(alive, matching), **knobs(rule), n_draws=unrelated_draws, seed=seed
    ).draws
    rows = [(name, i, int(count)) for name, counts in draws.items() for i, count in enumerate(counts)]
    return {
        "rematch": levels.rematch_table(history.profiles, found, **same),
        "nulls": pd.DataFrame(rows, columns=["null", "draw", "carriers"]),
        "direction_noise": direction_noise(history, at_end, same),
        "stable": levels.seed_stable(history.final, other, **same) if other else {h: [] for h in hook_names},
    }


def direction_noise(
    history: History, at_end: Mapping[str, Mapping[str, FeatureProfiles]], same: Mapping[str, Any]
) -> pd.DataFrame:
    """S_fun and S_dir (D16) between two trainings of the last checkpoint's SAEs: level, hook_name, s_fun, s_dir,
    s_dir_aligned, n.

    The model does not change and pairs are selected by their match as lineages are, so the gap is that of tracing
    alone.
    """
    rows = []
    for name in (name for name in at_end if name in ("data1", "init1")):
        ours, theirs = history.saes_of(history.last), history.saes_of(history.last, name)
        for h in history.hook_names:
            match = match_features(history.final[h], at_end[name][h], **same)
            a, b = (
                torch.nn.functional.normalize(decoder_directions(sae[h], match.pairs[:, i].tolist()).double(), dim=1)
                .cpu()
                .numpy()
                for i, sae in enumerate((ours, theirs))
            )
            found = match.similarity, (a * b).sum(axis=1), aligned_cosines(a, b)
            means = (float(v.mean()) if len(v) else float("nan") for v in found)
            rows.append((name.rstrip("1"), h, *means, len(match.pairs)))
    return pd.DataFrame(rows, columns=["level", "hook_name", "s_fun", "s_dir", "s_dir_aligned", "n"])
