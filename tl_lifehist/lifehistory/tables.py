"""The tables of a life-history run: every column with its type, unit and meaning."""

from __future__ import annotations

from collections.abc import Mapping

from tl_lifehist.tables import CALIBRATION, CLAIMS, Column, Table, by_name, flag, integer, number, text

WITH_CARRIERS = "the run has carriers"
STEP = integer("checkpoint", "steps")
HOOK = text("hook point")
FEATURE = integer("feature of the SAE at this checkpoint and hook point")
N_ALIVE = integer("alive features (D3)", "features")
ROLE = '"root", "mid", "leaf" or "isolated" (D14)'
CLASS = text('content class (D24): "infrastructure" or "legible"; missing without a tokenizer')
MEASURES: Mapping[str, Column] = {
    "firing_rate": number("positions where it fires", "share"),
    "mass": number("activation mass (D11)"),
    "strength": number("activation strength (D11), of the mean residual norm", "share"),
    "entropy": number("activation entropy over positions (D10), 0 to 1"),
}
TOP_TOKEN = number("mass on its most frequent vocabulary id (C11)", "share")

_LINEAGES = by_name(
    Table(
        "lineages",
        "A feature at a checkpoint, in the lineage it belongs to (D7).",
        {
            "lineage": integer("number of the lineage"),
            "hook_name": HOOK,
            "step": STEP,
            "feature": FEATURE,
            "similarity": number("Pearson correlation with the lineage's feature before; missing at its birth"),
        },
        "lineages",
    ),
    Table(
        "events",
        "Births, deaths or both in one transition at one hook point (D8), beside the noise of SAE training (C1).",
        {
            "hook_name": HOOK,
            "step_from": integer("checkpoint before", "steps"),
            "step_to": integer("checkpoint after", "steps"),
            "count": integer("events", "features"),
            "n_alive": integer(
                "alive features: after the transition for births, before it for deaths, their sum for both", "features"
            ),
            "fraction": number("count over n_alive", "share"),
            "per_step": number("count over the length of the transition", "features per step"),
            "per_log_step": number("count over its length in log10(step + 1)", "features per decade"),
            "match_rate": number("deaths: alive features that are matched", "share"),
            "kind": text('"birth", "death" or "both"'),
            "floor_data": number("deaths: re-match rate of SAEs trained in another row order", "share"),
            "floor_init": number("deaths: re-match rate of SAEs of another initialisation", "share"),
            "persistence_low": number("deaths: match_rate over floor_data"),
            "persistence_high": number("deaths: match_rate over floor_init"),
            "fraction_beyond_noise": number("deaths: fraction less what the data floor loses", "share"),
            "phase": text("phase of training (D20)"),
        },
        "tables",
    ),
    Table(
        "features",
        "An alive feature at a checkpoint.",
        {
            "step": STEP,
            "hook_name": HOOK,
            "feature": FEATURE,
            "firing_rate": MEASURES["firing_rate"],
            "count": integer("positions where it fires", "positions"),
            "entropy": MEASURES["entropy"],
            "strength": MEASURES["strength"],
            "mass": MEASURES["mass"],
            "vocabulary_entropy": number("activation entropy over vocabulary ids (D10), 0 to 1"),
            "top_token_share": TOP_TOKEN,
            "lineage": integer("number of its lineage"),
            "carrier": flag("its lineage is a persistent carrier (D9)"),
            "role_container": text(f"{ROLE}, edges from the broader feature to the narrower"),
            "role_depth": text(f"{ROLE}, edges from the lower hook point to the higher"),
            "content": CLASS,
        },
        "tables",
    ),
    Table(
        "carriers",
        "A persistent carrier (D9), as it is at the last checkpoint.",
        {
            "lineage": integer("number of its lineage"),
            "hook_name": HOOK,
            "feature": integer("feature of the SAE at the last checkpoint"),
            "birth": integer("first checkpoint of its lineage", "steps"),
            "n_snapshots": integer("length of its lineage", "checkpoints"),
            **MEASURES,
            "top_token_share": TOP_TOKEN,
            "role": text(f"{ROLE}, in the container orientation"),
            "content": CLASS,
            "seed_stable": flag("an SAE of another initialisation finds it again (C1)"),
        },
        "tables",
    ),
    Table(
        "contexts",
        "A place where a carrier fires most, at the last checkpoint.",
        {
            "hook_name": HOOK,
            "feature": FEATURE,
            "rank": integer("place among its contexts, from 1"),
            "activation": number("code of the feature"),
            "document": integer("document of the test text"),
            "before": text("text before the token"),
            "token": text("the token where it fires"),
            "after": text("text after it"),
        },
        "content",
        f"{WITH_CARRIERS} and the series a tokenizer",
    ),
    Table(
        "checkpoints",
        "The model and one of its SAEs at a checkpoint.",
        {
            "step": STEP,
            "hook_name": HOOK,
            "base_ce": number("mean cross-entropy of the untouched model", "nats"),
            "n_scored": integer("scored positions", "positions"),
            "fvu": number("variance that the SAE leaves (D1)", "share"),
            "n_alive": N_ALIVE,
        },
        "tables",
    ),
)

