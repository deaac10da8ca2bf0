"""This run's numbers beside those of the paper on life histories."""

from __future__ import annotations

from tl_lifehist.report.markup import html, number, table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.tables import RunTables

COLUMNS = {
    "quantity": "quantity",
    "ours": "this run",
    "pythia_160m": "Pythia-160M",
    "pythia_410m": "Pythia-410M",
    "n": "n of this run",
}


def published(run: RunTables) -> Content:
    """A table, and no verdict: the runs differ in everything."""
    data = run.get("published")
    rows = [[number(row[name]) for name in COLUMNS] for row in data.to_dict("records")]
    return Content(
        text="From Stecher, Radovanović, Sikimić, Kahle, arXiv 2605.18789 (2026). Printed to compare, never to tune "
        "towards: counts depend on model, SAEs, tokens and thresholds together.",
        definition="Each quantity as its section below defines it; a quantity that this run did not compute has a "
        "dash.",
        control="There is none: a published figure is no null. The controls of this run stand in its sections.",
        sample=html("{:,} quantities; n in the table is this run's.", len(data)),
        misleads="Agreement with a published figure is no replication where model, text or SAE size differ.",
        table=table(list(COLUMNS.values()), rows, left=4),
    )
