"""Whatever text a run holds, wherever it holds it, the page shows it as text."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from pages import Page
from plausible import plausible_tables, study_record
from plausible_masks import mask_record, plausible_mask_tables

from tl_lifehist.report import page
from tl_lifehist.report.markup import escape, html, joined
from tl_lifehist.report.tables import RunTables

HOSTILE = "\"'><script>alert(1)</script><b onclick='x'>&amp;"
SMALL = {"steps": [0, 512], "layers": (0,), "methods": ("svd", "nmf"), "n_draws": 1}
TABLES = {"life-history": plausible_tables(n=40, n_edges=20, n_draws=3), "sufficiency": plausible_mask_tables(**SMALL)}
RECORDS = {"life-history": study_record(), "sufficiency": mask_record([0, 512], (0,))}


def is_text(column: pd.Series) -> bool:
    return column.map(lambda value: isinstance(value, str)).any()


@pytest.fixture(autouse=True)
def _without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "get_plotlyjs", lambda: "")


def text_of(tables: dict[str, pd.DataFrame], record: dict) -> str:
    return page.render([RunTables(Path("run"), record, tables)])


def assert_only_text(text: str, scripts: int) -> None:
    read = Page(text)
    assert (read.open, read.suspicious, read.scripts) == ([], [], scripts)
    assert "<script>alert" not in text
    assert "&amp;lt;script" not in text  # nor is anything escaped twice


@pytest.mark.parametrize("place", [0, -1])
@pytest.mark.parametrize("study", RECORDS)
def test_text_in_a_table_is_never_markup(study: str, place: int) -> None:
    """The first or the last value of every text column, made hostile wherever it stands."""
    tables = {}
    for name, table in TABLES[study].items():
        columns = {}
        for column in filter(lambda c: is_text(table[c]), table):
            chosen = table[column].dropna().iloc[place]
            columns[column] = table[column].where(table[column] != chosen, f"{chosen}{HOSTILE}")
        tables[name] = table.assign(**columns)
    record = json.loads(json.dumps(RECORDS[study]))
    record["hook_names"][place] += HOSTILE
    text = text_of(tables, record)
    assert text.count("&lt;script&gt;alert(1)") > 20
    assert_only_text(text, scripts=text.count('<script type="application/json">') + 2)  # plotly's and the page's own


@pytest.mark.parametrize("study", RECORDS)
def test_the_record_of_a_run_is_never_markup(study: str) -> None:
    record = json.loads(json.dumps(RECORDS[study]))
    for key in ("series", "integrity"):
        record[key] = HOSTILE
    for key in ("config", "reduced", "versions", "fingerprints"):
        record[key] = {HOSTILE: HOSTILE}
    record["config"] |= {"section": {HOSTILE: [HOSTILE]}}
    record["texts"] = {HOSTILE: {"key": HOSTILE, "sequences": HOSTILE, "positions": HOSTILE}}
    record["hook_names"] = [*record["hook_names"], HOSTILE]
    assert_only_text(text_of({}, record), scripts=2)


def test_text_is_escaped_once_and_markup_never() -> None:
    assert escape("a < 'b'") == "a &lt; &#x27;b&#x27;"
    assert escape(escape("<")) == "&lt;"
    assert html("<p>{}: {:,} {}</p>", "<b>", 1234, html("<i>{}</i>", "&")) == "<p>&lt;b&gt;: 1,234 <i>&amp;</i></p>"
    assert joined(", ", ["<", html("<br>")]) == "&lt;, <br>"
