"""Names of the version before this one: they work until the next, and each use says where the name is now."""

from __future__ import annotations

import pkgutil
import warnings
from typing import Any

# Former name at the top of the package -> where it is now.
NEW_PLACES = {
    "HookedModel": "tl_lifehist.models.HookedModel",
    "stream_activations": "tl_lifehist.activations.stream_activations",
    "pocket_texts": "tl_lifehist.checkpoints.pocket_texts",
    "IntegrityReport": "tl_lifehist.checkpoints.IntegrityReport",
    "fingerprint": "tl_lifehist.checkpoints.fingerprint",
    "Dictionary": "tl_lifehist.dictionaries.Dictionary",
    "ReferencedDictionary": "tl_lifehist.dictionaries.ReferencedDictionary",
    "decoder_directions": "tl_lifehist.dictionaries.decoder_directions",
    "SAEs": "tl_lifehist.dictionaries.SAEs",
    "load_saes": "tl_lifehist.dictionaries.load_saes",
    "Decomposition": "tl_lifehist.dictionaries.Decomposition",
    "dictionary_overlap": "tl_lifehist.dictionaries.dictionary_overlap",
    "load_decomposition": "tl_lifehist.dictionaries.load_decomposition",
    "AblationEffect": "tl_lifehist.effects.AblationEffect",
    "scored_losses": "tl_lifehist.effects.scored_losses",
    "FeatureMatch": "tl_lifehist.lifehistory.FeatureMatch",
    "rematch_rate": "tl_lifehist.lifehistory.rematch_rate",
    "Carriers": "tl_lifehist.lifehistory.Carriers",
    "Lineages": "tl_lifehist.lifehistory.Lineages",
    "containment_index": "tl_lifehist.lifehistory.containment_index",
    "feature_roles": "tl_lifehist.lifehistory.feature_roles",
    "recruited_fraction": "tl_lifehist.lifehistory.recruited_fraction",
    "recruitment_null": "tl_lifehist.lifehistory.recruitment_null",
    "draw_controls": "tl_lifehist.lifehistory.draw_controls",
    "compare_roles": "tl_lifehist.lifehistory.compare_roles",
    "single_ablation": "tl_lifehist.lifehistory.single_ablation",
    "Forecast": "tl_lifehist.lifehistory.Forecast",
    "function_and_direction": "tl_lifehist.lifehistory.function_and_direction",
    "kaplan_meier": "tl_lifehist.lifehistory.kaplan_meier",
    "survival_by_entropy": "tl_lifehist.lifehistory.survival_by_entropy",
    "content_classes": "tl_lifehist.lifehistory.content_classes",
    "token_class": "tl_lifehist.lifehistory.token_class",
    "vocabulary_classes": "tl_lifehist.lifehistory.vocabulary_classes",
    "frozen_null": "tl_lifehist.lifehistory.frozen_null",
    "rematch_frequencies": "tl_lifehist.lifehistory.rematch_frequencies",
    "rematch_table": "tl_lifehist.lifehistory.rematch_table",
    "seed_stable": "tl_lifehist.lifehistory.seed_stable",
    "unrelated_null": "tl_lifehist.lifehistory.unrelated_null",
    "LifeOfFeature": "tl_lifehist.lifehistory.LifeOfFeature",
    "SAEComparison": "tl_lifehist.lifehistory.SAEComparison",
    "stored_features": "tl_lifehist.lifehistory.stored_features",
    "depth_hook_names": "tl_lifehist.lifehistory.depth_hook_names",
    "SoftMask": "tl_lifehist.sufficiency.SoftMask",
    "without_massive": "tl_lifehist.sufficiency.without_massive",
    "Alignment": "tl_lifehist.sufficiency.Alignment",
    "align_dictionaries": "tl_lifehist.sufficiency.align_dictionaries",
    "shuffled_rows": "tl_lifehist.sufficiency.shuffled_rows",
    "transfer_nmse": "tl_lifehist.sufficiency.transfer_nmse",
    "dealt_mask": "tl_lifehist.sufficiency.dealt_mask",
    "permuted_mask": "tl_lifehist.sufficiency.permuted_mask",
    "ranked_mask": "tl_lifehist.sufficiency.ranked_mask",
    "OverlapNull": "tl_lifehist.sufficiency.OverlapNull",
    "mask_overlap": "tl_lifehist.sufficiency.mask_overlap",
    "mask_overlap_null": "tl_lifehist.sufficiency.mask_overlap_null",
    "onset_of_sufficiency": "tl_lifehist.sufficiency.onset_of_sufficiency",
    "onset_table": "tl_lifehist.sufficiency.onset_table",
    "GateScores": "tl_lifehist.sufficiency.GateScores",
    "GateFisher": "tl_lifehist.sufficiency.GateFisher",
    "closed_form_gates": "tl_lifehist.sufficiency.closed_form_gates",
    "fixed_head_fisher": "tl_lifehist.sufficiency.fixed_head_fisher",
    "gate_fisher": "tl_lifehist.sufficiency.gate_fisher",
    "measure_gate_fisher": "tl_lifehist.sufficiency.measure_gate_fisher",
    "predicted_kl": "tl_lifehist.sufficiency.predicted_kl",
    "SenderReceiver": "tl_lifehist.sufficiency.SenderReceiver",
    "gini": "tl_lifehist.sufficiency.gini",
    "gini_null": "tl_lifehist.sufficiency.gini_null",
    "participation_ratio": "tl_lifehist.sufficiency.participation_ratio",
    "permuted_labels": "tl_lifehist.sufficiency.permuted_labels",
    "sender_receiver": "tl_lifehist.sufficiency.sender_receiver",
    "pullback_fisher": "tl_lifehist.sufficiency.pullback_fisher",
    "CarrierEnrichment": "tl_lifehist.sufficiency.CarrierEnrichment",
    "carrier_enrichment": "tl_lifehist.sufficiency.carrier_enrichment",
    "default_layers": "tl_lifehist.sufficiency.default_layers",
    "default_steps": "tl_lifehist.sufficiency.default_steps",
    "Translator": "tl_lifehist.sufficiency.Translator",
    "MaskEvaluation": "tl_lifehist.sufficiency.MaskEvaluation",
    "StudyPlan": "tl_lifehist.dry_run.StudyPlan",
    "Run": "tl_lifehist.runs.Run",
    "load_bearing": "tl_lifehist.joint_ablation",
    "LoadBearing": "tl_lifehist.lifehistory.JointAblation",
    "load_parts": "tl_lifehist.lifehistory.ablation_parts",
    "load_regression": "tl_lifehist.lifehistory.ablation_regression",
}


def former(name: str) -> Any:
    """What `tl_lifehist.name` stood for, with a warning that names its new place."""
    warn(f"tl_lifehist.{name}", NEW_PLACES[name], stacklevel=4)
    return pkgutil.resolve_name(NEW_PLACES[name])


def warn(old: str, new: str, *, stacklevel: int = 3) -> None:
    """Say that `old` is now `new`, as a warning at the line that used it."""
    message = f"{old} is deprecated and goes with the next version: use {new} instead."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)
