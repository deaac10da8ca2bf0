"""Finished runs: their tables, their claims and their report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tl_lifehist.errors import InputError
from tl_lifehist.stages import plan_held
from tl_lifehist.store import Store


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run: `run.claims`, and every other table by `run.table(name)`; `run.tables` names them.

    Attributes:
        path: the run folder.
    """

    path: Path

    def table(self, name: str) -> pd.DataFrame:
        """One table.

        Raises:
            InputError: no such table, or its file is damaged.
        """
        return Store(self.path).table(name)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables."""
        return Store(self.path).tables

    @property
    def claims(self) -> pd.DataFrame:
        """Every claim beside its null: id, claim, observed, null, low, high, p, n, verdict ("beyond" | "within" |
        "not testable"), note.
        """
        return self.table("claims")

    @property
    def study(self) -> dict[str, Any]:
        """`study.json`: configuration, seed, threads, versions, fingerprints."""
        return Store(self.path).record

    def __repr__(self) -> str:
        try:
            held = f"{self.study['study']} of {self.study.get('series')}, {len(self.tables)} tables"
        except InputError:
            held = "no finished run"
        return f"Run({str(self.path)!r}: {held})"

    def status(self) -> pd.DataFrame:
        """As `run_status`."""
        return run_status(self.path)

    def report(self) -> Path:
        """Write `report.html` into the run folder and return its path; see `write_report`."""
        from tl_lifehist.report.page import write_report

        return write_report(self.path)


def load_run(path: str | Path) -> Run:
    """A finished run from its folder.

    Raises:
        InputError: the folder is no run, or the run is not finished.
    """
    store = Store(path)
    _ = store.record
    store.table("claims")
    return Run(Path(path))


def run_status(path: str | Path) -> pd.DataFrame:
    """What a run folder holds of the stages of its study: stage, state ("done", "missing", "damaged", "stale"), why.

    Every file of every stage is read and compared with its checksum. "stale" is a stage of an earlier configuration,
    that the next start of the run's last command computes again.

    Raises:
        InputError: the folder is no run.
    """
    return pd.DataFrame(plan_held(Store(path)), columns=["stage", "state", "why"])
