"""From the checkpoints' tables to the run's: joined, with trajectories and onset, and with the claims stated."""

from __future__ import annotations

import pandas as pd

from tl_lifehist.claims import claims_table
from tl_lifehist.stages import Inputs, Outputs
from tl_lifehist.sufficiency.claims import make_claims
from tl_lifehist.sufficiency.config import Masks, Trends, Verdicts
from tl_lifehist.sufficiency.onset import onset_table
from tl_lifehist.sufficiency.published import published_table
from tl_lifehist.sufficiency.sites import joined
from tl_lifehist.sufficiency.trajectories import trajectories

SCORED = (
    *("checkpoints", "dictionaries", "components", "evaluation", "nulls", "frontier", "transfer", "anisotropy"),
    "stability",
)


def tables(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    bridge_steps: tuple[int, ...],
    masks: Masks,
    seeds: tuple[int, ...],
    trends: Trends,
    verdicts: Verdicts,
    seed: int,
) -> Outputs:
    """Every table of the run.

    Args:
        bridge_steps: checkpoints whose SAEs of a life history were masked.
    """
    found = {name: joined([inputs[f"scores/step{s}"][name] for s in steps]) for name in SCORED}
    found["masks"] = operating_masks(joined([inputs[f"masks/step{s}"]["gates"] for s in steps]), masks.penalty_total)
    other = joined([inputs[f"refits/step{s}"]["stability"] for s in steps])
    pairs = [name for name in other.columns.astype(str) if not name.startswith("dictionary_")]
    # masks of further seeds are the close-ups' alone, dictionaries of further seeds those of methods that have a start
    found["stability"] = found["stability"].merge(other, on=pairs, how="outer").fillna({"target": "downstream"})
    if len(found["frontier"]):
        found["onset"] = onset_table(
            found["frontier"], found["evaluation"], max_lost=trends.max_lost, margin=trends.onset_margin
        )
    found["trajectories"] = trajectories(
        found["evaluation"],
        checkpoints=found["checkpoints"],
        n_bootstrap=trends.trend_draws,
        max_p=trends.trend_p,
        seed=seed,
    )
    if bridge_steps:
        carriers = joined([inputs[f"feature_masks/step{s}"]["carriers"] for s in bridge_steps])
        found["carriers"] = carriers.sort_values(["step", "layer", "keep_error", "hook_name"], ignore_index=True)
    found["published"] = published_table(found, least_units=verdicts.least_units)
    claims = make_claims(found, masks, verdicts=verdicts, seed=seed)
    return {name: table for name, table in found.items() if len(table.columns)} | {"claims": claims_table(claims)}


def operating_masks(gates: pd.DataFrame, penalty_total: float) -> pd.DataFrame:
    """The gates at the study's own penalty, which its figures are of."""
    own = gates[gates["penalty_total"] == penalty_total]
    return own.drop(columns="penalty_total").reset_index(drop=True)
