"""Scores of one checkpoint: every mask under every metric on the test text, beside what it has to beat, as tables."""

from __future__ import annotations

from collections import defaultdict

import pandas as pd

from tl_lifehist.stages import Inputs, Outputs
from tl_lifehist.sufficiency.cell import Cell, calibrated_in
from tl_lifehist.sufficiency.cell_geometry import measure_geometry, rank_components
from tl_lifehist.sufficiency.cell_scores import score_cells
from tl_lifehist.sufficiency.cell_tables import cell_tables
from tl_lifehist.sufficiency.cell_versions import versions_of
from tl_lifehist.sufficiency.config import Comparisons, Geometry, Masks
from tl_lifehist.sufficiency.fitted import Fitted
from tl_lifehist.sufficiency.sites import joined, with_site
from tl_lifehist.sufficiency.stages.reading import Reading, fit_stage
from tl_lifehist.suffix import ModelSuffix


def scores(
    inputs: Inputs,
    *,
    step: int,
    last: int,
    hook_names: tuple[str, ...],
    leave_out_massive: float,
    masks: Masks,
    comparisons: Comparisons,
    close_ups: tuple[str, ...],
    geometry: Geometry,
    seed: int,
    pass_hooks: tuple[str, ...],
    hooks_per_pass: int | None = None,
) -> Outputs:
    """Every table of the checkpoint: checkpoints, dictionaries, components, evaluation, nulls, frontier, transfer,
    anisotropy and stability of the masks.
    """
    reading = Reading(inputs, step, last, leave_out_massive, pass_hooks, hooks_per_pass)
    model, held, gates = reading.model, inputs[fit_stage(step)], inputs[f"masks/step{step}"]["gates"]
    found: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for _, wanted in reading.chunks(hook_names):
        calibration, test = (reading.without_massive(wanted, split) for split in ("calibration", "test"))
        cells, own, versions = [], [], []
        for name in wanted:
            fitted = Fitted.from_outputs(held, ModelSuffix(model, name))
            texts = (calibration[name], test[name])
            cell = Cell(
                *(step, name, model, reading.final_model, *texts, fitted),
                masks=masks,
                comparisons=comparisons,
                close_ups=close_ups,
                geometry=geometry,
                seed=seed,
            )
            here = list(calibrated_in(gates[gates["hook_name"] == name]))
            rankings = {m: rank_components(cell, d) for m, d in fitted.dictionaries.items()}
            cells.append(cell)
            own.append(here)
            versions.append({m: versions_of(cell, m, here, ranking) for m, ranking in rankings.items()})
        for cell, here, listed, scored in zip(
            cells, own, versions, score_cells(cells, versions, inputs.text("test")), strict=True
        ):
            measured = {m: measure_geometry(cell, d, scored.acts) for m, d in cell.fitted.dictionaries.items()}
            for name, table in cell_tables(cell, here, listed, measured, scored).items():
                found[name].append(with_site(table, step, cell.hook_name))
    return {name: joined(parts) for name, parts in found.items()}
