"""From the stages' tables to the run's: joined, completed, and with the claims stated."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tl_lifehist.claims import claims_table
from tl_lifehist.inference.worlds import false_positives
from tl_lifehist.lifehistory import noise
from tl_lifehist.lifehistory.claims import make_claims
from tl_lifehist.lifehistory.config import CarrierRule, Verdicts
from tl_lifehist.lifehistory.forecast import training_phase
from tl_lifehist.lifehistory.history import History
from tl_lifehist.lifehistory.lineages import Carriers
from tl_lifehist.lifehistory.published import published_table
from tl_lifehist.lifehistory.stages.calibration import measured_features
from tl_lifehist.stages import Inputs, Outputs

_COPIED = (
    ("lineages", "lineages"),
    ("noise", "rematch"),
    ("noise", "nulls"),
    ("graphs", "edges"),
    ("recruitment", "dag"),
    ("forecasts", "forecast"),
    ("forecasts", "forecast_gain"),
    ("forecasts", "direction"),
    ("forecasts", "direction_by_hook"),
    ("forecasts", "survival_at_rate"),
    ("forecasts", "survival_by_entropy"),
    ("forecasts", "kaplan_meier"),
    ("noise", "direction_noise"),
    ("singles", "single"),
    ("singles", "ablation_parts"),
    ("singles", "ablation_regression"),
    ("content", "contexts"),
    ("content", "content"),
    ("sweeps", "sweeps"),
    ("calibration", "calibration"),
)


def tables(
    inputs: Inputs,
    *,
    steps: tuple[int, ...],
    hook_names: tuple[str, ...],
    controls: tuple[str, ...],
    rule: CarrierRule,
    frozen_level: str,
    onset_share: float,
    verdicts: Verdicts,
    seed: int,
) -> Outputs:
    """Every table of the run.

    Args:
        controls: kinds of control sets, each with a stage of its own.
        frozen_level: the level of SAE noise that the run's own way to initialise has, "data", "init" or "warm".
    """
    history = History(inputs, steps, hook_names)
    carriers = history.carriers(rule)
    found = {name: _read(inputs, stage, name) for stage, name in _COPIED}
    for name in ("load", "load_summary"):
        found[name] = pd.concat([_read(inputs, f"load/{kind}", name) for kind in controls], ignore_index=True)
    found["events"] = events_table(history, found["rematch"], onset_share, verdicts.phase_two_share)
    found["features"] = features_table(history, carriers)
    found["carriers"] = carriers_table(history, found["features"])
    found["checkpoints"] = checkpoints_table(history)
    if len(found["single"]):
        known = found["features"][found["features"]["step"] == history.last][["hook_name", "feature", "content"]]
        found["single"] = found["single"].merge(known, on=["hook_name", "feature"], how="left")
    if len(found["content"]):
        single = found["single"]
        alone = single[single["carrier"]].groupby("content")["per_token"].agg(single_load="mean", n_single="size")
        found["content"] = found["content"].merge(alone.reset_index(), how="left", on="content")
    hits = found["forecast"]["recall_at_k"] * found["forecast"]["n_positive"]
    place = list(found["forecast"].columns).index("recall_top_decile") + 1
    found["forecast"].insert(place, "recall_of_all", hits / len(carriers) if len(carriers) else np.nan)
    errs = false_positives(found["calibration"]) if len(found["calibration"]) else None
    claims = make_claims(history.lineages, carriers, found, frozen_level, seed, verdicts=verdicts, false_positives=errs)
    found["claims"] = claims_table(claims)
    found["published"] = published_table(found, history.lineages, carriers, early_share=verdicts.early_share)
    return {name: table for name, table in found.items() if len(table.columns)}


def _read(inputs: Inputs, stage: str, table: str) -> pd.DataFrame:
    held = inputs[stage]
    return held[table] if table in held else pd.DataFrame()


def events_table(history: History, rematch: pd.DataFrame, onset_share: float, phase_two_share: float) -> pd.DataFrame:
    """Births, deaths and both by transition, with the match rate beside the re-match rates of its start (D8, C1)."""
    births, deaths = history.lineages.births(), history.lineages.deaths()
    for table in (births, deaths):
        table["match_rate"] = np.nan
    deaths["match_rate"] = 1 - deaths["fraction"]
    found = [noise.floors(rematch, h, s) for h, s in zip(deaths["hook_name"], deaths["step_from"], strict=True)]
    for level in noise.LEVELS:
        deaths[f"floor_{level}"] = [f[level] for f in found]
    # over the data floor persistence is lowest, over the init floor highest: the truth cannot be told from here
    deaths["persistence_low"] = deaths["match_rate"] / deaths["floor_data"]
    deaths["persistence_high"] = deaths["match_rate"] / deaths["floor_init"]
    deaths["fraction_beyond_noise"] = deaths["fraction"] - (1 - deaths["floor_data"])
    both = deaths[["hook_name", "step_from", "step_to"]].copy()
    for column in ("count", "per_step", "per_log_step"):
        both[column] = births[column] + deaths[column]
    # an event takes one of those alive before or adds one of those alive after, so no share exceeds 1
    both["n_alive"] = births["n_alive"] + deaths["n_alive"]
    both["fraction"] = (both["count"] / both["n_alive"]).where(both["n_alive"] > 0)
    parts = {"birth": births, "death": deaths, "both": both}
    events = pd.concat([table.assign(kind=kind) for kind, table in parts.items()], ignore_index=True)
    shares = {"onset_share": onset_share, "phase_two_share": phase_two_share}
    phases = [training_phase(step, history.last, **shares) for step in events["step_to"]]
    return events.assign(phase=phases)


def features_table(history: History, carriers: Carriers) -> pd.DataFrame:
    """Every alive feature at every checkpoint with its measures, lineage, roles and class."""
    table, keys = measured_features(history, carriers), ["step", "hook_name", "feature"]
    table = table.merge(_read(history.inputs, "graphs", "roles"), on=keys, how="left")
    classes = _read(history.inputs, "content", "classes")
    return table.merge(classes, on=keys, how="left") if len(classes) else table.assign(content=None)


def carriers_table(history: History, features: pd.DataFrame) -> pd.DataFrame:
    """The carriers at the last checkpoint, one row each."""
    table = features[features["carrier"] & (features["step"] == history.last)]
    table = table.merge(history.lineages.summary()[["lineage", "birth", "n_snapshots"]], on="lineage", how="left")
    stable = {h: set(found) for h, found in history.inputs["noise"]["stable"].items()}
    table["seed_stable"] = [f in stable[h] for h, f in zip(table["hook_name"], table["feature"], strict=True)]
    table = table.rename(columns={"role_container": "role"})
    names = ["lineage", "hook_name", "feature", "birth", "n_snapshots", "firing_rate", "mass", "strength", "entropy"]
    return table[[*names, "top_token_share", "role", "content", "seed_stable"]].reset_index(drop=True)


def checkpoints_table(history: History) -> pd.DataFrame:
    """Loss of the model and quality of its SAEs at every checkpoint."""
    rows = []
    for step in history.steps:
        record = history.inputs[f"profiles/step{step}"]["checkpoint"]
        for h in history.hook_names:
            alive = len(history.lineages.alive[step, h])
            rows.append((step, h, record["base_ce"], record["n_scored"], record["fvu"][h], alive))
    return pd.DataFrame(rows, columns=["step", "hook_name", "base_ce", "n_scored", "fvu", "n_alive"])
