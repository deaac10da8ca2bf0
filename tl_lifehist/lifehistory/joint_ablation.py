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
from tl_lifehist.effects import BATCH_SIZE, scored_losses
from tl_lifehist.errors import InputError
from tl_lifehist.interventions import FeatureAblation
from tl_lifehist.lifehistory.caliper import CALIPER, N_NEAREST
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.lifehistory.controls import (
    MAX_SMD,
    MAX_UNMATCHED,
    Chosen,
    ControlDraw,
    balance_of,
    draw_controls,
    require_carriers,
    with_role,
)
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles
from tl_lifehist.metrics import bootstrap_mean
from tl_lifehist.models import HookedModel
from tl_lifehist.nulls import Null
from tl_lifehist.tokens import TokenSet

MAX_P = 0.05


@dataclass(frozen=True, eq=False)
class JointAblation:
    """The joint cost of the carriers beside its controls.

    Attributes:
        delta_ce: mean cross-entropy without the carriers minus with them, nats (D18).
        delta_ce_interval: its 95 % interval over documents (C12).
        base_ce: mean cross-entropy of the bare model, nats.
        controls: one row per draw: kind, draw, delta_ce (of the control set), delta_ce_carriers (of the carriers that
            this draw is compared with: all of them, or a random subset where the controls are too few).
        balance: one row per kind: n_draws, carriers, control_mean, control_sd, low, high, p, unmatched_share,
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
    n_nearest: int = N_NEAREST,
    caliper: float = CALIPER,
    max_unmatched: float = MAX_UNMATCHED,
    max_smd: float = MAX_SMD,
    max_p: float = MAX_P,
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
    progress: Callable[[int], Any] | None = None,
) -> JointAblation:
    """Joint cost of the carriers at every hook point in one pass, against matched control sets (D18, D19).

    Args:
        saes: `{hook_name: sae}` of one checkpoint, e.g. `saes.at(step)`.
        carriers: `{hook_name: [feature, ...]}` at that checkpoint, e.g. `carriers.at(step)`.
        profiles: `{hook_name: FeatureProfiles}` at that checkpoint; they define alive, rate and mass.
        tokens: text to score.
        graph: a containment graph; adds count controls drawn among its roots, mids and leaves.
        controls: of `CONTROLS`: "count", "rate", "mass", and what was registered.
        n_draws: draws of each kind.
        mode: as in `FeatureAblation` ("mean" and "resample" need dictionaries with a reference).
        form: as in `FeatureAblation`.
        among: further mass-matched kinds by name, with their candidates by hook point (for instance seed-stable
            features).
        n_nearest: see `draw_controls`.
        caliper: see `draw_controls`.
        max_unmatched: share of carriers without an equal, above which a kind is not testable.
        max_smd: standardised difference of the matched quantity, above which a kind is not testable (ours).
        max_p: largest p of the verdict "beyond".
        min_rate: of an alive feature.
        min_count: of an alive feature.
        progress: called with 1 after each control.

    Raises:
        InputError: an empty carrier set, an unknown kind of control, a hook point without SAE or profile.
    """
    require_carriers(carriers)
    CONTROLS.require(controls, "controls")
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
        draws = draw_controls(
            profiles,
            carriers,
            kind=kind,
            n_draws=n_draws,
            seed=seed + 1000 * i,
            among=candidates,
            n_nearest=n_nearest,
            caliper=caliper,
            min_rate=min_rate,
            min_count=min_count,
        )
        unmatched = float(np.mean([d.unmatched_share for d in draws])) if draws else 0.0
        gaps = balance_of(draws, profiles)
        matched = {"rate": "smd_log_rate", "mass": "smd_log_mass"}.get(kind)
        level = matched is None or abs(gaps[matched]) <= max_smd
        testable = unmatched <= max_unmatched and level and any(any(c) for d in draws for c in d.controls.values())
        kind_rows = []
        for draw in draws if testable else []:
            kind_rows.append((label, draw.draw, cost(draw.controls), cost(draw.carriers)))
            if progress is not None:
                progress(1)
        rows += kind_rows
        balance.append(_verdict(label, draws, kind_rows, unmatched, gaps, max_p))
    table = pd.DataFrame(balance)
    return JointAblation(
        delta_ce=observed,
        delta_ce_interval=bootstrap_mean(joint, documents, seed=seed),
        base_ce=float(base.mean()),
        controls=pd.DataFrame(rows, columns=["kind", "draw", "delta_ce", "delta_ce_carriers"]),
        balance=table,
        p_values=dict(zip(table["kind"], table["p"], strict=True)),
        verdicts=dict(zip(table["kind"], table["verdict"], strict=True)),
        n_scored=tokens.n_scored,
    )


def _verdict(
    kind: str,
    draws: Sequence[ControlDraw],
    rows: Sequence[tuple[str, int, float, float]],
    unmatched: float,
    gaps: Mapping[str, float],
    max_p: float,
) -> dict[str, Any]:
    control = np.array([row[2] for row in rows])
    against = np.array([row[3] for row in rows])
    null = Null(float(against.mean()) if len(rows) else float("nan"), control)
    # a draw is compared with its own carriers, which are a random part of them where the controls are too few
    p = Null(0.0, control - against).p
    verdict = ("beyond" if p <= max_p else "within") if len(rows) else "not testable"
    return {
        "kind": kind,
        "n_draws": len(rows),
        "carriers": null.observed,
        "control_mean": null.mean,
        "control_sd": null.sd,
        "low": null.low,
        "high": null.high,
        "p": p,
        "unmatched_share": unmatched,
        **gaps,
        "subset": any(d.subset for d in draws),
        "verdict": verdict,
    }
