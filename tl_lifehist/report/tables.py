"""What a report reads: `study.json` and `tables/*.parquet` of a run folder, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tl_lifehist.errors import InputError
from tl_lifehist.report.schema import SCHEMAS, Schema


@dataclass(frozen=True, eq=False)
class RunTables:
    """One run as its report sees it.

    Attributes:
        path: the run's folder.
        study: `study.json`.
        tables: every table of `columns` that is there, with rows in depth order of their hook points.
        columns: the tables that a report on this study reads, and the columns it uses of them.
    """

    path: Path
    study: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    columns: Schema

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
        """Checkpoints in order: the study's, else those of the tables."""
        named = self.study.get("steps")
        if isinstance(named, list) and all(isinstance(step, int) for step in named):
            return sorted(named)
        return sorted({int(step) for t in self.tables.values() if "step" in t for step in t["step"].dropna()})

    @property
    def kind(self) -> str:
        """The study that made the run, as `study.json` names it."""
        return str(self.study["study"])

    def why_not(self, name: str) -> str | None:
        """Why a table cannot be shown (it is missing, empty, or lacks a column), or None where it can."""
        table = self.tables.get(name)
        if table is None:
            return f"this run has no table “{name}”"
        lacking = [column for column in self.columns[name] if column not in table]
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
        return self.tables[name] if self.has(name) else pd.DataFrame(columns=list(self.columns[name]))


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
    columns = SCHEMAS.get(str(study.get("study")))
    if columns is None:
        known = " or ".join(repr(name) for name in SCHEMAS)
        raise InputError(f"{str(record)!r} records the study {study.get('study')!r}; this report reads {known} runs.")
    names = study.get("hook_names")
    depth = [str(name) for name in names] if isinstance(names, list) else []
    tables = {}
    for name in columns:
        file = path / "tables" / f"{name}.parquet"
        if file.is_file():
            try:
                tables[name] = in_depth_order(pd.read_parquet(file), depth)
            except (OSError, ValueError) as error:  # pyarrow's errors are one or the other
                raise InputError(
                    f"{str(file)!r} cannot be read as Parquet: delete it and run the study again."
                ) from error
    return RunTables(path, study, tables, columns)


def in_depth_order(table: pd.DataFrame, hook_names: Sequence[str]) -> pd.DataFrame:
    """Rows by depth of their hook point, otherwise in their own order; figures then show hook points by depth."""
    if "hook_name" not in table:
        return table
    place = {name: i for i, name in enumerate(hook_names)}
    depth = table["hook_name"].map(place).fillna(len(place))
    return table.iloc[depth.argsort(kind="stable")].reset_index(drop=True)
