"""Tables are declared once: the page on them is written from that, and a DataFrame is compared with it."""

from __future__ import annotations

import runpy
from pathlib import Path

import pandas as pd
import pytest

from tl_lifehist.report.tables import TABLES
from tl_lifehist.tables import Column, Table, flag, integer, number, text

DOCS = Path(__file__).parents[2] / "docs"
TABLE = Table(
    "toy",
    "A toy.",
    {
        "step": integer("checkpoint", "steps"),
        "share": number("how much", "share"),
        "found": Column("int or missing", "how many", "features"),
        "kept": flag("whether it stays"),
        "name": text("what it is called", condition="it has one"),
    },
    "toys",
)
FRAME = pd.DataFrame({"step": [1], "share": [0.5], "found": [float("nan")], "kept": [True], "name": ["a"]})


def test_the_page_on_tables_is_current() -> None:
    """`python docs/write_tables.py` writes it."""
    assert (DOCS / "tables.md").read_text(encoding="utf-8") == runpy.run_path(str(DOCS / "write_tables.py"))["page"]()


def test_a_table_as_declared_differs_in_nothing() -> None:
    assert TABLE.difference(FRAME) == ""
    assert TABLE.difference(FRAME.drop(columns="name")) == ""
    assert TABLE.difference(FRAME.assign(found=[2])) == ""
    assert TABLE.always == ["step", "share", "found", "kept"]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            FRAME.drop(columns="share"),
            r"toy has the columns \['step', 'found', 'kept', 'name'\], not \['step', 'share'",
        ),
        (FRAME[["share", "step", "found", "kept", "name"]], r"toy has the columns \['share', 'step'"),
        (FRAME.assign(more=1), "toy has the columns .*'more'"),
        (FRAME.assign(step=1.5), r"toy has values of another kind in step \(float64\)"),
        (FRAME.assign(name=1, kept="yes"), r"toy has values of another kind in kept \(.*\), name \(int64\)"),
    ],
)
def test_what_differs_is_said(frame: pd.DataFrame, said: str) -> None:
    assert pd.Series([TABLE.difference(frame)]).str.contains(said, regex=True).all()


def test_types_of_an_empty_table_are_not_compared() -> None:
    assert TABLE.difference(FRAME.astype(object).iloc[:0]) == ""


def test_every_declaration_says_what_it_is() -> None:
    for tables in TABLES.values():
        for name, table in tables.items():
            assert name == table.name
            assert table.about.endswith(".")
            assert all(column.about and not column.about.endswith(".") for column in table.columns.values())
