"""What carriers bear: joint cross-layer ablation against matched controls (D18, D19)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.effects import BATCH_SIZE
from tl_lifehist.errors import InputError
from tl_lifehist.inference.exchange import BLOCK, CALIPER, exchanged
from tl_lifehist.interventions import FeatureAblation
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.lifehistory.controls import (
    LEAST_EQUALS,
    MAX_SMD,
    MAX_UNMATCHED,
    Chosen,
    Equals,
    equals_of,
    require_carriers,
    with_role,
)
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.many_losses import ManyLosses
from tl_lifehist.metrics import bootstrap_mean
from tl_lifehist.models import HookedModel
from tl_lifehist.nulls import Null
from tl_lifehist.tokens import TokenSet

MAX_P = 0.05
DRAWS = ["kind", "draw", "delta_ce", "adjusted", "delta_ce_carriers", "adjusted_carriers"]


@dataclass(frozen=True, eq=False)
class JointAblation:
    """The joint cost of the carriers beside its controls.

    Attributes:
        delta_ce: mean cross-entropy without the carriers minus with them, nats (D18).
        delta_ce_interval: its 95 % interval over documents (C12).
        base_ce: mean cross-entropy of the bare model, nats.
        controls: one row per draw: kind, draw, delta_ce (of the set under exchange), adjusted (the same less what its
            total of the matched quantity explains), delta_ce_carriers (of the carriers that have an equal).
        balance: one row per kind: n_draws, n_equals (carriers that have an equal), carriers (their cost, less what
            their total explains), control_mean, control_sd, low, high (95 % of carriers less control_mean), p,
            detectable, unmatched_share, smd_log_rate, smd_log_mass (largest standardised difference within a layer),
            verdict.
        p_values: `{kind: p}`; NaN where the verdict is "not testable".
        verdicts: `{kind: "beyond" | "within" | "not testable"}`.
        n_scored: scored positions.

    How it can mislead: carriers are the broadest features by selection, so a count control is no null for them:
    removing broad features costs more whatever their history. Under the rate and mass controls only carriers that have
    an equal are compared, which are the lighter ones. Sets under exchange hold carriers too, so the difference is
    smaller than that between carriers and others.
    """

    delta_ce: float
    delta_ce_interval: tuple[float, float]
    base_ce: float
    controls: pd.DataFrame
    balance: pd.DataFrame
    p_values: dict[str, float]
    verdicts: dict[str, str]
    n_scored: int


def joint_ablation(
    model: HookedModel,
    saes: Mapping[str, Dictionary],
    carriers: Mapping[str, Sequence[int]],
    profiles: Mapping[str, FeatureProfiles],
    tokens: TokenSet,
    *,
    graph: nx.DiGraph | None = None,
    controls: Sequence[str] = ("count", "rate", "mass"),
    n_draws: int = 100,
    seed: int = 0,
    mode: str = "zero",
    form: str = "subtract",
    batch_size: int = BATCH_SIZE,
    among: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
    block: int = BLOCK,
    caliper: float = CALIPER,
    max_unmatched: float = MAX_UNMATCHED,
    max_smd: float = MAX_SMD,
    max_p: float = MAX_P,
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
    progress: Callable[[int], Any] | None = None,
) -> JointAblation:
    """Joint cost of the carriers at every hook point in one pass, against sets of their equals (D18, D19).

    The label "carrier" is exchanged among alive features of a layer that are alike, and the cost of each set so marked
    is measured anew; p counts the draws that cost as much, once the straight line of the cost on the sets' total of the
    matched quantity is taken out of all of them. Were carriers chosen by that quantity alone, p would be uniform.

    Args:
        saes: `{hook_name: sae}` of one checkpoint, e.g. `saes.at(step)`.
        carriers: `{hook_name: [feature, ...]}` at that checkpoint, e.g. `carriers.at(step)`.
        profiles: `{hook_name: FeatureProfiles}` at that checkpoint; they define alive, rate and mass.
        tokens: text to score.
        graph: a containment graph; adds count controls drawn among its roots, mids and leaves.
        controls: of `CONTROLS`: "count", "rate", "mass", "norm", and what was registered; may be empty beside `graph`
            or `among`.
        n_draws: draws of each kind.
        mode: as in `FeatureAblation` ("mean" and "resample" need dictionaries with a reference).
        form: as in `FeatureAblation`.
        among: further mass-matched kinds by name, with the features that they are about by hook point, carriers and
            others (for instance seed-stable ones).
        block: features of like quantity among which the label is exchanged (ours).
        caliper: how far they may lie apart, in decades (ours).
        max_unmatched: share of carriers without an equal, above which a kind is not testable.
        max_smd: standardised difference of the matched quantity within a layer, above which a kind is not testable
            (ours).
        max_p: largest p of the verdict "beyond".
        min_rate: of an alive feature.
        min_count: of an alive feature.
        progress: called with 1 before each ablation of a set.

    Raises:
        InputError: an empty carrier set, an unknown kind of control, a hook point without SAE or profile.
    """
    require_carriers(carriers)
    if controls or (graph is None and not among):
        CONTROLS.require(controls, "controls")
    missing = [name for name in carriers if name not in saes or name not in profiles]
    if missing:
        raise InputError(
            f"There is no SAE or no profile for {missing[0]!r}: give both for every hook point with carriers."
        )
    losses = ManyLosses(model, tokens, list(carriers), batch_size=batch_size)
    reference = losses.of(FeatureAblation(saes, carriers, mode=mode, form=form, seed=seed).baseline)

    def change(chosen: Mapping[str, Sequence[int]]) -> NDArray[np.float64]:
        return losses.of(FeatureAblation(saes, chosen, mode=mode, form=form, seed=seed)) - reference

    whole = {name: sorted(int(f) for f in chosen) for name, chosen in carriers.items()}
    joint = change(whole)
    known = {repr(sorted(whole.items())): float(joint.mean())}

    def cost(chosen: Chosen) -> float:
        key = repr(sorted(chosen.items()))
        if key not in known:
            known[key] = float(change(chosen).mean())
        return known[key]

    thresholds = {"block": block, "caliper": caliper, "min_rate": min_rate, "min_count": min_count}
    plan: list[tuple[str, Equals]] = [(k, equals_of(profiles, carriers, kind=k, **thresholds)) for k in controls]
    if graph is not None:
        for role in ("root", "mid", "leaf"):
            beside = with_role(graph, role)
            plan.append((f"count_{role}", equals_of(profiles, carriers, kind="count", among=beside, **thresholds)))
    for label, inside in (among or {}).items():
        own = {h: [f for f in chosen if f in set(inside.get(h, []))] for h, chosen in whole.items()}
        plan.append((label, equals_of(profiles, own, kind="mass", among=inside, **thresholds)))

    found: list[pd.DataFrame] = []
    balance: list[dict[str, Any]] = []
    for i, (label, equals) in enumerate(plan):
        gaps = balance_of(equals, profiles)
        matched = {"rate": "smd_log_rate", "mass": "smd_log_mass"}.get(equals.kind)
        level = matched is None or abs(gaps[matched]) <= max_smd
        enough = equals.strata.marked.sum() >= LEAST_EQUALS and equals.strata.unmatched_share <= max_unmatched
        rows = pd.DataFrame(columns=DRAWS).astype({"draw": np.int64})
        if level and enough:
            rows = _draws(equals, cost, n_draws, seed + 1000 * i, progress).assign(kind=label)[DRAWS]
        found.append(rows)
        balance.append(_row(label, equals, rows, gaps, max_p))
    table = pd.DataFrame(balance)
    assert tokens.documents is not None
    return JointAblation(
        delta_ce=float(joint.mean()),
        delta_ce_interval=bootstrap_mean(joint, tokens.documents[tokens.scored].numpy(), seed=seed),
        base_ce=float(losses.base.mean()),
        controls=pd.concat([rows for rows in found if len(rows)] or [found[0]], ignore_index=True),
        balance=table,
        p_values=dict(zip(table["kind"], table["p"], strict=True)),
        verdicts=dict(zip(table["kind"], table["verdict"], strict=True)),
        n_scored=tokens.n_scored,
    )


def balance_of(equals: Equals, profiles: Mapping[str, FeatureProfiles]) -> dict[str, float]:
    """Standardised differences of log rate and log mass between the carriers tested and their equals, each of the
    layer where it is largest.
    """
    gaps = {}
    for name, attribute in (("smd_log_rate", "firing_rate"), ("smd_log_mass", "mass")):
        of = {h: np.log10(np.maximum(getattr(profiles[h], attribute), 1e-30)) for h in np.unique(equals.hook_names)}
        values = np.array([of[h][f] for h, f in zip(equals.hook_names, equals.features, strict=True)])
        gaps[name] = equals.smd(values)
    return gaps


def _draws(
    equals: Equals, cost: Callable[[Chosen], float], n_draws: int, seed: int, progress: Callable[[int], Any] | None
) -> pd.DataFrame:
    """Costs of the sets under exchange, as they are and less what their total explains."""

    def counted(marked: NDArray[np.bool_]) -> float:
        if progress is not None:
            progress(1)
        return cost(equals.chosen(marked))

    rng = np.random.default_rng(seed)
    found = exchanged(equals.strata, counted, n_draws, rng, measure=equals.measure)
    return pd.DataFrame(
        {
            "draw": np.arange(n_draws),
            "delta_ce": found.costs,
            "adjusted": found.null.draws,
            "delta_ce_carriers": found.observed,
            "adjusted_carriers": found.null.observed,
        }
    )


def _row(label: str, equals: Equals, rows: pd.DataFrame, gaps: Mapping[str, float], max_p: float) -> dict[str, Any]:
    observed = float(rows["adjusted_carriers"].iloc[0]) if len(rows) else float("nan")
    null = Null(observed, rows["adjusted"].to_numpy(dtype=float))
    low, high = null.shifted
    return {
        "kind": label,
        "n_draws": len(rows),
        "n_equals": int(equals.strata.marked.sum()),
        "carriers": null.observed,
        "control_mean": null.mean,
        "control_sd": null.sd,
        "low": low,
        "high": high,
        "p": null.p,
        "detectable": null.detectable,
        "unmatched_share": equals.strata.unmatched_share,
        **gaps,
        "verdict": ("beyond" if null.p <= max_p else "within") if len(rows) else "not testable",
    }
