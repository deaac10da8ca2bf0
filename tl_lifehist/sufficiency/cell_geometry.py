"""Sensitivity and curvature of a cell's dictionaries, and the rankings of their components."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tl_lifehist.dictionaries.decomposition import Decomposition
from tl_lifehist.seeds import derive_seed
from tl_lifehist.sufficiency.calibration import BATCH_SIZE
from tl_lifehist.sufficiency.fisher import fixed_head_fisher, measure_gate_fisher
from tl_lifehist.sufficiency.moments import GateFisher
from tl_lifehist.sufficiency.sensitivity import GateScores, gate_scores
from tl_lifehist.suffix import ModelSuffix

if TYPE_CHECKING:
    from tl_lifehist.sufficiency.cell import Cell

FISHER_ROWS = 8192  # rows of the fixed head's Fisher (ours)


@dataclass(frozen=True, eq=False)
class Geometry:
    """Sensitivity and curvature of one dictionary on the test text."""

    scores: GateScores
    fisher: GateFisher
    cost: GateFisher  # with the dictionary's error as one more component: what a mask costs beside the clean model
    fixed_fisher: GateFisher
    # what masks of equal soft mass are ranked by, from the calibration text: no test is seen
    ranking: dict[str, Tensor]


def measure_geometry(cell: Cell, dictionary: Decomposition) -> Geometry:
    text: dict[str, Any] = {"hook_name": cell.hook_name, "batch_size": BATCH_SIZE}
    suffix = ModelSuffix(cell.model, cell.hook_name)
    rows = []
    for start in range(0, len(cell.test), BATCH_SIZE):
        prefix = suffix.run_prefix(cell.test[start : start + BATCH_SIZE], start)
        rows.append(prefix.acts[prefix.scored_row])
        if sum(map(len, rows)) >= FISHER_ROWS:
            break
    seed = derive_seed(cell.study.seed, cell.step, 3)
    return Geometry(
        gate_scores(cell.model, dictionary, cell.test, **text),
        measure_gate_fisher(cell.model, dictionary, cell.test, seed=seed, **text),
        measure_gate_fisher(cell.model, dictionary, cell.test, seed=seed, error_component=True, **text),
        fixed_head_fisher(cell.translator, dictionary, torch.cat(rows)[:FISHER_ROWS], seed=seed),
        {
            "top_variance": dictionary.component_variance,
            "tau_ranked": gate_scores(cell.model, dictionary, cell.calibration, **text).tau,
            "fisher_diagonal": measure_gate_fisher(
                cell.model, dictionary, cell.calibration, seed=seed, **text
            ).matrix.diagonal(),
        },
    )
