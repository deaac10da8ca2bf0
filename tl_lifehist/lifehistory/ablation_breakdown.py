"""What a joint load is made of and what could stand in for it: single features, layers, leading sets (D17, C6, C7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.effects import BATCH_SIZE, scored_losses
from tl_lifehist.interventions import FeatureAblation
from tl_lifehist.lifehistory.controls import require_carriers
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.many_losses import ManyLosses
from tl_lifehist.metrics import MIN_GROUPS, interval
from tl_lifehist.models import Hook, HookedModel
from tl_lifehist.tokens import TokenSet


def single_ablation(
    model: HookedModel,
    saes: Mapping[str, Dictionary],
    features: Mapping[str, Sequence[int]],
    tokens: TokenSet,
    *,
    batch_size: int = BATCH_SIZE,
    progress: Callable[[int], Any] | None = None,
) -> pd.DataFrame:
    """The cost of each feature alone: hook_name, feature, n_firings, per_firing, per_token (D17).

    `per_firing` is the mean of CE' - CE over the scored positions where the feature fires, nats; `per_token` is that
    times its firing rate. Only sequences in which the feature fires are run. A feature that never fires has NaN and 0.

    How it can mislead: a feature's effect on later positions of its sequence is not in `per_firing`, and the costs of
    single features do not add up to their joint cost.
    """
    from tl_lifehist.lifehistory.profiles import profile_saes

    wanted = {name: [int(f) for f in chosen] for name, chosen in features.items() if len(chosen)}
    profiles = profile_saes(model, {name: saes[name] for name in wanted}, tokens)
    scored = tokens.scored[tokens.valid].numpy()
    sequence = tokens.row_positions[:, 0]
    base = np.full(len(scored), np.nan)
    base[scored] = scored_losses(model, tokens, batch_size=batch_size)
    rows = []
    for name, chosen in wanted.items():
        for feature in chosen:
            acts = profiles[name].acts
            firing = acts.indices[acts.indptr[feature] : acts.indptr[feature + 1]]
            firing = firing[scored[firing]]
            cost = float("nan")
            if len(firing):
                touched = np.unique(sequence[firing])
                subset = tokens[touched]
                ablation = FeatureAblation({name: saes[name]}, {name: [feature]})
                loss = np.full(len(scored), np.nan)
                loss[np.isin(sequence, touched) & scored] = scored_losses(
                    model, subset, ablation, batch_size=batch_size
                )
                cost = float((loss[firing] - base[firing]).mean())
            share = len(firing) / max(int(scored.sum()), 1)
            rows.append((name, feature, len(firing), cost, cost * share if len(firing) else 0.0))
            if progress is not None:
                progress(1)
    return pd.DataFrame(rows, columns=["hook_name", "feature", "n_firings", "per_firing", "per_token"])


def compare_roles(single: pd.DataFrame, *, min_features: int = 6) -> dict[str, float]:
    """Kruskal-Wallis of `per_firing` between root, mid and leaf: h, p, epsilon_squared, n (D17).

    With fewer than `min_features` features all but n are NaN.

    How it can mislead: a large p alone is not "no difference"; read epsilon squared (share of rank variance) and n.
    """
    from scipy.stats import kruskal

    if single.empty:
        return {"h": float("nan"), "p": float("nan"), "epsilon_squared": float("nan"), "n": 0}
    table = single[single["role"].isin(["root", "mid", "leaf"])].dropna(subset=["per_firing"])
    groups = [g["per_firing"].to_numpy() for _, g in table.groupby("role") if len(g)]
    n = int(sum(len(g) for g in groups))
    if len(groups) < 2 or n < min_features or np.ptp(np.concatenate(groups)) == 0:
        return {"h": float("nan"), "p": float("nan"), "epsilon_squared": float("nan"), "n": n}
    h, p = kruskal(*groups)
    return {"h": float(h), "p": float(p), "epsilon_squared": float(h) / (n - 1), "n": n}


class RandomDirection:
    """Subtract, at each valid position, a random direction with the norm of what an ablation would remove (C6).

    It answers whether the cost of an ablation comes from what is removed or from the size of the push alone.
    """

    def __init__(self, ablation: FeatureAblation, *, seed: int = 0) -> None:
        self.ablation, self.seed = ablation, seed

    def fwd_hooks(self, valid: Tensor | None = None) -> list[Hook]:
        """Hooks for `model.hooks(fwd_hooks=...)`, at the ablation's hook points."""
        generator = torch.Generator().manual_seed(self.seed)

        def disguise(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
            def hook_fn(value: Tensor, hook: Any) -> Tensor:
                removed = (value - fn(value, hook=hook)).norm(dim=-1, keepdim=True)
                noise = torch.randn(value.shape, generator=generator).to(value)
                return value - removed * noise / noise.norm(dim=-1, keepdim=True)

            return hook_fn

        return [(name, disguise(fn)) for name, fn in self.ablation.fwd_hooks(valid)]


def ablation_parts(
    model: HookedModel,
    saes: Mapping[str, Dictionary],
    carriers: Mapping[str, Sequence[int]],
    profiles: Mapping[str, FeatureProfiles],
    tokens: TokenSet,
    *,
    single: pd.DataFrame | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> pd.DataFrame:
    """The joint cost beside what it is made of and what could stand in for it: part, delta_ce, n_features (C6, C7).

    Parts: the joint cost; each hook point alone; the sum over hook points; the sum of single costs (where `single` is
    given); as many leading features by rate and by mass, carriers or not; a random direction of the removed norm.
    """
    require_carriers(carriers)
    losses = ManyLosses(model, tokens, list(carriers), batch_size=batch_size)

    def cost(intervention: Any) -> float:
        return float((losses.of(intervention) - losses.base).mean())

    total = sum(len(c) for c in carriers.values())
    joint = FeatureAblation(saes, carriers)
    rows: list[tuple[str, float, int]] = [("joint", cost(joint), total)]
    layers = [(name, cost(FeatureAblation(saes, {name: c})), len(c)) for name, c in carriers.items() if len(c)]
    rows += layers
    rows.append(("sum of layers", sum(row[1] for row in layers), total))
    if single is not None:
        rows.append(("sum of singles", float(single["per_token"].sum()), len(single)))
    for label, attribute in (("leading by rate", "firing_rate"), ("leading by mass", "mass")):
        leading = {
            name: np.argsort(-getattr(profiles[name], attribute), kind="stable")[: len(c)].tolist()
            for name, c in carriers.items()
        }
        rows.append((label, cost(FeatureAblation(saes, leading)), total))
    rows.append(("random direction", cost(RandomDirection(joint, seed=seed)), total))
    return pd.DataFrame(rows, columns=["part", "delta_ce", "n_features"])


def ablation_regression(
    model: HookedModel,
    saes: Mapping[str, Dictionary],
    carriers: Mapping[str, Sequence[int]],
    profiles: Mapping[str, FeatureProfiles],
    tokens: TokenSet,
    *,
    n_sets: int = 60,
    set_size: int | None = None,
    set_share: float = 1 / 8,
    n_bootstrap: int = 1000,
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> pd.DataFrame:
    """Regress the load of random sets of alive features on their mass, rate and number of carriers (C6).

    Args:
        n_sets: random sets.
        set_size: features of a set; by default `set_share` of the alive ones.
        set_share: not read where `set_size` is given.
        n_bootstrap: samples of sets for the intervals.
        min_rate: of an alive feature.
        min_count: of an alive feature.

    Returns:
        term, coefficient, low, high (95 %, bootstrap over sets; NaN for fewer than 6), n: standardised coefficients,
        nats a standard deviation.

    How it can mislead: mass and rate are strongly correlated, so their coefficients trade against each other; that of
    `carriers` is what is left once both are known.
    """
    rng = np.random.default_rng(seed)
    losses = ManyLosses(model, tokens, list(carriers), batch_size=batch_size)
    alive = {name: np.flatnonzero(profiles[name].alive(min_rate=min_rate, min_count=min_count)) for name in carriers}
    size = max(1, int(sum(len(a) for a in alive.values()) * set_share)) if set_size is None else set_size
    everything = [(name, int(f)) for name, a in alive.items() for f in a]
    loads, terms = [], []
    for _ in range(n_sets):
        picked = [everything[i] for i in rng.permutation(len(everything))[:size]]
        chosen = {name: [f for h, f in picked if h == name] for name in carriers}
        loads.append(float((losses.of(FeatureAblation(saes, chosen)) - losses.base).mean()))
        terms.append(
            [
                sum(profiles[h].mass[f] for h, f in picked),
                sum(profiles[h].firing_rate[f] for h, f in picked),
                sum(f in set(carriers[h]) for h, f in picked),
            ]
        )
    y, x = np.array(loads), np.array(terms, dtype=float)
    x = (x - x.mean(axis=0)) / np.where(x.std(axis=0) > 0, x.std(axis=0), 1)
    design = np.column_stack([np.ones(len(x)), x])
    fit = np.linalg.lstsq(design, y, rcond=None)[0]
    picks = rng.integers(0, len(y), size=(n_bootstrap, len(y)))
    boot = np.array([np.linalg.lstsq(design[i], y[i], rcond=None)[0] for i in picks])
    names = ["mass", "rate", "carriers"]
    spread = boot if n_sets >= MIN_GROUPS else np.full_like(boot, np.nan)
    return pd.DataFrame(
        [(name, fit[i + 1], *interval(spread[:, i + 1]), n_sets) for i, name in enumerate(names)],
        columns=["term", "coefficient", "low", "high", "n"],
    )
