"""The tables a report reads and the columns it uses of them, by study. A table may have more."""

from __future__ import annotations

from collections.abc import Mapping

Schema = Mapping[str, tuple[str, ...]]

CLAIMS = ("claim", "observed", "null", "low", "high", "p", "n", "verdict")
LIFE_HISTORY: Schema = {
    "claims": CLAIMS,
    "lineages": ("lineage", "hook_name", "step", "feature", "similarity"),
    "events": (
        *("kind", "hook_name", "step_from", "step_to", "count", "n_alive", "fraction", "per_step", "per_log_step"),
        *("match_rate", "floor_data", "floor_init", "persistence_low", "persistence_high"),
    ),
    "features": ("step", "hook_name", "feature", "lineage", "firing_rate", "carrier"),
    "carriers": (
        *("lineage", "hook_name", "feature", "birth", "n_snapshots", "firing_rate", "mass", "strength", "entropy"),
        *("role", "content", "seed_stable"),
    ),
    "contexts": ("hook_name", "feature", "rank", "activation", "document", "before", "token", "after"),
    "edges": ("step", "orientation", "source_hook", "source_feature", "target_hook", "target_feature"),
    "dag": (
        *("step", "orientation", "n_nodes", "n_edges", "n_root", "n_mid", "n_leaf", "n_isolated", "n_carriers"),
        *("n_can_be_parents", "recruited", "recruited_direct", "recruited_with_carriers"),
        *("null_mean", "null_low", "null_high", "rewired_mean", "p"),
    ),
    "load": ("kind", "draw", "delta_ce", "delta_ce_carriers"),
    "load_summary": (
        *("kind", "n_draws", "carriers", "control_mean", "control_sd", "low", "high", "p", "unmatched_share"),
        *("smd_log_rate", "smd_log_mass", "verdict"),
    ),
    "ablation_parts": ("part", "delta_ce", "n_features"),
    "ablation_regression": ("term", "coefficient", "low", "high", "n"),
    "single": ("hook_name", "feature", "role", "carrier", "content", "n_firings", "per_firing", "per_token"),
    "forecast": (
        *("predictor", "auc", "low", "high", "average_precision", "enrichment", "recall_at_k", "recall_top_decile"),
        *("n", "n_positive"),
    ),
    "direction": (
        *("step", "s_fun", "s_fun_low", "s_fun_high", "s_dir", "s_dir_low", "s_dir_high"),
        *("null_fun", "null_dir", "n"),
    ),
    "survival_by_entropy": (
        *("decile", "entropy_low", "entropy_high", "n", "survival", "low", "high", "survival_by_rate"),
    ),
    "rematch": ("step", "hook_name", "level", "replicate", "matched", "n_alive", "rate"),
    "nulls": ("null", "draw", "carriers"),
    "content": (
        *("content", "n", "share_of_carriers", "joint_load", "null_load_mean", "null_load_low", "null_load_high"),
        *("single_load", "share_of_descendants"),
    ),
    "sweeps": ("parameter", "value", "quantity", "result"),
    "checkpoints": ("step", "base_ce"),
    "published": ("quantity", "ours", "n", "pythia_160m", "pythia_410m"),
}

PLACE = ("step", "hook_name", "site", "layer")
CELL = (*PLACE, "method")
SCORES = ("soft_mass", "nmse", "kl", "relative_kl", "lost_fraction", "accuracy_drop")
SUFFICIENCY: Schema = {
    "claims": CLAIMS,
    "published": ("quantity", "ours", "n", "published"),
    "checkpoints": (
        *(*PLACE, "n_scored", "n_documents", "clean_ce", "clean_entropy", "clean_accuracy"),
        *("empty_kl", "empty_relative_kl", "empty_accuracy_drop", "top_row_share"),
    ),
    "dictionaries": (*CELL, "n_components", "n_rows", "explained_variance", "test_nmse", "converged", "n_iter"),
    "components": (*CELL, "component", "tau", "omega", "variance"),
    "masks": (*CELL, "target", "seed", "component", "gate"),
    "evaluation": (
        *(*CELL, "mask", "seed", *SCORES, "kl_low", "kl_high", "fixed_head_relative_kl"),
        *("transfer_nmse", "transfer_relative_kl", "enrichment_tau", "enrichment_omega", "enrichment_curvature"),
        *("predicted_kl", "n_scored"),
    ),
    "nulls": (*CELL, "target", "kind", "draw", *SCORES, "enrichment_tau"),
    "frontier": (
        *(*CELL, "penalty", "soft_mass", "relative_kl", "lost_fraction", "operating", "variance_lost_fraction"),
    ),
    "onset": (*CELL, "onset", "full_lost_fraction"),
    "transfer": (*CELL, "mask", "control", "nmse", "kl", "relative_kl"),
    "anisotropy": (
        *(*CELL, "participation_ratio", "participation_fixed_head", "gini_tau", "gini_null"),
        *("mask_overlap", "overlap_null", "fisher_alignment", "n_sequences"),
    ),
    "stability": (
        *CELL,
        "target",
        "seed_a",
        "seed_b",
        "overlap",
        "overlap_null",
        "dictionary_overlap",
        "dictionary_null",
    ),
    "trajectories": (
        *("site", "mask", "quantity", "against", "pooled", "pooled_low", "pooled_high"),
        *("stratified", "stratified_low", "stratified_high", "n_cells", "n_strata"),
        *("empty", "full", "absolute_kl", "clean_entropy", "p", "claimed"),
    ),
    "carriers": (
        *("step", "hook_name", "site", "layer", "keep_error", "n_alive", "n_carriers", "soft_mass", "enrichment"),
        *("against", "null", "low", "high", "p", "unmatched_share", "relative_kl", "lost_fraction"),
    ),
}

SCHEMAS: Mapping[str, Schema] = {"life-history": LIFE_HISTORY, "sufficiency": SUFFICIENCY}
