"""This run's numbers beside those of the paper on functional sufficiency."""

from __future__ import annotations

from markupsafe import Markup

from tl_lifehist.report.markup import html, number, table
from tl_lifehist.report.sections.base import Content
from tl_lifehist.report.tables import RunTables


def published(run: RunTables) -> Content:
    """This run's medians beside the paper's."""
    data = run.get("published")
    names = {"quantity": "quantity", "ours": "this run", "published": "published", "n": "n of this run"}
    rows = [[number(row[name]) for name in names] for row in data.to_dict("records")]
    return Content(
        text=Markup(
            "From Bernas, Chevalier, Jourdan, Hudelot, arXiv 2608.15323 (2026), medians over seven models. Printed "
            "to compare, never to tune towards. <strong>At which site the published figures were taken is not known "
            "to us</strong>, nor over which cells: their size fits the output of one MLP, where the empty mask costs "
            "little as well."
        ),
        definition="Each quantity as the sections of this page define it; a quantity that this run did not compute has "
        "a dash.",
        control="There is none: a published figure is no null. Read ours beside the empty mask of the same site.",
        sample=html("{:,} quantities; n in the table is this run's.", len(data)),
        misleads="Agreement with a published figure is no replication where model, site, text or dictionary size "
        "differ.",
        table=table(list(names.values()), rows, left=len(names) - 1),
    )