_NOISE = by_name(
    Table(
        "rematch",
        "Two SAEs of one checkpoint matched (C1).",
        {
            "step": STEP,
            "hook_name": HOOK,
            "level": text('what differs: "data" (row order), "init" (initial weights too) or "warm"'),
            "replicate": text("name of the other training"),
            "matched": integer("accepted matches", "features"),
            "n_alive": N_ALIVE,
            "rate": number("matched over n_alive", "share"),
        },
        "noise",
    ),
    Table(
        "nulls",
        "A draw of a null of the number of carriers (C1).",
        {
            "null": text('"frozen" (a model that never changes) or "unrelated" (rows shuffled)'),
            "draw": integer("number of the draw"),
            "carriers": integer("carriers in it", "features"),
        },
        "noise",
    ),
    Table(
        "direction_noise",
        "Function and direction (D16) between two trainings of the last checkpoint's SAEs.",
        {
            "level": text('what differs: "data" or "init"'),
            "hook_name": HOOK,
            "s_fun": number("mean Pearson correlation of the profiles"),
            "s_dir": number("mean cosine of the decoder rows"),
            "s_dir_aligned": number("the same after the rotation that brings the other features nearest"),
            "n": integer("pairs", "features"),
        },
        "noise",
    ),
)

_GRAPHS = by_name(
    Table(
        "edges",
        "An edge of a containment graph (D12, D13).",
        {
            "step": STEP,
            "orientation": text('"container" (broader to narrower) or "depth" (lower hook point to higher)'),
            "source_hook": text("hook point of the parent"),
            "source_feature": integer("feature of the parent"),
            "target_hook": text("hook point of the child"),
            "target_feature": integer("feature of the child"),
            "containment": number("firings of the narrower that fall on the broader", "share"),
            "lift": number("containment over the broader one's firing rate"),
            "overlap": integer("positions where both fire", "positions"),
        },
        "graphs",
    ),
    Table(
        "dag",
        "The graph of a checkpoint in one orientation, and what carriers reach in it (D14, D15, C8).",
        {
            "step": STEP,
            "orientation": text('"container" or "depth"'),
            "n_nodes": integer("alive features", "features"),
            "n_edges": integer("edges", "edges"),
            "n_root": integer("roots", "features"),
            "n_mid": integer("mids", "features"),
            "n_leaf": integer("leaves", "features"),
            "n_isolated": integer("isolated features", "features"),
            "n_carriers": integer("carriers that are alive", "features"),
            "n_can_be_parents": integer("carriers that can have children, given the least lift", "features"),
            "recruited": number("non-carriers that carriers reach (D15)", "share"),
            "recruited_direct": number("non-carriers that are children of carriers", "share"),
            "recruited_with_carriers": number("the same with carriers counted in", "share"),
            "null_mean": number("recruited by sets of the same size and firing rates, mean", "share"),
            "null_low": number("2.5 % of it", "share"),
            "null_high": number("97.5 % of it", "share"),
            "null_sd": number("its standard deviation", "share"),
            "unmatched_share": number("carriers without an equal, which stand in every draw", "share"),
            "rewired_mean": number("recruited in graphs rewired with every degree kept, mean", "share"),
            "p": number("two-sided, how often the null lies as far out", "share"),
        },
        "graphs",
    ),
)

