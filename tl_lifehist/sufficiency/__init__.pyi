"""What is public in `tl_lifehist.sufficiency`, in the order of the data, beside the names at the top."""

# isort: skip_file

from .gates import SoftMask as SoftMask
from .massive import without_massive as without_massive
from .alignment import (
    Alignment as Alignment,
    align_dictionaries as align_dictionaries,
    shuffled_rows as shuffled_rows,
    transfer_nmse as transfer_nmse,
)
from .nulls import (
    dealt_mask as dealt_mask,
    permuted_mask as permuted_mask,
    ranked_mask as ranked_mask,
)
from .overlap import (
    OverlapNull as OverlapNull,
    mask_overlap as mask_overlap,
    mask_overlap_null as mask_overlap_null,
)
from .onset import (
    onset_of_sufficiency as onset_of_sufficiency,
    onset_table as onset_table,
)
from .sensitivity import GateScores as GateScores
from .moments import GateFisher as GateFisher
from .fisher import (
    closed_form_gates as closed_form_gates,
    fixed_head_fisher as fixed_head_fisher,
    gate_fisher as gate_fisher,
    measure_gate_fisher as measure_gate_fisher,
    predicted_kl as predicted_kl,
)
from .geometry import (
    SenderReceiver as SenderReceiver,
    gini as gini,
    gini_null as gini_null,
    participation_ratio as participation_ratio,
    permuted_labels as permuted_labels,
    sender_receiver as sender_receiver,
)
from .curvature import pullback_fisher as pullback_fisher
from .carriers import (
    CarrierEnrichment as CarrierEnrichment,
    carrier_enrichment as carrier_enrichment,
)
from .config import SufficiencyConfig as SufficiencyConfig
from .study import (
    default_layers as default_layers,
    default_steps as default_steps,
)
from .translator import Translator as Translator
from .evaluation import MaskEvaluation as MaskEvaluation
