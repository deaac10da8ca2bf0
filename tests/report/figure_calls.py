"""Every figure of the report, called with the tables of a run; those of masks with a site as well."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import plotly.graph_objects as go

from tl_lifehist.report import figures

Tables = dict[str, pd.DataFrame]
LIFE: dict[str, Callable[[Tables], go.Figure]] = {
    "lineage_raster": lambda t: figures.lineage_raster(t["lineages"], t["carriers"]),
    "event_rates": lambda t: figures.event_rates(t["events"]),
    "persistence": lambda t: figures.persistence(t["events"]),
    "rematch_floors": lambda t: figures.rematch_floors(t["rematch"]),
    "nulls": lambda t: figures.nulls(t["nulls"], len(t["carriers"])),
    "load_against_controls": lambda t: figures.load_against_controls(t["load"], t["load_summary"]),
    "ablation_parts": lambda t: figures.ablation_parts(t["ablation_parts"]),
    "single_ablation": lambda t: figures.single_ablation(t["single"]),
    "content_load": lambda t: figures.content_load(t["content"]),
    "dag": lambda t: figures.dag(t["edges"], t["features"], t["carriers"]),
    "recruitment": lambda t: figures.recruitment(t["dag"]),
    "forecast": lambda t: figures.forecast(t["forecast"]),
    "function_direction": lambda t: figures.function_direction(t["direction"]),
    "survival": lambda t: figures.survival(t["survival_by_entropy"]),
}
MASKS: dict[str, Callable[[Tables, str], go.Figure]] = {
    "mask_summary": lambda t, site: figures.mask_summary(t["evaluation"], t["nulls"], site),
    "cross_evaluation": lambda t, site: figures.cross_evaluation(t["evaluation"], site),
    "checkpoint_layer_maps": lambda t, site: figures.checkpoint_layer_maps(t["evaluation"], site),
    "mass_matched": lambda t, site: figures.mass_matched(t["evaluation"], t["nulls"], site),
    "enrichment": lambda t, site: figures.enrichment(t["evaluation"], t["nulls"], site),
    "gates_by_rank": lambda t, site: figures.gates_by_rank(t["masks"], t["components"], site),
    "predicted_kl": lambda t, site: figures.predicted_kl(t["evaluation"], site),
    "frontier": lambda t, site: figures.frontier(t["frontier"], site),
    "onset": lambda t, site: figures.onset(t["onset"], site),
    "transfer_curves": lambda t, site: figures.transfer_curves(t["transfer"], site),
    "trajectories": lambda t, site: figures.trajectories(t["trajectories"], site),
    "anisotropy": lambda t, site: figures.anisotropy(t["anisotropy"], site),
    "sender_receiver": lambda t, site: figures.sender_receiver(t["anisotropy"], site),
    "carrier_masks": lambda t, site: figures.carrier_masks(t["carriers"], site),
    "explained_variance": lambda t, site: figures.explained_variance(t["dictionaries"], t["checkpoints"], site),
    "stability": lambda t, site: figures.stability(t["stability"], site),
}
