"""The figures of a life-history run: each takes tables as DataFrames and returns a plotly Figure."""

from __future__ import annotations

from tl_lifehist.report.figures.events import event_rates, persistence, rematch_floors
from tl_lifehist.report.figures.foresight import forecast, function_direction, survival
from tl_lifehist.report.figures.graph import dag, recruitment
from tl_lifehist.report.figures.lineages import lineage_raster, nulls
from tl_lifehist.report.figures.load import content_load, load_against_controls, load_parts, single_ablation

__all__ = [
    "content_load",
    "dag",
    "event_rates",
    "forecast",
    "function_direction",
    "lineage_raster",
    "load_against_controls",
    "load_parts",
    "nulls",
    "persistence",
    "recruitment",
    "rematch_floors",
    "single_ablation",
    "survival",
]
