"""What the carriers bear jointly at the last checkpoint, beside one kind of control sets (D18, D19)."""

from __future__ import annotations

from typing import Any

import pandas as pd

from tl_lifehist.lifehistory.config import Alive, CarrierRule, EqualFeatures
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.lifehistory.joint_ablation import JointAblation, joint_ablation
from tl_lifehist.seeds import derive_seed
from tl_lifehist.stages import Inputs, Outputs


def load(
    inputs: Inputs,
    *,
    kind: str,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    alive: Alive,
    rule: CarrierRule,
    equals: EqualFeatures,
    n_draws: int,
    n_described: int,
    load_tokens: int,
    level: float,
    seed: int,
) -> Outputs:
    """Tables `load`, a row for each draw, and `load_summary`, a row for each kind; nothing where there are no carriers.

    Args:
        kind: one of `CONTROLS`; its entry says whether it is drawn by role and among seed-stable features as well.
        n_draws: sets of this kind.
        n_described: sets drawn by role and among seed-stable features.
    """
    history, control = History(inputs, steps, hook_names), CONTROLS[kind]
    carriers = history.carriers(rule)
    if not len(carriers):
        return {}  # nothing to ablate: the claims say so

    def beside(kinds: tuple[str, ...], draws: int, **more: Any) -> JointAblation:
        return joint_ablation(
            inputs.model(history.last),
            history.saes_of(history.last),
            carriers.at(history.last),
            history.final,
            inputs.text("test").head(load_tokens),
            controls=kinds,
            max_p=level,
            n_draws=draws,
            **knobs(equals, "block", "caliper", "max_unmatched", "max_smd"),
            **knobs(alive, "min_rate", "min_count"),
            seed=derive_seed(seed, 17, control.stream) % (1 << 31),
            **more,
        )

    found = [beside((kind,), n_draws)]
    if control.by_role:
        found.append(beside((), n_described, graph=history.graph(history.last)))
    if control.among_stable and any(inputs["noise"]["stable"].values()):
        found.append(beside((), n_described, among={"stable": inputs["noise"]["stable"]}))
    first = found[0]
    summary = pd.concat([one.balance for one in found], ignore_index=True).assign(
        delta_ce=first.delta_ce,
        delta_low=first.delta_ce_interval[0],
        delta_high=first.delta_ce_interval[1],
        base_ce=first.base_ce,
        n_scored=first.n_scored,
    )
    draws = [one.controls for one in found]
    return {"load": pd.concat([d for d in draws if len(d)] or draws[:1], ignore_index=True), "load_summary": summary}
