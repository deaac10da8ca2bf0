"""What the carriers bear jointly at the last checkpoint, beside one kind of control sets (D18, D19)."""

from __future__ import annotations

from tl_lifehist.lifehistory.config import Alive, CarrierRule, Equals
from tl_lifehist.lifehistory.control_kinds import CONTROLS
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.lifehistory.joint_ablation import joint_ablation
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
    equals: Equals,
    n_draws: int,
    load_tokens: int,
    level: float,
    seed: int,
) -> Outputs:
    """Tables `load`, a row for each draw, and `load_summary`, a row for each kind; nothing where there are no carriers.

    Args:
        kind: one of `CONTROLS`; its entry says whether it is drawn by role and among seed-stable features as well.
    """
    history, control = History(inputs, steps, hook_names), CONTROLS[kind]
    carriers = history.carriers(rule)
    if not len(carriers):
        return {}  # nothing to ablate: the claims say so
    found = joint_ablation(
        inputs.model(history.last),
        history.saes_of(history.last),
        carriers.at(history.last),
        history.final,
        inputs.text("test").head(load_tokens),
        controls=(kind,),
        graph=history.graph(history.last) if control.by_role else None,
        among={"stable": inputs["noise"]["stable"]} if control.among_stable else None,
        max_p=level,
        n_draws=n_draws,
        **knobs(equals),
        **knobs(alive, "min_rate", "min_count"),
        seed=derive_seed(seed, 17, control.stream) % (1 << 31),
    )
    summary = found.balance.assign(
        delta_ce=found.delta_ce,
        delta_low=found.delta_ce_interval[0],
        delta_high=found.delta_ce_interval[1],
        base_ce=found.base_ce,
        n_scored=found.n_scored,
    )
    return {"load": found.controls, "load_summary": summary}
