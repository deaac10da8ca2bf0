"""What a report reads: `study.json` and `tables/*.parquet` of a run folder, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tl_lifehist.errors import InputError

STUDY = "life-history"

# The columns the report uses, by table. A table may have more.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "claims": ("claim", "observed", "null", "low", "high", "p", "n", "verdict"),
    "lineages": ("lineage", "hook_name", "step", "feature", "similarity"),
    "events": (
        *("kind", "hook_name", "step_from", "step_to", "count", "n_alive", "fraction", "per_step", "per_log_step"),
        *("match_rate", "floor_data", "floor_init", "persistence_low", "persistence_high"),
    ),
    "features": ("step", "hook_name", "feature", "lineage", "firing_rate", "carrier"),
    "carriers": (
        *("lineage", "hook_name", "feature", "birth", "n_snapshots", "firing_rate", "mass", "strength", "entropy"),
        *("role", "content", "seed_stable"),
    ),
    "contexts": ("hook_name", "feature", "rank", "activation", "document", "before", "token", "after"),
    "edges": ("step", "orientation", "source_hook", "source_feature", "target_hook", "target_feature"),
    "dag": (
        *("step", "orientation", "n_nodes", "n_edges", "n_root", "n_mid", "n_leaf", "n_isolated", "n_carriers"),
        *("n_can_be_parents", "recruited", "recruited_direct", "recruited_with_carriers"),
        *("null_mean", "null_low", "null_high", "rewired_mean", "p"),
    ),
    "load": ("kind", "draw", "delta_ce", "delta_ce_carriers"),
    "load_summary": (
        *("kind", "n_draws", "carriers", "control_mean", "control_sd", "low", "high", "p", "unmatched_share"),
        *("smd_log_rate", "smd_log_mass", "verdict"),
    ),
    "load_parts": ("part", "delta_ce", "n_features"),
    "load_regression": ("term", "coefficient", "low", "high", "n"),
    "single": ("hook_name", "feature", "role", "carrier", "content", "n_firings", "per_firing", "per_token"),
    "forecast": (
        *("predictor", "auc", "low", "high", "average_precision", "enrichment", "recall_at_k", "recall_top_decile"),
        *("n", "n_positive"),
    ),
    "direction": (
        *("step", "s_fun", "s_fun_low", "s_fun_high", "s_dir", "s_dir_low", "s_dir_high"),
        *("null_fun", "null_dir", "n"),
    ),
    "survival_by_entropy": (
        *("decile", "entropy_low", "entropy_high", "n", "survival", "low", "high", "survival_by_rate"),
    ),
    "rematch": ("step", "hook_name", "level", "replicate", "matched", "n_alive", "rate"),
    "nulls": ("null", "draw", "carriers"),
    "content": (
        *("content", "n", "share_of_carriers", "joint_load", "null_load_mean", "null_load_low", "null_load_high"),
        *("single_load", "share_of_descendants"),
    ),
    "sweeps": ("parameter", "value", "quantity", "result"),
    "checkpoints": ("step", "base_ce"),
    "published": ("quantity", "ours", "n", "pythia_160m", "pythia_410m"),
}


@dataclass(frozen=True, eq=False)
class RunTables:
    """One run as its report sees it.

    Attributes:
        path: the run's folder.
        study: `study.json`.
        tables: every table of `COLUMNS` that is there, with rows in depth order of their hook points.
    """

    path: Path
    study: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]

    @property
    def hook_names(self) -> list[str]:
        """Hook points in depth order: the study's, else those of the tables in order of appearance."""
        named = self.study.get("hook_names")
        if isinstance(named, list):
            return [str(name) for name in named]
        found = (name for t in self.tables.values() if "hook_name" in t for name in t["hook_name"])
        return list(dict.fromkeys(str(name) for name in found))

    @property
    def steps(self) -> list[int]:
        """Checkpoints in order: the study's, else those of the lineages."""
        named = self.study.get("steps")
        if isinstance(named, list) and all(isinstance(step, int) for step in named):
            return sorted(named)
        return sorted({int(step) for step in self.get("lineages")["step"]}) if self.has("lineages") else []

    def why_not(self, name: str) -> str | None:
        """Why a table cannot be shown (it is missing, empty, or lacks a column), or None where it can."""
        table = self.tables.get(name)
        if table is None:
            return f"this run has no table “{name}”"
        lacking = [column for column in COLUMNS[name] if column not in table]
        if lacking:
            return f"the table “{name}” has no column “{lacking[0]}”"
        return f"the table “{name}” is empty" if table.empty else None

    def why_none(self, *names: str) -> str | None:
        """The first reason why what needs all of these tables cannot be shown, or None where it can."""
        return next((reason for name in names if (reason := self.why_not(name))), None)

    def has(self, name: str) -> bool:
        """Whether a table can be shown."""
        return self.why_not(name) is None

    def get(self, name: str) -> pd.DataFrame:
        """A table that `has` said is there; an empty one with the right columns where it is not."""
        return self.tables[name] if self.has(name) else pd.DataFrame(columns=list(COLUMNS[name]))


def read_run(run_path: str | Path) -> RunTables:
    """Read the study's record and the tables of a run folder.

    Raises:
        InputError: there is no run folder here, or a file of it cannot be read.
    """
    path = Path(run_path)
    record = path / "study.json"
    if not record.is_file():
        raise InputError(f"{str(path)!r} holds no study.json, so it is no run folder: give the folder a study wrote.")
    try:
        study = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{str(record)!r} cannot be read as JSON ({error}): run the study again.") from error
    if not isinstance(study, dict):
        raise InputError(f"{str(record)!r} holds no JSON object: run the study again.")
    if study.get("study") != STUDY:
        raise InputError(f"{str(record)!r} records the study {study.get('study')!r}; this report reads {STUDY!r} runs.")
    names = study.get("hook_names")
    depth = [str(name) for name in names] if isinstance(names, list) else []
    tables = {}
    for name in COLUMNS:
        file = path / "tables" / f"{name}.parquet"
        if file.is_file():
            try:
                tables[name] = in_depth_order(pd.read_parquet(file), depth)
            except (OSError, ValueError) as error:  # pyarrow's errors are one or the other
                raise InputError(
                    f"{str(file)!r} cannot be read as Parquet: delete it and run the study again."
                ) from error
    return RunTables(path, study, tables)


def in_depth_order(table: pd.DataFrame, hook_names: Sequence[str]) -> pd.DataFrame:
    """Rows by depth of their hook point, otherwise in their own order; figures then show hook points by depth."""
    if "hook_name" not in table:
        return table
    place = {name: i for i, name in enumerate(hook_names)}
    depth = table["hook_name"].map(place).fillna(len(place))
    return table.iloc[depth.argsort(kind="stable")].reset_index(drop=True)
