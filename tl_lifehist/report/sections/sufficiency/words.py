"""Sentences and table cells that the sections of a sufficiency run share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from tl_lifehist.report.figures.cells import Spread, sites_of, spread
from tl_lifehist.report.markup import escape, html, interval, joined, number, percent
from tl_lifehist.report.tables import RunTables

CELLS = "A cell is a checkpoint, hook point and method; medians and quartiles are over cells of one site."


def code(site: object) -> Markup:
    """A site as it is named in hook points."""
    return html("<code>{}</code>", site)


def by_site(name: str, table: pd.DataFrame, make: Callable[[str], go.Figure]) -> dict[str, go.Figure]:
    """One figure per site, under a name that may be a file's."""
    found: dict[str, go.Figure] = {}
    for i, site in enumerate(sites_of(table)):
        key = f"{name}_{re.sub(r'[^A-Za-z0-9_]+', '_', site)[:60]}"
        found[f"{key}_{i}" if key in found else key] = make(site)
    return found


def middle(found: Spread, *, share: bool = False) -> Markup:
    """`0.02 (0.01 to 0.03)`: median and quartiles; only the median where there is one cell."""
    write = percent if share else number
    if found.n < 2:
        return write(found.median)
    return html("{} ({} to {})", write(found.median), write(found.low), write(found.high))


def cell(values: pd.Series, *, share: bool = False) -> Markup:
    """Median with quartiles below it, for a table."""
    found = spread(values)
    if share:
        ends = html("{} to {}", percent(found.low), percent(found.high)) if found.n > 1 else ""
        return percent(found.median) + (html("<small>{}</small>", ends) if ends else "")
    ends = interval(found.low, found.high) if found.n > 1 else ""
    return number(found.median) + (html("<small>{}</small>", ends) if ends else "")


def variance_held(run: RunTables, site: str, *, last: bool = False) -> Markup:
    """What every NMSE has to be read beside: the share of the variance that the farthest rows hold, or nothing."""
    if not run.has("checkpoints"):
        return Markup("")
    rows = run.get("checkpoints")
    if last:
        rows = rows[rows["step"] == rows["step"].max()]
    shares = rows.loc[rows["site"] == site, "top_row_share"].dropna()
    if shares.empty:
        return Markup("")
    where = ", at the last checkpoint" if last else ""
    return html(
        " The 0.1\u00a0% of rows farthest from the mean hold {} of the variance{}.", range_of(shares, share=True), where
    )


def counted(found: int, total: int) -> Markup:
    """`3 of 40 cells`."""
    return html("{:,} of {:,} cells", found, total)


def listed(parts: Iterable[str], otherwise: str = "–") -> Markup:
    """Parts of a sentence in a row."""
    return joined("; ", (part for part in parts if part)) or escape(otherwise)


def range_of(values: pd.Series, *, share: bool = False) -> Markup:
    """`0.1 to 0.3`, or one number where all are equal."""
    write = percent if share else number
    clean = values.dropna()
    if clean.empty:
        return escape("–")
    low, high = write(float(clean.min())), write(float(clean.max()))
    return low if low == high else html("{} to {}", low, high)


def counts(values: pd.Series) -> Markup:
    """`5 to 40`, for counts."""
    clean = values.dropna()
    if clean.empty:
        return escape("–")
    low, high = number(int(clean.min())), number(int(clean.max()))
    return low if low == high else html("{} to {}", low, high)


def below(low: Any, high: Any) -> Markup:
    """An interval in small letters under a number of a table."""
    ends = interval(low, high)
    return html("<small>{}</small>", ends) if ends else Markup("")
