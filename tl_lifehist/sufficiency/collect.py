"""From the cells' tables to the run's: joined, with trajectories and onset, and with the claims stated."""

from __future__ import annotations

import pandas as pd

from tl_lifehist.runs import RunFolder
from tl_lifehist.sufficiency.cell import place
from tl_lifehist.sufficiency.claims import make_claims
from tl_lifehist.sufficiency.onset import onset_table
from tl_lifehist.sufficiency.published import published_table
from tl_lifehist.sufficiency.study import SufficiencyStudy
from tl_lifehist.sufficiency.trajectories import trajectories

CELLS = (
    *("checkpoints", "dictionaries", "components", "masks", "evaluation", "nulls", "frontier", "transfer"),
    *("anisotropy", "stability", "stability_dictionaries"),
)


def collect(folder: RunFolder, study: SufficiencyStudy) -> None:
    """Gather the cells' tables in the order of checkpoints and depth, add those that join several, state the claims."""
    cells = [(step, name) for step in study.series.steps for name in study.hook_names or ()]
    tables = {
        table: _joined([folder.unit(f"cells/step{s}/{h}") / f"{table}.parquet" for s, h in cells]) for table in CELLS
    }
    other = tables.pop("stability_dictionaries")
    pairs = [name for name in other.columns.astype(str) if not name.startswith("dictionary_")]
    # masks of further seeds are the close-ups' alone, dictionaries of further seeds those of methods that have a start
    tables["stability"] = tables["stability"].merge(other, on=pairs, how="outer").fillna({"target": "downstream"})
    if len(tables["frontier"].columns) and len(tables["frontier"]):
        tables["onset"] = onset_table(tables["frontier"], tables["evaluation"])
    tables["trajectories"] = trajectories(tables["evaluation"], checkpoints=tables["checkpoints"], seed=study.seed)
    if study.life_history is not None:
        tables["carriers"] = _carriers(folder)
    tables["published"] = published_table(tables)
    claims = make_claims(tables, study.seed, steps=study.steps)
    for name, table in tables.items():
        if len(table.columns):
            folder.write_table(name, table)
    folder.write_table("claims", claims)  # last: a run with claims is a finished run


def _joined(paths: list) -> pd.DataFrame:  # type: ignore[type-arg]
    parts = [pd.read_parquet(path) for path in paths]
    filled = [part for part in parts if len(part)]
    return pd.concat(filled, ignore_index=True) if filled else parts[0]


def _carriers(folder: RunFolder) -> pd.DataFrame:
    table = _joined(sorted(folder.path.glob("units/carriers/*/*/carriers.parquet")))
    places = [place(name) for name in table["hook_name"]]
    table.insert(2, "site", [site for site, _ in places])
    table.insert(3, "layer", [layer for _, layer in places])
    return table.sort_values(["step", "layer", "keep_error"], ignore_index=True)
