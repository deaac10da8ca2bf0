"""The figures of a run: each takes tables as DataFrames and returns a plotly Figure."""

from __future__ import annotations

from tl_lifehist.report.figures.bridge import carrier_masks
from tl_lifehist.report.figures.events import event_rates, persistence, rematch_floors
from tl_lifehist.report.figures.forecasts import forecast, function_direction, survival
from tl_lifehist.report.figures.frontier import frontier, onset
from tl_lifehist.report.figures.graph import dag, recruitment
from tl_lifehist.report.figures.lineages import lineage_raster, nulls
from tl_lifehist.report.figures.load import ablation_parts, content_load, load_against_controls, single_ablation
from tl_lifehist.report.figures.mask_checks import explained_variance, stability
from tl_lifehist.report.figures.mask_controls import enrichment, gates_by_rank, mass_matched, predicted_kl
from tl_lifehist.report.figures.mask_training import anisotropy, sender_receiver, transfer_curves
from tl_lifehist.report.figures.masks import checkpoint_layer_maps, cross_evaluation, mask_summary
from tl_lifehist.report.figures.trajectories import trajectories

__all__ = [
    "ablation_parts",
    "anisotropy",
    "carrier_masks",
    "checkpoint_layer_maps",
    "content_load",
    "cross_evaluation",
    "dag",
    "enrichment",
    "event_rates",
    "explained_variance",
    "forecast",
    "frontier",
    "function_direction",
    "gates_by_rank",
    "lineage_raster",
    "load_against_controls",
    "mask_summary",
    "mass_matched",
    "nulls",
    "onset",
    "persistence",
    "predicted_kl",
    "recruitment",
    "rematch_floors",
    "sender_receiver",
    "single_ablation",
    "stability",
    "survival",
    "trajectories",
    "transfer_curves",
]
