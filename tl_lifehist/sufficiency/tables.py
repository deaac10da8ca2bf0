"""The tables of a sufficiency run: every column with its type, unit and meaning. Numbers are those of the formulas."""

from __future__ import annotations

from collections.abc import Mapping

from tl_lifehist.tables import CLAIMS, Column, Table, by_name, flag, integer, number, text

PLACE: Mapping[str, Column] = {
    "step": integer("checkpoint", "steps"),
    "hook_name": text("hook point"),
    "site": text("its name without the block, such as hook_mlp_out"),
    "layer": integer("its block"),
}
METHOD = text('decomposition: "svd", "ica", "nmf", "semi_nmf" or one that was registered')
CELL: Mapping[str, Column] = {**PLACE, "method": METHOD}
SOFT_MASS = number("mean gate (4)", "share")
NMSE = number("reconstruction error over the variance (6)", "share")
KL = number("KL from the clean predictions (8)", "nats")
RELATIVE_KL = number("KL over the entropy of the clean predictions (9)")
LOST = number("KL over that of mean ablation at this hook point (9)", "share")
DROP = number("fall of the top-1 accuracy (10)", "percentage points")
SCORES: Mapping[str, Column] = {
    "nmse": NMSE,
    "kl": KL,
    "relative_kl": RELATIVE_KL,
    "lost_fraction": LOST,
    "accuracy_drop": DROP,
}
ENRICHED: Mapping[str, Column] = {
    "enrichment_tau": number("gate-weighted mean of tau over its mean (15)"),
    "enrichment_omega": number("the same of omega"),
    "enrichment_curvature": number("the same of the diagonal of the Fisher matrix"),
}

_PLACES = by_name(
    Table(
        "checkpoints",
        "The clean model at a checkpoint, and what mean ablation of a hook point costs it.",
        {
            **PLACE,
            "n_scored": integer("scored positions", "positions"),
            "n_documents": integer("documents they lie in", "documents"),
            "clean_ce": number("cross-entropy", "nats"),
            "clean_entropy": number("mean entropy of the predictions", "nats"),
            "clean_accuracy": number("top-1 accuracy", "share"),
            "empty_kl": number("KL of mean ablation (z = 0)", "nats"),
            "empty_relative_kl": number("the same over the clean entropy"),
            "empty_accuracy_drop": number("fall of the accuracy under mean ablation", "percentage points"),
            "top_row_share": number("variance held by the 0.1 % of rows farthest from the mean", "share"),
            "translator_kl": number("KL of the fixed head's translator at the end of its training", "nats"),
            "n_rows": integer("rows of the train text that dictionaries are fitted to", "rows"),
        },
        "tables",
    ),
    Table(
        "dictionaries",
        "A dictionary.",
        {
            **CELL,
            "n_components": integer("components", "components"),
            "n_rows": integer("rows it is fitted to", "rows"),
            "explained_variance": number("on the train text", "share"),
            "test_nmse": number("error of the full mask on the test text (6)", "share"),
            "converged": flag("the fit met its tolerance"),
            "n_iter": integer("iterations of the fit"),
        },
        "tables",
    ),
    Table(
        "components",
        "A component of a dictionary.",
        {
            **CELL,
            "component": integer("number of the component"),
            "tau": number("sensitivity of the loss to its gate (14)"),
            "omega": number("part of tau whose gradient is coherent over sequences (14)"),
            "omega_debiased": number("omega without the bias of few sequences; can be negative"),
            "curvature": number("diagonal of the downstream gate Fisher (12)"),
            "variance": number("variance of its contribution on the train text"),
        },
        "tables",
    ),
    Table(
        "masks",
        "A gate of a fitted mask.",
        {
            **CELL,
            "target": text("what the mask was fitted to"),
            "seed": integer("seed of the fit"),
            "component": integer("number of the component"),
            "gate": number("how much of it is kept, 0 to 1", "share"),
        },
        "tables",
    ),
)

