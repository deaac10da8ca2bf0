"""What the onset says of the end: forecast of carriers, function against direction, survival (D16, D21 to D23)."""

from __future__ import annotations

from tl_lifehist.dictionaries.sae import SAEs
from tl_lifehist.lifehistory.config import CarrierRule, Containment, Forecasting
from tl_lifehist.lifehistory.direction import function_and_direction
from tl_lifehist.lifehistory.forecast import predict_carriers
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.lifehistory.survival import kaplan_meier, survival_by_entropy
from tl_lifehist.stages import Inputs, Outputs


def forecasts(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    rule: CarrierRule,
    containment: Containment,
    forecast: Forecasting,
    null_draws: int,
    seed: int,
) -> Outputs:
    """Tables `forecast`, `direction`, `kaplan_meier` and `survival_by_entropy`."""
    history = History(inputs, steps, hook_names)
    saes = SAEs({(s, h): sae for s in steps for h, sae in history.saes_of(s).items()})
    onset = knobs(forecast, "onset", "onset_share")
    found = predict_carriers(
        history.profiles,
        history.lineages,
        history.carriers(rule),
        saes=saes,
        seed=seed,
        min_lift=containment.min_lift,
        **onset,
        **knobs(forecast, "min_positives", "n_folds", "n_repeats", "n_permutations", "inverse_penalty"),
    )
    table = found.to_dataframe()
    table["onset"] = found.onset
    table["reason"] = found.reason or ""
    survival = survival_by_entropy(history.profiles, history.lineages, n_groups=forecast.n_groups, **onset)
    return {
        "forecast": table,
        "direction": function_and_direction(history.profiles, history.lineages, saes, n_draws=null_draws, seed=seed),
        "kaplan_meier": kaplan_meier(history.lineages),
        "survival_by_entropy": survival,
    }
