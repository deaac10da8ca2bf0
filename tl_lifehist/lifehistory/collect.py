"""From the units' tables to the run's: joined, completed, and with the claims stated."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from tl_lifehist.lifehistory import noise
from tl_lifehist.lifehistory.claims import make_claims
from tl_lifehist.lifehistory.forecast import training_phase
from tl_lifehist.lifehistory.published import published_table
from tl_lifehist.lifehistory.study import LifeHistoryStudy
from tl_lifehist.lifehistory.workspace import Workspace
from tl_lifehist.runs import RunFolder

_LOADS = ("load_by_count", "load_by_rate", "load_by_mass")
_COPIED = (
    ("lineages", "lineages"),
    ("noise_controls", "rematch"),
    ("noise_controls", "nulls"),
    ("graphs", "edges"),
    ("graphs", "dag"),
    ("forecasts", "forecast"),
    ("forecasts", "direction"),
    ("forecasts", "survival_by_entropy"),
    ("forecasts", "kaplan_meier"),
    ("noise_controls", "direction_noise"),
    ("singles", "single"),
    ("singles", "ablation_parts"),
    ("singles", "ablation_regression"),
    ("content", "contexts"),
    ("content", "content"),
    ("sweeps", "sweeps"),
)


def collect(folder: RunFolder, study: LifeHistoryStudy) -> None:
    """Gather the units' tables, add those that join several of them, and state the claims."""
    work = Workspace(str(folder.path), study)
    tables = {name: work.read(unit, name) for unit, name in _COPIED}
    for name in ("load", "load_summary"):
        tables[name] = pd.concat([work.read(unit, name) for unit in _LOADS], ignore_index=True)
    tables["events"] = events_table(work, tables["rematch"])
    tables["features"] = features_table(work)
    tables["carriers"] = carriers_table(work, tables["features"])
    tables["checkpoints"] = checkpoints_table(work)
    if len(tables["single"]):
        known = tables["features"][tables["features"]["step"] == work.last][["hook_name", "feature", "content"]]
        tables["single"] = tables["single"].merge(known, on=["hook_name", "feature"], how="left")
    if len(tables["content"]):
        single = tables["single"]
        alone = single[single["carrier"]].groupby("content")["per_token"].agg(single_load="mean", n_single="size")
        tables["content"] = tables["content"].merge(alone.reset_index(), how="left", on="content")
    tables["claims"] = make_claims(work.lineages, work.carriers, tables, study.frozen_level, study.seed)
    tables["published"] = published_table(tables, work.lineages, work.carriers)
    for name, table in tables.items():
        if name != "claims" and len(table.columns):
            folder.write_table(name, table)
    folder.write_table("claims", tables["claims"])  # last: a run with claims is a finished run


def events_table(work: Workspace, rematch: pd.DataFrame) -> pd.DataFrame:
    """Births, deaths and both by transition, with the match rate beside the re-match rates of its start (D8, C1)."""
    births, deaths = work.lineages.births(), work.lineages.deaths()
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
    both = deaths[["hook_name", "step_from", "step_to", "n_alive"]].copy()
    for column in ("count", "per_step", "per_log_step", "fraction"):
        both[column] = births[column] + deaths[column]
    parts = {"birth": births, "death": deaths, "both": both}
    events = pd.concat([table.assign(kind=kind) for kind, table in parts.items()], ignore_index=True)
    return events.assign(phase=[training_phase(step, work.last) for step in events["step_to"]])


def features_table(work: Workspace) -> pd.DataFrame:
    """Every alive feature at every checkpoint with its measures, lineage, roles and class."""
    parts = []
    for (step, h), profile in work.profiles.items():
        alive = work.lineages.alive[step, h]
        columns = {
            name: getattr(profile, name)[alive] for name in ("firing_rate", "count", "entropy", "strength", "mass")
        }
        columns["vocabulary_entropy"] = profile.vocabulary_entropy[alive]
        columns["top_token_share"] = profile.top_token_share()[alive]
        parts.append(pd.DataFrame({"step": step, "hook_name": h, "feature": alive, **columns}))
    table = pd.concat(parts, ignore_index=True)
    keys = ["step", "hook_name", "feature"]
    table = table.merge(work.lineages.to_dataframe()[[*keys, "lineage"]], on=keys, how="left")
    table["carrier"] = table["lineage"].isin(work.carriers.lineages)
    table = table.merge(work.read("graphs", "roles"), on=keys, how="left")
    classes = work.read("content", "classes")
    return table.merge(classes, on=keys, how="left") if len(classes) else table.assign(content=None)


def carriers_table(work: Workspace, features: pd.DataFrame) -> pd.DataFrame:
    """The carriers at the last checkpoint, one row each."""
    table = features[features["carrier"] & (features["step"] == work.last)]
    table = table.merge(work.lineages.summary()[["lineage", "birth", "n_snapshots"]], on="lineage", how="left")
    stable = json.loads((work.unit("analysis/noise_controls") / "stable.json").read_text())
    table["seed_stable"] = [f in set(stable[h]) for h, f in zip(table["hook_name"], table["feature"], strict=True)]
    table = table.rename(columns={"role_container": "role"})
    names = ["lineage", "hook_name", "feature", "birth", "n_snapshots", "firing_rate", "mass", "strength", "entropy"]
    return table[[*names, "top_token_share", "role", "content", "seed_stable"]].reset_index(drop=True)


def checkpoints_table(work: Workspace) -> pd.DataFrame:
    """Loss of the model and quality of its SAEs at every checkpoint."""
    rows = []
    for step in work.study.series.steps:
        record = json.loads((work.unit(f"saes/step{step}/base") / "checkpoint.json").read_text())
        for h in work.study.hook_names:
            alive = len(work.lineages.alive[step, h])
            rows.append((step, h, record["base_ce"], record["n_scored"], record["fvu"][h], alive))
    return pd.DataFrame(rows, columns=["step", "hook_name", "base_ce", "n_scored", "fvu", "n_alive"])
