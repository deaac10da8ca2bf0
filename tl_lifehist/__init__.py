"""tl_lifehist: the life history of features through a language model's training checkpoints.

    import tl_lifehist as lh

Every public name is listed here and imported when it is first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "errors": ("InputError",),
    "models": ("HookedModel",),
    "tokens": ("TokenSet",),
    "activations": ("collect_activations", "stream_activations"),
    "checkpoints.series": ("CheckpointSeries",),
    "checkpoints.pocket": ("pocket_texts",),
    "checkpoints.integrity": ("IntegrityReport", "fingerprint"),
    "checkpoints.snapshot": ("SnapshotCallback",),
    "dictionaries.protocol": ("Dictionary", "ReferencedDictionary", "decoder_directions", "with_reference"),
    "dictionaries.sae": ("SAEs", "load_sae", "load_saes", "train_saes"),
    "dictionaries.decomposition": ("Decomposition", "decompose", "dictionary_overlap", "load_decomposition"),
    "interventions": ("FeatureAblation", "MaskedReconstruction"),
    "effects": ("AblationEffect", "ablation_effect", "scored_losses"),
    "lifehistory.profiles": ("FeatureProfiles", "activation_profiles", "profile_saes"),
    "lifehistory.matching": ("FeatureMatch", "match_features", "rematch_rate"),
    "lifehistory.lineages": ("Carriers", "Lineages", "trace_lineages"),
    "lifehistory.containment": (
        "containment_dag",
        "containment_index",
        "feature_roles",
    ),
    "lifehistory.recruitment": ("recruited_fraction", "recruitment_null"),
    "lifehistory.controls": ("draw_controls",),
    "lifehistory.joint_ablation": ("JointAblation", "joint_ablation"),
    "lifehistory.ablation_parts": ("compare_roles", "ablation_parts", "ablation_regression", "single_ablation"),
    "lifehistory.forecast": ("Forecast", "predict_carriers"),
    "lifehistory.direction": ("function_and_direction",),
    "lifehistory.survival": ("kaplan_meier", "survival_by_entropy"),
    "lifehistory.contexts": ("top_contexts",),
    "lifehistory.content": ("content_classes", "token_class", "vocabulary_classes"),
    "lifehistory.noise": ("frozen_null", "rematch_frequencies", "rematch_table", "seed_stable", "unrelated_null"),
    "lifehistory.compare": ("LifeOfFeature", "SAEComparison", "compare_saes", "life_of"),
    "lifehistory.stored": ("stored_features",),
    "lifehistory.study": ("LifeHistoryStudy", "depth_hook_names"),
    "sufficiency.gates": ("SoftMask",),
    "sufficiency.massive": ("without_massive",),
    "sufficiency.alignment": (
        "Alignment",
        "align_checkpoints",
        "align_dictionaries",
        "shuffled_rows",
        "transfer_nmse",
    ),
    "sufficiency.nulls": ("dealt_mask", "permuted_mask", "ranked_mask"),
    "sufficiency.overlap": ("OverlapNull", "mask_overlap", "mask_overlap_null"),
    "sufficiency.onset": ("onset_of_sufficiency", "onset_table"),
    "sufficiency.trajectories": ("trajectories",),
    "sufficiency.sensitivity": ("GateScores", "enrichment", "gate_scores"),
    "sufficiency.moments": ("GateFisher",),
    "sufficiency.fisher": (
        "closed_form_gates",
        "fixed_head_fisher",
        "gate_fisher",
        "measure_gate_fisher",
        "predicted_kl",
    ),
    "sufficiency.geometry": (
        "SenderReceiver",
        "gini",
        "gini_null",
        "participation_ratio",
        "permuted_labels",
        "sender_receiver",
    ),
    "sufficiency.curvature": ("pullback_fisher",),
    "sufficiency.frontier": ("frontier",),
    "sufficiency.carriers": ("CarrierEnrichment", "carrier_enrichment"),
    "sufficiency.study": ("SufficiencyStudy", "default_layers", "default_steps"),
    "sufficiency.translator": ("Translator", "fit_translator"),
    "sufficiency.targets": ("Downstream", "FixedHead", "Reconstruction", "Transfer"),
    "sufficiency.calibration": ("MaskTask", "calibrate_mask", "calibrate_masks"),
    "sufficiency.evaluation": ("MaskEvaluation", "evaluate_mask", "evaluate_masks"),
    "dry_run": ("StudyPlan", "plan_study"),
    "runs": ("Run", "compare_runs", "load_run"),
    "report.page": ("write_report",),
}
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names}
__all__ = ["__version__", *_MODULE_OF]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from tl_lifehist.activations import collect_activations as collect_activations
    from tl_lifehist.activations import stream_activations as stream_activations
    from tl_lifehist.checkpoints.integrity import IntegrityReport as IntegrityReport
    from tl_lifehist.checkpoints.integrity import fingerprint as fingerprint
    from tl_lifehist.checkpoints.pocket import pocket_texts as pocket_texts
    from tl_lifehist.checkpoints.series import CheckpointSeries as CheckpointSeries
    from tl_lifehist.checkpoints.snapshot import SnapshotCallback as SnapshotCallback
    from tl_lifehist.dictionaries.decomposition import Decomposition as Decomposition
    from tl_lifehist.dictionaries.decomposition import decompose as decompose
    from tl_lifehist.dictionaries.decomposition import dictionary_overlap as dictionary_overlap
    from tl_lifehist.dictionaries.decomposition import load_decomposition as load_decomposition
    from tl_lifehist.dictionaries.protocol import Dictionary as Dictionary
    from tl_lifehist.dictionaries.protocol import ReferencedDictionary as ReferencedDictionary
    from tl_lifehist.dictionaries.protocol import decoder_directions as decoder_directions
    from tl_lifehist.dictionaries.protocol import with_reference as with_reference
    from tl_lifehist.dictionaries.sae import SAEs as SAEs
    from tl_lifehist.dictionaries.sae import load_sae as load_sae
    from tl_lifehist.dictionaries.sae import load_saes as load_saes
    from tl_lifehist.dictionaries.sae import train_saes as train_saes
    from tl_lifehist.dry_run import StudyPlan as StudyPlan
    from tl_lifehist.dry_run import plan_study as plan_study
    from tl_lifehist.effects import AblationEffect as AblationEffect
    from tl_lifehist.effects import ablation_effect as ablation_effect
    from tl_lifehist.effects import scored_losses as scored_losses
    from tl_lifehist.errors import InputError as InputError
    from tl_lifehist.interventions import FeatureAblation as FeatureAblation
    from tl_lifehist.interventions import MaskedReconstruction as MaskedReconstruction
    from tl_lifehist.lifehistory.ablation_parts import ablation_parts as ablation_parts
    from tl_lifehist.lifehistory.ablation_parts import ablation_regression as ablation_regression
    from tl_lifehist.lifehistory.ablation_parts import compare_roles as compare_roles
    from tl_lifehist.lifehistory.ablation_parts import single_ablation as single_ablation
    from tl_lifehist.lifehistory.compare import LifeOfFeature as LifeOfFeature
    from tl_lifehist.lifehistory.compare import SAEComparison as SAEComparison
    from tl_lifehist.lifehistory.compare import compare_saes as compare_saes
    from tl_lifehist.lifehistory.compare import life_of as life_of
    from tl_lifehist.lifehistory.containment import containment_dag as containment_dag
    from tl_lifehist.lifehistory.containment import containment_index as containment_index
    from tl_lifehist.lifehistory.containment import feature_roles as feature_roles
    from tl_lifehist.lifehistory.content import content_classes as content_classes
    from tl_lifehist.lifehistory.content import token_class as token_class
    from tl_lifehist.lifehistory.content import vocabulary_classes as vocabulary_classes
    from tl_lifehist.lifehistory.contexts import top_contexts as top_contexts
    from tl_lifehist.lifehistory.controls import draw_controls as draw_controls
    from tl_lifehist.lifehistory.direction import function_and_direction as function_and_direction
    from tl_lifehist.lifehistory.forecast import Forecast as Forecast
    from tl_lifehist.lifehistory.forecast import predict_carriers as predict_carriers
    from tl_lifehist.lifehistory.joint_ablation import JointAblation as JointAblation
    from tl_lifehist.lifehistory.joint_ablation import joint_ablation as joint_ablation
    from tl_lifehist.lifehistory.lineages import Carriers as Carriers
    from tl_lifehist.lifehistory.lineages import Lineages as Lineages
    from tl_lifehist.lifehistory.lineages import trace_lineages as trace_lineages
    from tl_lifehist.lifehistory.matching import FeatureMatch as FeatureMatch
    from tl_lifehist.lifehistory.matching import match_features as match_features
    from tl_lifehist.lifehistory.matching import rematch_rate as rematch_rate
    from tl_lifehist.lifehistory.noise import frozen_null as frozen_null
    from tl_lifehist.lifehistory.noise import rematch_frequencies as rematch_frequencies
    from tl_lifehist.lifehistory.noise import rematch_table as rematch_table
    from tl_lifehist.lifehistory.noise import seed_stable as seed_stable
    from tl_lifehist.lifehistory.noise import unrelated_null as unrelated_null
    from tl_lifehist.lifehistory.profiles import FeatureProfiles as FeatureProfiles
    from tl_lifehist.lifehistory.profiles import activation_profiles as activation_profiles
    from tl_lifehist.lifehistory.profiles import profile_saes as profile_saes
    from tl_lifehist.lifehistory.recruitment import recruited_fraction as recruited_fraction
    from tl_lifehist.lifehistory.recruitment import recruitment_null as recruitment_null
    from tl_lifehist.lifehistory.stored import stored_features as stored_features
    from tl_lifehist.lifehistory.study import LifeHistoryStudy as LifeHistoryStudy
    from tl_lifehist.lifehistory.study import depth_hook_names as depth_hook_names
    from tl_lifehist.lifehistory.survival import kaplan_meier as kaplan_meier
    from tl_lifehist.lifehistory.survival import survival_by_entropy as survival_by_entropy
    from tl_lifehist.models import HookedModel as HookedModel
    from tl_lifehist.report.page import write_report as write_report
    from tl_lifehist.runs import Run as Run
    from tl_lifehist.runs import compare_runs as compare_runs
    from tl_lifehist.runs import load_run as load_run
    from tl_lifehist.sufficiency.alignment import Alignment as Alignment
    from tl_lifehist.sufficiency.alignment import align_checkpoints as align_checkpoints
    from tl_lifehist.sufficiency.alignment import align_dictionaries as align_dictionaries
    from tl_lifehist.sufficiency.alignment import shuffled_rows as shuffled_rows
    from tl_lifehist.sufficiency.alignment import transfer_nmse as transfer_nmse
    from tl_lifehist.sufficiency.calibration import MaskTask as MaskTask
    from tl_lifehist.sufficiency.calibration import calibrate_mask as calibrate_mask
    from tl_lifehist.sufficiency.calibration import calibrate_masks as calibrate_masks
    from tl_lifehist.sufficiency.carriers import CarrierEnrichment as CarrierEnrichment
    from tl_lifehist.sufficiency.carriers import carrier_enrichment as carrier_enrichment
    from tl_lifehist.sufficiency.curvature import pullback_fisher as pullback_fisher
    from tl_lifehist.sufficiency.evaluation import MaskEvaluation as MaskEvaluation
    from tl_lifehist.sufficiency.evaluation import evaluate_mask as evaluate_mask
    from tl_lifehist.sufficiency.evaluation import evaluate_masks as evaluate_masks
    from tl_lifehist.sufficiency.fisher import closed_form_gates as closed_form_gates
    from tl_lifehist.sufficiency.fisher import fixed_head_fisher as fixed_head_fisher
    from tl_lifehist.sufficiency.fisher import gate_fisher as gate_fisher
    from tl_lifehist.sufficiency.fisher import measure_gate_fisher as measure_gate_fisher
    from tl_lifehist.sufficiency.fisher import predicted_kl as predicted_kl
    from tl_lifehist.sufficiency.frontier import frontier as frontier
    from tl_lifehist.sufficiency.gates import SoftMask as SoftMask
    from tl_lifehist.sufficiency.geometry import SenderReceiver as SenderReceiver
    from tl_lifehist.sufficiency.geometry import gini as gini
    from tl_lifehist.sufficiency.geometry import gini_null as gini_null
    from tl_lifehist.sufficiency.geometry import participation_ratio as participation_ratio
    from tl_lifehist.sufficiency.geometry import permuted_labels as permuted_labels
    from tl_lifehist.sufficiency.geometry import sender_receiver as sender_receiver
    from tl_lifehist.sufficiency.massive import without_massive as without_massive
    from tl_lifehist.sufficiency.moments import GateFisher as GateFisher
    from tl_lifehist.sufficiency.nulls import dealt_mask as dealt_mask
    from tl_lifehist.sufficiency.nulls import permuted_mask as permuted_mask
    from tl_lifehist.sufficiency.nulls import ranked_mask as ranked_mask
    from tl_lifehist.sufficiency.onset import onset_of_sufficiency as onset_of_sufficiency
    from tl_lifehist.sufficiency.onset import onset_table as onset_table
    from tl_lifehist.sufficiency.overlap import OverlapNull as OverlapNull
    from tl_lifehist.sufficiency.overlap import mask_overlap as mask_overlap
    from tl_lifehist.sufficiency.overlap import mask_overlap_null as mask_overlap_null
    from tl_lifehist.sufficiency.sensitivity import GateScores as GateScores
    from tl_lifehist.sufficiency.sensitivity import enrichment as enrichment
    from tl_lifehist.sufficiency.sensitivity import gate_scores as gate_scores
    from tl_lifehist.sufficiency.study import SufficiencyStudy as SufficiencyStudy
    from tl_lifehist.sufficiency.study import default_layers as default_layers
    from tl_lifehist.sufficiency.study import default_steps as default_steps
    from tl_lifehist.sufficiency.targets import Downstream as Downstream
    from tl_lifehist.sufficiency.targets import FixedHead as FixedHead
    from tl_lifehist.sufficiency.targets import Reconstruction as Reconstruction
    from tl_lifehist.sufficiency.targets import Transfer as Transfer
    from tl_lifehist.sufficiency.trajectories import trajectories as trajectories
    from tl_lifehist.sufficiency.translator import Translator as Translator
    from tl_lifehist.sufficiency.translator import fit_translator as fit_translator
    from tl_lifehist.tokens import TokenSet as TokenSet
