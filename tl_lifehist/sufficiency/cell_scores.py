"""Every mask of a cell under every metric, in one walk over the test text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.sufficiency.calibration import BATCH_SIZE
from tl_lifehist.sufficiency.cell_versions import Version
from tl_lifehist.sufficiency.evaluation import MaskEvaluation, evaluation_of, masked_versions
from tl_lifehist.sufficiency.scoring import InjectedScores, ReaderScores, over
from tl_lifehist.suffix import ModelSuffix

if TYPE_CHECKING:
    from tl_lifehist.sufficiency.cell import Cell


@dataclass(frozen=True, eq=False)
class Scored:
    evaluations: list[MaskEvaluation]
    transfers: list[dict[str, Any]]


@torch.no_grad()
def score(cell: Cell, versions: dict[str, list[Version]]) -> dict[str, Scored]:
    """All versions of all dictionaries in one walk over the test text: one clean pass of each model serves them."""
    study, test = cell.study, cell.test
    suffix, final_suffix = ModelSuffix(cell.model, cell.hook_name), ModelSuffix(cell.final_model, cell.hook_name)
    bases = {m: MaskBasis.of(d, cell.hook_name) for m, d in cell.dictionaries.items()}
    scores = {m: InjectedScores(suffix, d.x_mean) for m, d in cell.dictionaries.items()}
    reads = {m: ReaderScores() for m in bases}
    mean_final = cell.alignments["aligned"].mean_final
    maps = {(m, control): alignment for m in bases for control, alignment in cell.alignments.items()}
    maps |= {(m, "dictionary"): alignment for m, alignment in cell.dictionary_alignments.items()}
    transfers = {key: InjectedScores(final_suffix, mean_final) for key in maps}
    main = {m: [i for i, v in enumerate(listed) if v.role == "mask"] for m, listed in versions.items()}
    # the controls of a transfer concern the alignment, so they are scored for few masks
    few = {m: [i for i in main[m] if versions[m][i].name in ("full", "transfer")] for m in bases}
    for start in range(0, len(test), BATCH_SIZE):
        batch = test[start : start + BATCH_SIZE]
        prefix, final_prefix = suffix.run_prefix(batch, start), final_suffix.run_prefix(batch, start)
        for m, basis in bases.items():
            rows = masked_versions(basis, prefix.acts, [v.gates.to(basis.directions) for v in versions[m]])
            scores[m].inject(prefix, [*rows, basis.offset.expand(rows[0].shape)])  # mean ablation last
            reads[m].read(cell.translator, prefix, [rows[i] for i in main[m]])
            for (method, control), alignment in maps.items():
                if method == m:
                    chosen = main[m] if control == "aligned" else few[m]
                    transfers[m, control].inject(final_prefix, [alignment(rows[i]) for i in chosen])
    found = {}
    for m, listed in versions.items():
        evaluations = []
        for i, version in enumerate(listed):
            at = main[m].index(i) if i in main[m] else None
            read = None if at is None else (reads[m], at)
            final = None if at is None else (transfers[m, "aligned"], at)
            evaluations.append(evaluation_of(i, version.gates, scores[m], read, final, seed=study.seed))
        rows = []
        for (method, control), score in transfers.items():
            if method == m:
                chosen = main[m] if control == "aligned" else few[m]
                rows += [_transfer_row(listed[i].name, control, score, at) for at, i in enumerate(chosen)]
        found[m] = Scored(evaluations, rows)
    return found


def _transfer_row(mask: str, control: str, score: InjectedScores, version: int) -> dict[str, Any]:
    kl = float(score.kl(version).mean())
    relative = over(kl, score.entropy)
    return {"mask": mask, "control": control, "nmse": score.nmse(version), "kl": kl, "relative_kl": relative}
