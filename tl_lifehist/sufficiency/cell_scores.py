"""Every mask under every metric, in one walk over the test text for all hook points of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.sufficiency.calibration import BATCH_SIZE
from tl_lifehist.sufficiency.cell import Cell
from tl_lifehist.sufficiency.cell_versions import Version
from tl_lifehist.sufficiency.evaluation import MaskEvaluation, evaluation_of, masked_versions
from tl_lifehist.sufficiency.scoring import InjectedScores, ReaderScores, over
from tl_lifehist.suffix import ModelSuffix, Prefix, run_prefixes
from tl_lifehist.tokens import TokenSet

Versions = Mapping[str, Sequence[Version]]  # by method


@dataclass(frozen=True, eq=False)
class Scored:
    """Figures of one cell.

    Attributes:
        evaluations: of each version, by method.
        transfers: rows of the transfer table, by method.
        acts: clean activations at scored positions of the test text, in order.
    """

    evaluations: dict[str, list[MaskEvaluation]]
    transfers: dict[str, list[dict[str, Any]]]
    acts: Float[Tensor, "row d_model"]


@torch.no_grad()
def score_cells(cells: Sequence[Cell], versions: Sequence[Versions], tokens: TokenSet) -> list[Scored]:
    """All versions of all cells of one checkpoint in one walk over the test text: one clean pass of each model serves
    them.

    Args:
        cells: at different hook points.
        versions: of each cell.
        tokens: the test text, of which each cell may leave out positions of its own.
    """
    own, final = cells[0].model, cells[0].final_model
    suffixes = [ModelSuffix(own, cell.hook_name) for cell in cells]
    finals = suffixes if final is own else [ModelSuffix(final, cell.hook_name) for cell in cells]
    walks = [_Walk(*parts) for parts in zip(cells, versions, suffixes, finals, strict=True)]
    for start in range(0, len(tokens), BATCH_SIZE):
        batch = tokens[start : start + BATCH_SIZE]
        found = run_prefixes(suffixes, batch, start)
        beside = found if finals is suffixes else run_prefixes(finals, batch, start)
        for walk, prefix, final_prefix in zip(walks, found, beside, strict=True):
            part = walk.cell.test[start : start + BATCH_SIZE]
            walk.see(replace(prefix, batch=part), replace(final_prefix, batch=part))
    return [walk.result() for walk in walks]


class _Walk:
    """What is gathered of one cell over the batches."""

    def __init__(self, cell: Cell, versions: Versions, suffix: ModelSuffix, final: ModelSuffix) -> None:
        self.cell, self.versions = cell, versions
        fitted = cell.fitted
        self.bases = {m: MaskBasis.of(d, cell.hook_name) for m, d in fitted.dictionaries.items()}
        self.scores = {m: InjectedScores(suffix, d.x_mean) for m, d in fitted.dictionaries.items()}
        self.reads = {m: ReaderScores() for m in self.bases}
        self.maps = {(m, control): alignment for m in self.bases for control, alignment in fitted.alignments.items()}
        self.maps |= {(m, "dictionary"): alignment for m, alignment in fitted.dictionary_alignments.items()}
        mean_final = fitted.alignments["aligned"].mean_final
        self.transfers = {key: InjectedScores(final, mean_final) for key in self.maps}
        self.main = {m: [i for i, v in enumerate(listed) if v.role == "mask"] for m, listed in versions.items()}
        # the controls of a transfer concern the alignment, so they are scored for few masks
        few = ("full", "transfer")
        self.few = {m: [i for i in main if versions[m][i].name in few] for m, main in self.main.items()}
        self.acts: list[Tensor] = []
        self.n_acts = 0

    def see(self, prefix: Prefix, final_prefix: Prefix) -> None:
        """One batch."""
        if self.n_acts < self.cell.geometry.fisher_rows:
            self.acts.append(prefix.acts[prefix.scored_row])
            self.n_acts += len(self.acts[-1])
        for m, basis in self.bases.items():
            rows = masked_versions(basis, prefix.acts, [v.gates.to(basis.directions) for v in self.versions[m]])
            self.scores[m].inject(prefix, [*rows, basis.offset.expand(rows[0].shape)])  # mean ablation last
            self.reads[m].read(self.cell.fitted.translator, prefix, [rows[i] for i in self.main[m]])
            for (method, control), alignment in self.maps.items():
                if method == m:
                    chosen = [rows[i] for i in self._scored_by(m, control)]
                    self.transfers[m, control].inject(final_prefix, [alignment(one) for one in chosen])

    def _scored_by(self, method: str, control: str) -> list[int]:
        return self.main[method] if control == "aligned" else self.few[method]

    def result(self) -> Scored:
        evaluations: dict[str, list[MaskEvaluation]] = {}
        transfers: dict[str, list[dict[str, Any]]] = {}
        for m, listed in self.versions.items():
            evaluations[m] = []
            for i, version in enumerate(listed):
                at = self.main[m].index(i) if i in self.main[m] else None
                read = None if at is None else (self.reads[m], at)
                final = None if at is None else (self.transfers[m, "aligned"], at)
                evaluations[m].append(
                    evaluation_of(
                        i,
                        version.gates,
                        self.scores[m],
                        read,
                        final,
                        seed=self.cell.seed,
                        n_draws=self.cell.geometry.interval_draws,
                    )
                )
            transfers[m] = [
                _transfer_row(listed[i].name, control, score, at)
                for (method, control), score in self.transfers.items()
                if method == m
                for at, i in enumerate(self._scored_by(m, control))
            ]
        return Scored(evaluations, transfers, torch.cat(self.acts)[: self.cell.geometry.fisher_rows])


def _transfer_row(mask: str, control: str, score: InjectedScores, version: int) -> dict[str, Any]:
    kl = float(score.kl(version).mean())
    relative = over(kl, score.entropy)
    return {"mask": mask, "control": control, "nmse": score.nmse(version), "kl": kl, "relative_kl": relative}
