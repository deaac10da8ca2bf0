"""Whether a run's tables are those that its study declares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tl_lifehist.runs import Run
from tl_lifehist.tables import Table


def assert_as_declared(run: Run, declared: Mapping[str, Table], without: Iterable[str] = ()) -> None:
    """Each table is declared and each declared one is there, less `without`; columns and types are as declared."""
    assert set(run.tables) == set(declared) - set(without)
    assert all(declared[name].condition for name in without)
    assert [declared[name].difference(run.table(name)) for name in run.tables] == [""] * len(run.tables)
