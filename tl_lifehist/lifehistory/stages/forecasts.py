"""What the onset says of the end: forecast of carriers, function against direction, survival (D16, D21 to D23)."""

from __future__ import annotations

from dataclasses import asdict

import pandas as pd

from tl_lifehist.dictionaries.sae import SAEs
from tl_lifehist.lifehistory.beyond_rate import Gain
from tl_lifehist.lifehistory.config import CarrierRule, Containment, EqualFeatures, Forecasting
from tl_lifehist.lifehistory.direction import direction_by_hook, function_and_direction
from tl_lifehist.lifehistory.forecast import predict_carriers
from tl_lifehist.lifehistory.history import History, knobs
from tl_lifehist.lifehistory.survival import (
    kaplan_meier,
    onset_cohort,
    survival_at_equal_rate,
    survival_by_entropy,
)
from tl_lifehist.seeds import derive_seed
from tl_lifehist.stages import Inputs, Outputs

NAN = float("nan")


def forecasts(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    rule: CarrierRule,
    containment: Containment,
    forecast: Forecasting,
    equals: EqualFeatures,
    n_draws: int,
    null_draws: int,
    seed: int,
) -> Outputs:
    """Tables `forecast`, `forecast_gain`, `direction`, `direction_by_hook`, `kaplan_meier`, `survival_by_entropy` and
    `survival_at_rate`.
    """
    history = History(inputs, steps, hook_names)
    saes = SAEs({(s, h): sae for s in steps for h, sae in history.saes_of(s).items()})
    onset = knobs(forecast, "onset", "onset_share")
    like = {"block": equals.rate_block, "caliper": equals.caliper}
    found = predict_carriers(
        history.profiles,
        history.lineages,
        history.carriers(rule),
        saes=saes,
        seed=seed,
        min_lift=containment.min_lift,
        n_draws=n_draws,
        n_bootstrap=null_draws,
        **like,
        **onset,
        **knobs(forecast, "min_positives", "n_folds", "n_repeats", "n_permutations", "inverse_penalty"),
    )
    table = found.to_dataframe()
    table["onset"] = found.onset
    table["reason"] = found.reason or ""
    survival = survival_by_entropy(history.profiles, history.lineages, n_groups=forecast.n_groups, **onset)
    gain = found.gain or Gain(NAN, NAN, NAN, NAN, found.n, found.n_positive)
    cohort = onset_cohort(history.profiles, history.lineages, **onset)
    at_rate = survival_at_equal_rate(cohort, **like, n_draws=null_draws, seed=derive_seed(seed, 23))
    low, high = at_rate.shifted
    longer = {
        "difference": at_rate.observed - at_rate.mean,
        "low": low,
        "high": high,
        "p": at_rate.p,
        "detectable": at_rate.detectable,
        "n": len(cohort.rate),
        "n_survived": int(cohort.reached.sum()),
    }
    return {
        "forecast": table,
        "forecast_gain": pd.DataFrame([asdict(gain)]),
        "direction": function_and_direction(history.profiles, history.lineages, saes, n_draws=null_draws, seed=seed),
        "direction_by_hook": direction_by_hook(history.profiles, history.lineages, saes),
        "kaplan_meier": kaplan_meier(history.lineages),
        "survival_by_entropy": survival,
        "survival_at_rate": pd.DataFrame([longer]),
    }
