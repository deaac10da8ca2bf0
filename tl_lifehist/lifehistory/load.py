"""What carriers bear: joint cross-layer ablation against matched controls, and single features (D17 to D19, C6, C7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.effects import BATCH_SIZE, scored_losses
from tl_lifehist.errors import InputError
from tl_lifehist.interventions import FeatureAblation
from tl_lifehist.lifehistory.containment import feature_roles
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.metrics import bootstrap_mean, interval, standardised_difference
from tl_lifehist.models import Hook, HookedModel
from tl_lifehist.tokens import TokenSet

Chosen = dict[str, list[int]]
KINDS = ("count", "rate", "mass")
N_NEAREST = 10
CALIPER = 0.25  # decades
MAX_UNMATCHED = 0.10
MAX_SMD = 0.25  # of the matched quantity (ours): beyond it the controls are no equals


@dataclass(frozen=True, eq=False)
class LoadBearing:
    """The joint cost of the carriers beside its controls.

    Attributes:
        delta_ce: mean cross-entropy without the carriers minus with them, nats (D18).
        delta_ce_interval: its 95 % interval over documents (C12).
        base_ce: mean cross-entropy of the bare model, nats.
        controls: one row a draw: kind, draw, delta_ce (of the control set), delta_ce_carriers (of the carriers that
            this draw is compared with: all of them, or a random subset where the controls are too few).
        balance: one row a kind: n_draws, carriers, control_mean, control_sd, low, high, p, unmatched_share,
            smd_log_rate, smd_log_mass (standardised mean differences, carriers minus controls), subset, verdict.
        p_values: `{kind: p}`; NaN where the verdict is "not testable".
        verdicts: `{kind: "beyond" | "within" | "not testable"}`.
        n_scored: scored positions.

    How it can mislead: carriers are the broadest features by selection, so a count control is no null for them:
    removing
    broad features costs more whatever their history. Rate and mass controls can lack equals; then nothing can be said.
    """

    delta_ce: float
    delta_ce_interval: tuple[float, float]
    base_ce: float
    controls: pd.DataFrame
    balance: pd.DataFrame
    p_values: dict[str, float]
    verdicts: dict[str, str]
    n_scored: int


@dataclass(frozen=True)
class ControlDraw:
    """One control set and the carriers it stands against."""

    kind: str
    draw: int
    controls: Chosen
    carriers: Chosen
    unmatched_share: float
    subset: bool


def draw_controls(
    profiles: Mapping[str, FeatureProfiles],
    carriers: Mapping[str, Sequence[int]],
    *,
    kind: str,
    n_draws: int = 100,
    seed: int = 0,
    among: Mapping[str, Sequence[int]] | None = None,
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> list[ControlDraw]:
    """Control sets of alive non-carriers of the same hook points (D19).

    Args:
        kind: "count" draws at random; "rate" and "mass" draw, for each carrier, one without replacement among the 10
            nearest in the logarithm within 0.25 decades.
        among: candidates by hook point; all alive non-carriers by default.

    Where carriers are more than half as many as the candidates at a hook point, each draw takes a random half of the
    candidates' number from both sides (ours). A carrier without an equal is left out of that draw on both sides and
    counted as unmatched, as a share of those tried.

    How it can mislead: control sets of one pool overlap, so their spread, and p with it, is too small when the pool is
    only a few times the carriers.
    """
    rng = np.random.default_rng(seed)
    pools: dict[str, NDArray[np.int64]] = {}
    for name, chosen in carriers.items():
        alive = np.flatnonzero(profiles[name].alive(min_rate=min_rate, min_count=min_count))
        pool = alive if among is None else np.intersect1d(alive, np.asarray(among.get(name, []), dtype=np.int64))
        pools[name] = np.setdiff1d(pool, np.asarray(chosen, dtype=np.int64))
    draws = []
    for draw in range(n_draws):
        controls: Chosen = {}
        against: Chosen = {}
        unmatched, tried, subset = 0, 0, False
        for name, chosen in carriers.items():
            wanted = np.asarray(chosen, dtype=np.int64)
            pool = pools[name]
            if len(pool) == 0:
                unmatched, tried = unmatched + len(wanted), tried + len(wanted)
                controls[name], against[name] = [], []
                continue
            if 2 * len(wanted) > len(pool):
                # draws of nearly the whole pool would hardly differ, and a null without spread rejects anything
                subset = True
                wanted = np.sort(rng.permutation(wanted)[: -(-len(pool) // 2)])
            tried += len(wanted)
            if kind == "count":
                picked = rng.permutation(pool)[: len(wanted)]
                kept = wanted
            else:
                value = np.log10(
                    np.maximum(getattr(profiles[name], {"rate": "firing_rate", "mass": "mass"}[kind]), 1e-30)
                )
                kept, picked = _nearest_draw(value, wanted, pool, rng)
                unmatched += len(wanted) - len(kept)
            controls[name], against[name] = sorted(picked.tolist()), sorted(kept.tolist())
        draws.append(ControlDraw(kind, draw, controls, against, unmatched / max(tried, 1), subset))
    return draws


def _nearest_draw(
    value: NDArray[np.float64], wanted: NDArray[np.int64], pool: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    free = np.ones(len(pool), dtype=bool)
    kept, picked = [], []
    for carrier in rng.permutation(wanted):
        distance = np.where(free, np.abs(value[pool] - value[carrier]), np.inf)
        near = np.argsort(distance, kind="stable")[:N_NEAREST]
        near = near[distance[near] <= CALIPER]
        if len(near):
            choice = int(rng.choice(near))
            free[choice] = False
            kept.append(int(carrier))
            picked.append(int(pool[choice]))
    return np.array(kept, dtype=np.int64), np.array(picked, dtype=np.int64)


def require_carriers(carriers: Mapping[str, Sequence[int]]) -> None:
    """Refuse an empty set: its load is 0 and says nothing."""
    if not any(len(c) for c in carriers.values()):
        raise InputError(
            "The carrier set is empty, so there is nothing to ablate: lower min_snapshots, or use more "
            "or longer-trained checkpoints."
        )


def load_bearing(
    model: HookedModel,
    saes: Mapping[str, Dictionary],
    carriers: Mapping[str, Sequence[int]],
    profiles: Mapping[str, FeatureProfiles],
    tokens: TokenSet,
    *,
    graph: nx.DiGraph | None = None,
    controls: Sequence[str] = KINDS,
    n_draws: int = 100,
    seed: int = 0,
    mode: str = "zero",
    form: str = "subtract",
    batch_size: int = BATCH_SIZE,
    among: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
    progress: Callable[[int], Any] | None = None,
) -> LoadBearing:
    """Joint cost of the carriers at every hook point in one pass, against matched control sets (D18, D19).

    Args:
        saes: `{hook_name: sae}` of one checkpoint, e.g. `saes.at(step)`.
        carriers: `{hook_name: [feature, ...]}` at that checkpoint, e.g. `carriers.at(step)`.
        profiles: `{hook_name: FeatureProfiles}` at that checkpoint; they define alive, rate and mass.
        tokens: text to score.
        graph: a containment graph; adds count controls drawn among its roots, mids and leaves.
        controls: of "count", "rate", "mass".
        n_draws: draws of each kind.
        mode: as in `FeatureAblation` ("mean" and "resample" need dictionaries with a reference).
        form: as in `FeatureAblation`.
        among: further mass-matched kinds by name, with their candidates by hook point (for instance seed-stable
            features).
        progress: called with 1 after each control.

    Raises:
        InputError: an empty carrier set, an unknown kind of control, a hook point without SAE or profile.
    """
    require_carriers(carriers)
    unknown = [kind for kind in controls if kind not in KINDS]
    if unknown:
        raise InputError(f"The control {unknown[0]!r} is unknown: use {', '.join(KINDS)}.")
    missing = [name for name in carriers if name not in saes or name not in profiles]
    if missing:
        raise InputError(
            f"There is no SAE or no profile for {missing[0]!r}: give both for every hook point with carriers."
        )
    plan: list[tuple[str, str, Mapping[str, Sequence[int]] | None]] = [(kind, kind, None) for kind in controls]
    if graph is not None and "count" in controls:
        plan += [(f"count_{role}", "count", with_role(graph, role)) for role in ("root", "mid", "leaf")]
    plan += [(name, "mass", candidates) for name, candidates in (among or {}).items()]

    base = scored_losses(model, tokens, batch_size=batch_size)
    known: dict[str, float] = {}

    def change(chosen: Mapping[str, Sequence[int]]) -> NDArray[np.float64]:
        ablation = FeatureAblation(saes, chosen, mode=mode, form=form, seed=seed)
        start = base
        if ablation.baseline is not None:
            start = scored_losses(model, tokens, ablation.baseline, batch_size=batch_size)
        return scored_losses(model, tokens, ablation, batch_size=batch_size) - start

    def cost(chosen: Chosen) -> float:
        key = repr(sorted(chosen.items()))
        if key not in known:
            known[key] = float(change(chosen).mean())
        return known[key]

    whole = {name: sorted(int(f) for f in chosen) for name, chosen in carriers.items()}
    joint = change(whole)
    observed = known[repr(sorted(whole.items()))] = float(joint.mean())
    assert tokens.documents is not None
    documents = tokens.documents[tokens.scored].numpy()
    rows, balance = [], []
    for i, (label, kind, candidates) in enumerate(plan):
        draws = draw_controls(profiles, carriers, kind=kind, n_draws=n_draws, seed=seed + 1000 * i, among=candidates)
        unmatched = float(np.mean([d.unmatched_share for d in draws])) if draws else 0.0
        gaps = balance_of(draws, profiles)
        matched = {"rate": "smd_log_rate", "mass": "smd_log_mass"}.get(kind)
        level = matched is None or abs(gaps[matched]) <= MAX_SMD
        testable = unmatched <= MAX_UNMATCHED and level and any(any(c) for d in draws for c in d.controls.values())
        kind_rows = []
        for draw in draws if testable else []:
            kind_rows.append((label, draw.draw, cost(draw.controls), cost(draw.carriers)))
            if progress is not None:
                progress(1)
        rows += kind_rows
        balance.append(_verdict(label, draws, kind_rows, unmatched, gaps))
    table = pd.DataFrame(balance)
    return LoadBearing(
        delta_ce=observed,
        delta_ce_interval=bootstrap_mean(joint, documents, seed=seed),
        base_ce=float(base.mean()),
        controls=pd.DataFrame(rows, columns=["kind", "draw", "delta_ce", "delta_ce_carriers"]),
        balance=table,
        p_values=dict(zip(table["kind"], table["p"], strict=True)),
        verdicts=dict(zip(table["kind"], table["verdict"], strict=True)),
        n_scored=tokens.n_scored,
    )


def with_role(graph: nx.DiGraph, role: str) -> Chosen:
    """The features of one role by hook point."""
    chosen: Chosen = {}
    for (name, feature), found in feature_roles(graph).items():
        chosen.setdefault(name, [])
        if found == role:
            chosen[name].append(int(feature))
    return chosen


def balance_of(draws: Sequence[ControlDraw], profiles: Mapping[str, FeatureProfiles]) -> dict[str, float]:
    """Standardised mean differences of log rate and log mass over all draws, carriers minus controls."""
    gaps = {}
    for name, attribute in (("smd_log_rate", "firing_rate"), ("smd_log_mass", "mass")):
        sides = [
            np.concatenate(
                [
                    np.log10(np.maximum(getattr(profiles[h], attribute)[f], 1e-30))
                    for d in draws
                    for h, f in side(d).items()
                ]
                or [np.zeros(0)]
            )
            for side in (lambda d: d.carriers, lambda d: d.controls)
        ]
        gaps[name] = standardised_difference(*sides) if all(len(s) for s in sides) else float("nan")
    return gaps


def _verdict(
    kind: str,
    draws: Sequence[ControlDraw],
    rows: Sequence[tuple[str, int, float, float]],
    unmatched: float,
    gaps: Mapping[str, float],
) -> dict[str, Any]:
    control = np.array([row[2] for row in rows])
    against = np.array([row[3] for row in rows])
    if len(rows):
        p = float((1 + (control >= against).sum()) / (len(rows) + 1))
        low, high = interval(control)
        verdict = "beyond" if p <= 0.05 else "within"
    else:
        p, low, high, verdict = float("nan"), float("nan"), float("nan"), "not testable"
    return {
        "kind": kind,
        "n_draws": len(rows),
        "carriers": float(against.mean()) if len(rows) else float("nan"),
        "control_mean": float(control.mean()) if len(rows) else float("nan"),
        "control_sd": float(control.std()) if len(rows) else float("nan"),
        "low": low,
        "high": high,
        "p": p,
        "unmatched_share": unmatched,
        **gaps,
        "subset": any(d.subset for d in draws),
        "verdict": verdict,
    }


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


def compare_roles(single: pd.DataFrame) -> dict[str, float]:
    """Kruskal-Wallis of `per_firing` between root, mid and leaf: h, p, epsilon_squared, n (D17).

    How it can mislead: a large p alone is not "no difference"; read epsilon squared (share of rank variance) and n.
    """
    from scipy.stats import kruskal

    if single.empty:
        return {"h": float("nan"), "p": float("nan"), "epsilon_squared": float("nan"), "n": 0}
    table = single[single["role"].isin(["root", "mid", "leaf"])].dropna(subset=["per_firing"])
    groups = [g["per_firing"].to_numpy() for _, g in table.groupby("role") if len(g)]
    n = int(sum(len(g) for g in groups))
    if len(groups) < 2 or n < 6 or np.ptp(np.concatenate(groups)) == 0:
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


def load_parts(
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
    base = scored_losses(model, tokens, batch_size=batch_size)

    def cost(intervention: Any) -> float:
        return float((scored_losses(model, tokens, intervention, batch_size=batch_size) - base).mean())

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


def load_regression(
    model: HookedModel,
    saes: Mapping[str, Dictionary],
    carriers: Mapping[str, Sequence[int]],
    profiles: Mapping[str, FeatureProfiles],
    tokens: TokenSet,
    *,
    n_sets: int = 60,
    set_size: int | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> pd.DataFrame:
    """Regress the load of random sets of alive features on their mass, rate and number of carriers (C6).

    Returns:
        term, coefficient, low, high (95 %, bootstrap over sets), n: standardised coefficients, nats a standard
        deviation.

    How it can mislead: mass and rate are strongly correlated, so their coefficients trade against each other; that of
    `carriers` is what is left once both are known.
    """
    rng = np.random.default_rng(seed)
    base = scored_losses(model, tokens, batch_size=batch_size)
    alive = {name: np.flatnonzero(profiles[name].alive()) for name in carriers}
    size = max(1, sum(len(a) for a in alive.values()) // 8) if set_size is None else set_size
    everything = [(name, int(f)) for name, a in alive.items() for f in a]
    loads, terms = [], []
    for _ in range(n_sets):
        picked = [everything[i] for i in rng.permutation(len(everything))[:size]]
        chosen = {name: [f for h, f in picked if h == name] for name in carriers}
        loads.append(
            float((scored_losses(model, tokens, FeatureAblation(saes, chosen), batch_size=batch_size) - base).mean())
        )
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
    picks = rng.integers(0, len(y), size=(1000, len(y)))
    boot = np.array([np.linalg.lstsq(design[i], y[i], rcond=None)[0] for i in picks])
    names = ["mass", "rate", "carriers"]
    return pd.DataFrame(
        [(name, fit[i + 1], *interval(boot[:, i + 1]), n_sets) for i, name in enumerate(names)],
        columns=["term", "coefficient", "low", "high", "n"],
    )
