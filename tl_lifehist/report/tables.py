"""What a report reads: the record and the tables of a run folder, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.tables import TABLES as LIFE_HISTORY
from tl_lifehist.store import Store
from tl_lifehist.sufficiency.tables import TABLES as SUFFICIENCY
from tl_lifehist.tables import Table

TABLES: Mapping[str, Mapping[str, Table]] = {"life-history": LIFE_HISTORY, "sufficiency": SUFFICIENCY}


@dataclass(frozen=True, eq=False)
class RunTables:
    """One run as its report sees it.

    Attributes:
        path: the run's folder.
        study: `study.json`.
        tables: every table that is there, with rows in depth order of their hook points.
    """

    path: Path
    study: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]

    @property
    def hook_names(self) -> list[str]:
        """Hook points in depth order."""
        return [str(name) for name in self.study["hook_names"]]

    @property
    def steps(self) -> list[int]:
        """Checkpoints in order."""
        return sorted(int(step) for step in self.study["steps"])

    @property
    def kind(self) -> str:
        """The study that made the run, as `study.json` names it."""
        return str(self.study["study"])

    def why_not(self, name: str) -> str | None:
        """Why a table cannot be shown (it is missing, empty, or lacks a column), or None where it can."""
        table = self.tables.get(name)
        if table is None:
            return f"this run has no table “{name}”"
        lacking = [column for column in self._columns(name) if column not in table]
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
        return self.tables[name] if self.has(name) else pd.DataFrame(columns=self._columns(name))

    def _columns(self, name: str) -> list[str]:
        """The columns that a table has in every run; none are known of a table that no study declares."""
        declared = TABLES[self.kind].get(name)
        return declared.always if declared else []


def read_run(run_path: str | Path) -> RunTables:
    """Read the study's record and the tables of a finished run, each file compared with its checksum.

    Raises:
        InputError: no run folder, one of an earlier version, one that is not finished, or a damaged file.
    """
    store = Store(run_path)
    study = store.record
    if study["study"] not in TABLES:
        known = " or ".join(map(repr, TABLES))
        raise InputError(f"{store.path} holds a run of the study {study['study']!r}; this report reads {known} runs.")
    tables = {name: in_depth_order(store.table(name), study["hook_names"]) for name in store.tables}
    return RunTables(store.path, study, tables)


def in_depth_order(table: pd.DataFrame, hook_names: Sequence[str]) -> pd.DataFrame:
    """Rows by depth of their hook point, otherwise in their own order; figures then show hook points by depth."""
    if "hook_name" not in table:
        return table
    place = {name: i for i, name in enumerate(hook_names)}
    depth = table["hook_name"].map(place).fillna(len(place))
    return table.iloc[depth.argsort(kind="stable")].reset_index(drop=True)
