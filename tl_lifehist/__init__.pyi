"""All that `import tl_lifehist as lh` offers, in the order of the data.

`__init__.py` reads this file and imports a name when it is first used; type checkers and the API page read it too. At
most 48 names: the rest is one dot further, or in its module.
"""

# isort: skip_file

__version__: str

# one dot further: lh.lifehistory.Lineages
from . import checkpoints as checkpoints
from . import dictionaries as dictionaries
from . import lifehistory as lifehistory
from . import sufficiency as sufficiency

# checkpoints and text
from .checkpoints.series import CheckpointSeries as CheckpointSeries
from .checkpoints.snapshot import SnapshotCallback as SnapshotCallback
from .tokens import TokenSet as TokenSet
from .errors import InputError as InputError

# activations and dictionaries
from .activations import collect_activations as collect_activations
from .dictionaries.decomposition import decompose as decompose
from .dictionaries.protocol import with_reference as with_reference
from .dictionaries.sae import (
    load_sae as load_sae,
    train_saes as train_saes,
)

# interventions, and what they cost
from .interventions import (
    FeatureAblation as FeatureAblation,
    MaskedReconstruction as MaskedReconstruction,
)
from .effects import ablation_effect as ablation_effect

# the life history of features
from .lifehistory.profiles import (
    FeatureProfiles as FeatureProfiles,
    activation_profiles as activation_profiles,
    profile_saes as profile_saes,
)
from .lifehistory.matching import match_features as match_features
from .lifehistory.compare import (
    compare_saes as compare_saes,
    life_of as life_of,
)
from .lifehistory.lineages import trace_lineages as trace_lineages
from .lifehistory.containment import containment_dag as containment_dag
from .lifehistory.joint_ablation import joint_ablation as joint_ablation
from .lifehistory.forecast import predict_carriers as predict_carriers
from .lifehistory.contexts import top_contexts as top_contexts
from .lifehistory.study import LifeHistoryStudy as LifeHistoryStudy

# functional sufficiency
from .sufficiency.targets import (
    Downstream as Downstream,
    FixedHead as FixedHead,
    Reconstruction as Reconstruction,
    Transfer as Transfer,
)
from .sufficiency.translator import fit_translator as fit_translator
from .sufficiency.alignment import align_checkpoints as align_checkpoints
from .sufficiency.calibration import (
    MaskTask as MaskTask,
    calibrate_mask as calibrate_mask,
    calibrate_masks as calibrate_masks,
)
from .sufficiency.evaluation import (
    evaluate_mask as evaluate_mask,
    evaluate_masks as evaluate_masks,
)
from .sufficiency.sensitivity import (
    enrichment as enrichment,
    gate_scores as gate_scores,
)
from .sufficiency.frontier import frontier as frontier
from .sufficiency.trajectories import trajectories as trajectories
from .sufficiency.study import SufficiencyStudy as SufficiencyStudy

# plans, runs and the report
from .dry_run import plan_study as plan_study
from .runs import load_run as load_run
from .comparison import compare_runs as compare_runs
from .report.page import write_report as write_report
