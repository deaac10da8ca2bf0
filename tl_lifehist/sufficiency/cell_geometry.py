"""Sensitivity and curvature of a cell's dictionaries, and the rankings of their components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.decomposition import Decomposition
from tl_lifehist.seeds import derive_seed
from tl_lifehist.sufficiency.calibration import BATCH_SIZE
from tl_lifehist.sufficiency.cell import Cell
from tl_lifehist.sufficiency.fisher import fixed_head_fisher, measure_gate_fisher
from tl_lifehist.sufficiency.moments import GateFisher
from tl_lifehist.sufficiency.sensitivity import GateScores, gate_scores


@dataclass(frozen=True, eq=False)
class CellGeometry:
    """Sensitivity and curvature of one dictionary on the test text."""

    scores: GateScores
    fisher: GateFisher
    cost: GateFisher  # with the dictionary's error as one more component: what a mask costs beside the clean model
    fixed_fisher: GateFisher


def rank_components(cell: Cell, dictionary: Decomposition) -> dict[str, Tensor]:
    """What masks of equal soft mass are ranked by, from the calibration text: no test is seen."""
    text: dict[str, Any] = {"hook_name": cell.hook_name, "batch_size": BATCH_SIZE}
    return {
        "top_variance": dictionary.component_variance,
        "tau_ranked": gate_scores(cell.model, dictionary, cell.calibration, **text).tau,
        "fisher_diagonal": measure_gate_fisher(
            cell.model, dictionary, cell.calibration, **_draws(cell), **text
        ).matrix.diagonal(),
    }


def measure_geometry(cell: Cell, dictionary: Decomposition, scored_acts: Float[Tensor, "row d_model"]) -> CellGeometry:
    """One dictionary on the test text.

    Args:
        scored_acts: clean activations at scored positions of the test text, for the fixed head.
    """
    text: dict[str, Any] = {"hook_name": cell.hook_name, "batch_size": BATCH_SIZE}
    draws, test = _draws(cell), cell.test
    return CellGeometry(
        gate_scores(cell.model, dictionary, test, **text),
        measure_gate_fisher(cell.model, dictionary, test, **draws, **text),
        measure_gate_fisher(cell.model, dictionary, test, error_component=True, **draws, **text),
        fixed_head_fisher(cell.fitted.translator, dictionary, scored_acts, **draws),
    )


def _draws(cell: Cell) -> dict[str, Any]:
    return {"seed": derive_seed(cell.seed, cell.step, 3), "n_samples": cell.geometry.fisher_samples}