_ABLATIONS = by_name(
    Table(
        "load",
        "A draw of control sets beside the carriers (D19).",
        {
            "kind": text("kind of control sets"),
            "draw": integer("number of the draw"),
            "delta_ce": number("cost of ablating the set under exchange", "nats"),
            "adjusted": number("the same less what its total of the matched quantity explains", "nats"),
            "delta_ce_carriers": number("cost of ablating the carriers that have an equal", "nats"),
            "adjusted_carriers": number("the same less what their total explains", "nats"),
        },
        "load/<kind>",
        WITH_CARRIERS,
    ),
    Table(
        "load_summary",
        "The carriers' joint load beside one kind of control sets (D18, D19).",
        {
            "kind": text("kind of control sets"),
            "n_draws": integer("draws"),
            "n_equals": integer("carriers that have an equal", "features"),
            "carriers": number("their cost, less what their total of the matched quantity explains", "nats"),
            "control_mean": number("mean cost of the sets under exchange", "nats"),
            "control_sd": number("standard deviation over them, less what their totals explain", "nats"),
            "low": number("2.5 % of carriers less control_mean", "nats"),
            "high": number("97.5 % of the same", "nats"),
            "p": number("(1 + #{set >= carriers}) / (draws + 1)", "share"),
            "detectable": number("least difference that is found four times out of five", "nats"),
            "unmatched_share": number("carriers without an equal", "share"),
            "smd_log_rate": number(
                "carriers less equals in log firing rate, in the layer where it is largest", "standard deviations"
            ),
            "smd_log_mass": number("the same in log mass", "standard deviations"),
            "verdict": text('"beyond", "within" or "not testable", by p alone'),
            "delta_ce": number("joint load: cost of ablating all carriers", "nats"),
            "delta_low": number("2.5 % of it, over documents", "nats"),
            "delta_high": number("97.5 % of it, over documents", "nats"),
            "base_ce": number("cross-entropy of the untouched model", "nats"),
            "n_scored": integer("scored positions", "positions"),
        },
        "load/<kind>",
        WITH_CARRIERS,
    ),
    Table(
        "single",
        "A feature ablated alone at the last checkpoint (D17).",
        {
            "hook_name": HOOK,
            "feature": FEATURE,
            "n_firings": integer("scored positions where it fires", "positions"),
            "per_firing": number("mean cost where it fires", "nats"),
            "per_token": number("mean cost over all positions", "nats"),
            "role": text(f"{ROLE}, in the container orientation"),
            "sampled": flag("drawn by role alone, so that roles may be compared"),
            "carrier": flag("a persistent carrier"),
            "content": CLASS,
        },
        "tables",
        WITH_CARRIERS,
    ),
    Table(
        "ablation_parts",
        "A part of the joint load, or a set it stands beside (C6, C7).",
        {
            "part": text("what is ablated, or what is summed"),
            "delta_ce": number("its cost", "nats"),
            "n_features": integer("features in it", "features"),
        },
        "singles",
        WITH_CARRIERS,
    ),
    Table(
        "ablation_regression",
        "A term of the regression of the load of random sets (C6).",
        {
            "term": text('"mass", "rate" or "carriers" (how many)'),
            "coefficient": number("change of the load", "nats per standard deviation"),
            "low": number("2.5 % of it, by bootstrap", "nats per standard deviation"),
            "high": number("97.5 % of it", "nats per standard deviation"),
            "n": integer("random sets"),
        },
        "singles",
        WITH_CARRIERS,
    ),
    Table(
        "content",
        "A content class among carriers (D24), beside sets of equal mass from the other class.",
        {
            "content": text('"infrastructure" or "legible"'),
            "n": integer("alive features of the class at the last checkpoint", "features"),
            "n_carriers": integer("carriers of the class", "features"),
            "share_of_alive": number("class among the alive features", "share"),
            "share_of_carriers": number("class among the carriers", "share"),
            "joint_load": number("cost of ablating its carriers", "nats"),
            "compared_load": number("cost of those that have an equal, mean over draws", "nats"),
            "null_load_mean": number("cost of the sets of the other class, mean", "nats"),
            "null_load_low": number("2.5 % of it", "nats"),
            "null_load_high": number("97.5 % of it", "nats"),
            "null_draws": integer("draws"),
            "p": number("how often the other class costs as much", "share"),
            "share_of_descendants": number("class among what carriers reach in the graph", "share"),
            "single_load": number("mean cost of one of its carriers over all positions", "nats"),
            "n_single": Column("int or missing", "carriers ablated alone", "features"),
        },
        "tables",
        f"{WITH_CARRIERS} and the series a tokenizer",
    ),
)

