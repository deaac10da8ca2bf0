"""No two ticks of an axis read alike, as a browser writes them, also where a run's values lie close together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from browser import Browser
from plausible import write_run
from plausible_masks import mask_record

from tl_lifehist.report import write_report
from tl_lifehist.report.figures.style import told_apart

pytestmark = pytest.mark.browser

TWICE = """(() => {
  const found = [];
  for (const plot of document.querySelectorAll(".plot"))
    for (const axis of Object.values(plot._fullLayout).filter((one) => one && one._vals && one.showticklabels)) {
      const texts = axis._vals.map((tick) => tick.text).filter((text) => text && text.trim());
      const twice = texts.filter((text, i) => texts.indexOf(text) !== i);
      if (twice.length) found.push([plot.id, axis._name, texts.join(" | ")]);
    }
  return JSON.stringify(found);
})()"""


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


def near(tables: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The same with every share a four-hundredth of itself, so that it lies below one per cent."""
    shares = ("recruited", "recruited_direct", "random", "match_rate", "survival", "top_row_share", "soft_mass")
    out = {}
    for name, table in tables.items():
        hit = [column for column in table if any(column.startswith(share) for share in shares)]
        hit = [column for column in hit if table[column].dtype.kind == "f"]
        out[name] = table.assign(**{column: table[column] / 400 for column in hit})
    return out


@pytest.mark.parametrize("squeezed", [False, True])
@pytest.mark.parametrize("study", ["life-history", "sufficiency"])
def test_no_axis_has_two_ticks_that_read_alike(
    page: Browser, study: str, squeezed: bool, tables, mask_tables, tmp_path: Path
) -> None:
    made = tables if study == "life-history" else mask_tables
    record = None if study == "life-history" else mask_record([0, 512, 143000], (0, 4))
    run = write_run(tmp_path / "run", near(made) if squeezed else made, record)
    page.open(write_report(run), width=1280)
    assert json.loads(page.evaluate(TWICE)) == []


def test_ticks_take_as_many_digits_as_tell_them_apart() -> None:
    assert told_apart([0.301, 0.3042])["ticktext"] == ["0.301", "0.304"]
    assert told_apart([-1.0, 0.0], lambda x: 10**x)["ticktext"] == ["0.1", "1"]
    assert told_apart([2.0, 2.0]) == {"tickvals": [2.0], "ticktext": ["2"]}
    assert len(set(told_apart(list(np.linspace(1, 1 + 1e-9, 5)))["ticktext"])) == 5
