"""How often each tested claim errs in planted worlds of this run's size."""

from __future__ import annotations

import pandas as pd

from tl_lifehist.inference.worlds import rejections
from tl_lifehist.lifehistory.config import CarrierRule, EqualFeatures
from tl_lifehist.lifehistory.forecast import onset_step
from tl_lifehist.lifehistory.history import History
from tl_lifehist.lifehistory.lineages import Carriers
from tl_lifehist.lifehistory.worlds import life_history_worlds
from tl_lifehist.seeds import derive_seed
from tl_lifehist.stages import Inputs, Outputs


def calibration(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    rule: CarrierRule,
    equals: EqualFeatures,
    onset: int | None,
    onset_share: float,
    n_draws: int,
    level: float,
    worlds: int,
    seed: int,
) -> Outputs:
    """Table `calibration`: what each test rejects where there is nothing."""
    history = History(inputs, steps, hook_names)
    start = onset_step(steps, onset_share=onset_share) if onset is None else onset
    tables = {"features": measured_features(history, history.carriers(rule)), "edges": inputs["graphs"]["edges"]}
    made = life_history_worlds(tables, equals=equals, onset=start, n_draws=n_draws) if worlds else []
    return {"calibration": rejections(made, n_worlds=worlds, level=level, seed=derive_seed(seed, 29))}


def measured_features(history: History, carriers: Carriers) -> pd.DataFrame:
    """Every alive feature at every checkpoint with its measures and lineage."""
    parts = []
    for (step, h), profile in history.profiles.items():
        alive = history.lineages.alive[step, h]
        columns = {
            name: getattr(profile, name)[alive] for name in ("firing_rate", "count", "entropy", "strength", "mass")
        }
        columns["vocabulary_entropy"] = profile.vocabulary_entropy[alive]
        columns["top_token_share"] = profile.top_token_share()[alive]
        parts.append(pd.DataFrame({"step": step, "hook_name": h, "feature": alive, **columns}))
    table = pd.concat(parts, ignore_index=True)
    keys = ["step", "hook_name", "feature"]
    table = table.merge(history.lineages.to_dataframe()[[*keys, "lineage"]], on=keys, how="left")
    table["carrier"] = table["lineage"].isin(carriers.lineages)
    return table
