"""What features cost alone, and what the joint load is made of (D17, C6, C7)."""

from __future__ import annotations

import numpy as np

from tl_lifehist.lifehistory.ablation_breakdown import ablation_parts, ablation_regression, single_ablation
from tl_lifehist.lifehistory.config import Alive, CarrierRule
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.seeds import derive_seed
from tl_lifehist.stages import Inputs, Outputs


def singles(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    alive: Alive,
    rule: CarrierRule,
    load_tokens: int,
    singles_per_role: int,
    single_carriers: int,
    regression_sets: int,
    regression_share: float,
    null_draws: int,
    seed: int,
) -> Outputs:
    """Tables `single`, `ablation_parts` and `ablation_regression`; nothing where there are no carriers."""
    history = History(inputs, steps, hook_names)
    if not len(history.carriers(rule)):
        return {}
    last, text = history.last, inputs.text("test").head(load_tokens)
    model, saes, carriers = inputs.model(last), history.saes_of(last), history.carriers(rule).at(last)
    roles = inputs["graphs"]["roles"]
    roles = roles[roles["step"] == last]
    rng = np.random.default_rng(derive_seed(seed, 19))
    marked = [(h, int(f)) for h, features in carriers.items() for f in features]
    chosen = {marked[i] for i in rng.permutation(len(marked))[:single_carriers]}
    sampled: set[tuple[str, int]] = set()  # drawn without regard to history: only these compare the roles
    for _, group in roles.groupby("role_container"):
        picked = group.iloc[rng.permutation(len(group))[:singles_per_role]]
        sampled |= set(zip(picked["hook_name"], picked["feature"].astype(int), strict=True))
    chosen |= sampled
    features = {h: sorted(f for name, f in chosen if name == h) for h in hook_names}
    table = single_ablation(model, saes, features, text)
    table = table.merge(roles[["hook_name", "feature", "role_container"]], on=["hook_name", "feature"], how="left")
    table = table.rename(columns={"role_container": "role"})
    table["sampled"] = [(h, f) in sampled for h, f in zip(table["hook_name"], table["feature"], strict=True)]
    table["carrier"] = [f in set(carriers[h]) for h, f in zip(table["hook_name"], table["feature"], strict=True)]
    # the sum of single costs is comparable only where every carrier was ablated alone
    of_carriers = table[table["carrier"]] if len(marked) <= single_carriers else None
    thresholds = knobs(alive, "min_rate", "min_count")
    return {
        "single": table,
        "ablation_parts": ablation_parts(model, saes, carriers, history.final, text, single=of_carriers, seed=seed),
        "ablation_regression": ablation_regression(
            model,
            saes,
            carriers,
            history.final,
            text,
            n_sets=regression_sets,
            set_share=regression_share,
            n_bootstrap=null_draws,
            **thresholds,
            seed=seed,
        ),
    }
