"""What is public in `tl_lifehist.lifehistory`, in the order of the data, beside the names at the top."""

# isort: skip_file

from .matching import (
    FeatureMatch as FeatureMatch,
    rematch_rate as rematch_rate,
)
from .lineages import (
    Carriers as Carriers,
    Lineages as Lineages,
)
from .containment import (
    containment_index as containment_index,
    feature_roles as feature_roles,
)
from .recruitment import (
    recruited_fraction as recruited_fraction,
    recruitment_null as recruitment_null,
)
from .controls import draw_controls as draw_controls
from .joint_ablation import JointAblation as JointAblation
from .ablation_breakdown import (
    compare_roles as compare_roles,
    ablation_parts as ablation_parts,
    ablation_regression as ablation_regression,
    single_ablation as single_ablation,
)
from .forecast import Forecast as Forecast
from .direction import function_and_direction as function_and_direction
from .survival import (
    kaplan_meier as kaplan_meier,
    survival_by_entropy as survival_by_entropy,
)
from .content import (
    content_classes as content_classes,
    token_class as token_class,
    vocabulary_classes as vocabulary_classes,
)
from .noise import (
    frozen_null as frozen_null,
    rematch_frequencies as rematch_frequencies,
    rematch_table as rematch_table,
    seed_stable as seed_stable,
    unrelated_null as unrelated_null,
)
from .compare import (
    LifeOfFeature as LifeOfFeature,
    SAEComparison as SAEComparison,
)
from .stored import stored_features as stored_features
from .planted.suite import (
    PlantedSuite as PlantedSuite,
    planted_suite as planted_suite,
)
from .planted.truth import PlantedTruth as PlantedTruth
from .config import LifeHistoryConfig as LifeHistoryConfig
from .study import depth_hook_names as depth_hook_names