_FORECASTS = by_name(
    Table(
        "forecast",
        "A forecast of the carriers from the onset (D21, D22), the study's own first, then its baselines (C9).",
        {
            "predictor": text("what it reads"),
            "auc": number("area under the ROC curve, out of fold"),
            "low": number("2.5 % of it"),
            "high": number("97.5 % of it"),
            "average_precision": number("average precision"),
            "enrichment": number("precision at K over the base rate, K being the number of carriers"),
            "recall_at_k": number("carriers among the K highest", "share"),
            "recall_top_decile": number("carriers among the highest tenth", "share"),
            "recall_of_all": number("the same hits, of all carriers, there at the onset or not", "share"),
            "n": integer("features", "features"),
            "n_positive": integer("later carriers among them", "features"),
            "gain_low": number("2.5 % of the study's AUC less this one", condition="there is a forecast"),
            "gain_high": number("97.5 % of the same", condition="there is a forecast"),
            "onset": integer("checkpoint that is predicted from", "steps"),
            "reason": text("why there is no forecast; else empty"),
        },
        "forecasts",
    ),
    Table(
        "forecast_gain",
        "What the measurements at the onset add to firing rate and layer (D21, C9).",
        {
            "gain": number("AUC with the measurements less AUC of a smooth curve of the rate and the layer"),
            "low": number("2.5 % of it, over features"),
            "high": number("97.5 % of it"),
            "p": number("how often measurements exchanged among features of equal rate explain as much", "share"),
            "n": integer("features alive at the onset", "features"),
            "n_positive": integer("later carriers among them", "features"),
        },
        "forecasts",
    ),
    Table(
        "direction",
        "How like lineages are to their end in function and in direction (D16).",
        {
            "step": STEP,
            "s_fun": number("mean Pearson correlation of the profile with the last"),
            "s_fun_low": number("2.5 % of it, over lineages"),
            "s_fun_high": number("97.5 % of it"),
            "s_dir": number("mean cosine of the decoder row with the last"),
            "s_dir_low": number("2.5 % of it, over lineages"),
            "s_dir_high": number("97.5 % of it"),
            "s_dir_aligned": number("s_dir after the rotation that brings the other features nearest"),
            "null_fun": number("s_fun of unrelated lineages"),
            "null_dir": number("s_dir of unrelated lineages"),
            "n": integer("lineages", "lineages"),
        },
        "forecasts",
    ),
    Table(
        "direction_by_hook",
        "The same at one hook point.",
        {
            "step": STEP,
            "hook_name": HOOK,
            "s_fun": number("mean Pearson correlation of the profile with the last"),
            "s_dir": number("mean cosine of the decoder row with the last"),
            "s_dir_aligned": number("the same after the rotation that brings the other features nearest"),
            "n": integer("lineages", "lineages"),
        },
        "forecasts",
    ),
    Table(
        "survival_at_rate",
        "Survival of broad features beside narrow ones of equal firing rate (D23).",
        {
            "difference": number("survival of the broader half less that of the narrower half", "share"),
            "low": number("2.5 % of it", "share"),
            "high": number("97.5 % of it", "share"),
            "p": number("how often survival exchanged among features of equal rate gives as much", "share"),
            "detectable": number("least difference that is found four times out of five", "share"),
            "n": integer("features alive at the onset", "features"),
            "n_survived": integer("those that reach the end", "features"),
        },
        "forecasts",
    ),
    Table(
        "survival_by_entropy",
        "A group of features alive at the onset, by entropy (D23).",
        {
            "decile": integer("group, from the lowest entropy"),
            "entropy_low": number("lowest entropy in it"),
            "entropy_high": number("highest entropy in it"),
            "n": integer("features", "features"),
            "survival": number("lineages that reach the end", "share"),
            "low": number("2.5 % of it (Wilson)", "share"),
            "high": number("97.5 % of it", "share"),
            "survival_by_rate": number("the same in the group of this rank by firing rate", "share"),
        },
        "forecasts",
    ),
    Table(
        "kaplan_meier",
        "The Kaplan-Meier estimate of how long lineages last (D23), at a time.",
        {
            "hook_name": text('hook point, or "all"'),
            "step": integer("training since the birth of the lineage", "steps"),
            "at_risk": integer("lineages at risk", "lineages"),
            "deaths": integer("deaths at this time", "lineages"),
            "survival": number("lineages that last longer", "share"),
        },
        "forecasts",
    ),
)

_LAST = by_name(
    Table(
        "sweeps",
        "A result with one setting changed (C3, C4, C11).",
        {
            "parameter": text("what is changed"),
            "value": text("to what"),
            "quantity": text('"carriers", "carriers with an equal of mass" (share), "edges" or "match rate"'),
            "result": number("the quantity"),
        },
        "sweeps",
    ),
    Table(
        "published",
        "A quantity beside the published figures.",
        {
            "quantity": text("what it is"),
            "ours": text("this run's, as printed"),
            "n": integer("sample size of this run"),
            "pythia_160m": text("published for Pythia-160M"),
            "pythia_410m": text("published for Pythia-410M"),
        },
        "tables",
    ),
    CALIBRATION,
    CLAIMS,
)

TABLES: Mapping[str, Table] = {**_LINEAGES, **_NOISE, **_GRAPHS, **_ABLATIONS, **_FORECASTS, **_LAST}