_MASKS = by_name(
    Table(
        "evaluation",
        "A mask scored under every metric, on the test text.",
        {
            **PLACE,
            "mask": text('target of the mask, or "full" or "empty"'),
            "seed": integer("seed of the fit"),
            "soft_mass": SOFT_MASS,
            "kl_low": number("2.5 % of the KL, over documents", "nats"),
            "kl_high": number("97.5 % of the KL", "nats"),
            **SCORES,
            "fixed_head_kl": number("KL of the fixed head's predictions (7)", "nats"),
            "fixed_head_relative_kl": number("the same over the entropy of its clean predictions"),
            "transfer_nmse": number("NMSE after transfer to the last checkpoint (16)", "share"),
            "transfer_kl": number("KL of the last model with it injected (16)", "nats"),
            "transfer_relative_kl": number("the same over the last model's clean entropy"),
            "n_scored": integer("scored positions", "positions"),
            **ENRICHED,
            "predicted_kl": number("KL that the gate Fisher predicts (13)", "nats"),
            "method": METHOD,
        },
        "tables",
    ),
    Table(
        "nulls",
        "A mask of the same soft mass as a fitted one.",
        {
            **PLACE,
            "target": text("mask that it stands beside"),
            "kind": text('"random", "top_variance", "tau_ranked" or "fisher_diagonal"'),
            "draw": integer("number of the draw"),
            "method": METHOD,
            "soft_mass": SOFT_MASS,
            **SCORES,
            **ENRICHED,
        },
        "tables",
    ),
    Table(
        "frontier",
        "A downstream mask of a sweep over the penalty.",
        {
            **CELL,
            "penalty_total": number("penalty times the number of components (5)"),
            "penalty": number("penalty of one gate (5)"),
            "soft_mass": SOFT_MASS,
            "relative_kl": RELATIVE_KL,
            "lost_fraction": LOST,
            "accuracy_drop": DROP,
            "operating": flag("the study's own penalty"),
            "variance_lost_fraction": number("lost fraction of the top-variance mask of the same mass", "share"),
        },
        "tables",
        "close_ups name a method",
    ),
    Table(
        "onset",
        "When a small mask becomes enough (18).",
        {
            **CELL,
            "onset": number("least soft mass that suffices and beats variance; missing where none does", "share"),
            "full_lost_fraction": number("lost fraction of the full mask", "share"),
        },
        "tables",
        "close_ups name a method",
    ),
    Table(
        "transfer",
        "A mask's reconstruction carried over to the last checkpoint (16).",
        {
            **CELL,
            "mask": text('target of the mask, or "full" or "empty"'),
            "control": text('"aligned", "procrustes", "dictionary", "identity" or "shuffled"'),
            "nmse": number("against the last checkpoint's activations", "share"),
            "kl": number("of the last model with it injected", "nats"),
            "relative_kl": number("the same over the last model's clean entropy"),
        },
        "tables",
    ),
    Table(
        "anisotropy",
        "How unequally components matter, and how fixed-head and downstream masks differ (18).",
        {
            **CELL,
            "participation_ratio": number("of the downstream gate Fisher, from 1 to the components", "components"),
            "participation_fixed_head": number("of the fixed head's gate Fisher", "components"),
            "gini_tau": number("Gini coefficient of tau, 0 (equal) to 1"),
            "gini_null": number("the same under permuted labels"),
            "n_sequences": integer("sequences in each Fisher", "sequences"),
            "mask_overlap": number("overlap of the fixed-head and the downstream mask, 0 to 1"),
            "overlap_null": number("overlap of random masks of the same masses, mean"),
            "overlap_p": number("how often random masks overlap as little", "share"),
            "fisher_alignment": number("alignment of the two Fishers, 0 to 1"),
        },
        "tables",
    ),
    Table(
        "stability",
        "Masks of two seeds, and dictionaries of two seeds.",
        {
            **CELL,
            "target": text("what the masks were fitted to"),
            "seed_a": integer("one seed"),
            "seed_b": integer("the other seed"),
            "overlap": number("overlap of the masks, 0 to 1"),
            "overlap_null": number("overlap of random masks of the same gates"),
            "dictionary_overlap": number("overlap of the dictionaries, 0 to 1"),
            "dictionary_null": number("overlap of unrelated dictionaries"),
        },
        "tables",
        "two seeds and close_ups name a method",
    ),
)

_JOINED = by_name(
    Table(
        "trajectories",
        "A quantity of a mask against training or depth, by Spearman correlation (17).",
        {
            "site": PLACE["site"],
            "mask": text('target of the mask, or "full" or "empty"'),
            "quantity": text("column of evaluation"),
            "against": text('"checkpoint" or "depth"'),
            "pooled": number("over all cells of the site"),
            "pooled_low": number("2.5 % of it, by bootstrap"),
            "pooled_high": number("97.5 % of it"),
            "stratified": number("mean within strata"),
            "stratified_low": number("2.5 % of it, by bootstrap"),
            "stratified_high": number("97.5 % of it"),
            "n_cells": integer("cells", "cells"),
            "n_strata": integer("strata that count", "strata"),
            "n_constant": integer("strata in which nothing varies", "strata"),
            "empty": number("pooled, of the empty mask"),
            "full": number("pooled, of the full mask"),
            "absolute_kl": number("pooled, of the mask's KL in nats"),
            "clean_entropy": number("pooled, of the entropy of the clean predictions"),
            "p": number("how often a random order gives as much", "share"),
            "claimed": flag("passes every condition of formula 17"),
        },
        "tables",
    ),
    Table(
        "carriers",
        "A downstream mask over the alive features of an SAE of the life-history run, and its carriers.",
        {
            **PLACE,
            "keep_error": flag("the SAE's error is kept beside the mask"),
            "n_alive": integer("alive features", "features"),
            "n_carriers": integer("carriers among them", "features"),
            "soft_mass": SOFT_MASS,
            "enrichment": number("mean gate of the carriers over that of all"),
            "against": number("the same for carriers that have an equal"),
            "null": number("the same for sets of equal mass, mean"),
            "low": number("2.5 % of the sets"),
            "high": number("97.5 % of the sets"),
            "p": number("how often a set takes as much; missing where there is no fair null", "share"),
            "unmatched_share": number("carriers without an equal", "share"),
            "mass_gap": number("log mass of the carriers less that of the sets", "standard deviations"),
            "kl": KL,
            "relative_kl": RELATIVE_KL,
            "lost_fraction": LOST,
            "empty_kl": number("KL of the empty mask", "nats"),
            "empty_lost_fraction": number("its lost fraction", "share"),
            "full_kl": number("KL of the full mask", "nats"),
            "full_lost_fraction": number("its lost fraction", "share"),
        },
        "tables",
        "the study was given a life-history run",
    ),
    Table(
        "published",
        "A quantity beside the published figures.",
        {
            "quantity": text("what it is"),
            "ours": text("this run's, as printed"),
            "n": integer("sample size of this run"),
            "published": text("the published figure"),
        },
        "tables",
    ),
    CLAIMS,
)

TABLES: Mapping[str, Table] = {**_PLACES, **_MASKS, **_JOINED}
