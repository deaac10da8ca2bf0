"""Gate scores: how strongly the supervised loss pulls at each component's gate, and whether always the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.errors import InputError, one_of
from tl_lifehist.models import HookedModel
from tl_lifehist.sufficiency.gradients import BATCH_SIZE, sequence_gradients
from tl_lifehist.sufficiency.nulls import as_gates
from tl_lifehist.tokens import TokenSet


@dataclass(frozen=True, eq=False, repr=False)
class GateScores:
    """Formula 14 of the sufficiency methods, with the gradients it is made of.

    Attributes:
        gradients: g_i(e) = dL(e)/dz_i at z = 1, nats per unit of gate; e is a sequence, or a document.
        hook_name: where the gates act.
        by: "sequence" or "document": what e is.

    How it can mislead: g is the slope at the full mask. A component whose gate can close without a change of the loss
    to first order (at a minimum of the loss) scores near 0 and may still be needed: look at the curvature
    (`gate_fisher`) beside it. E[g_i^2] also grows with the noise of short sequences, and scores of different hook
    points are in different units. `omega` of a few sequences is biased upwards; `omega_debiased` is not.
    """

    gradients: Float[Tensor, "sequence component"]
    hook_name: str
    by: str = "sequence"

    def __repr__(self) -> str:
        n_sequences, n_components = self.gradients.shape
        return f"GateScores(at {self.hook_name!r}: {n_components} components, {n_sequences} {self.by}s)"

    @property
    def n_sequences(self) -> int:
        """Sequences (or documents) with a scored position: what the means are over."""
        return len(self.gradients)

    @property
    def tau(self) -> Float[Tensor, " component"]:
        """tau_i = E[g_i^2]: sensitivity, whatever the sign."""
        return self.gradients.double().square().mean(0).to(self.gradients)

    @property
    def omega(self) -> Float[Tensor, " component"]:
        """omega_i = (E[g_i])^2: the part of tau that pulls in one direction everywhere; 0 <= omega <= tau."""
        return self.gradients.double().mean(0).square().to(self.gradients)

    @property
    def omega_debiased(self) -> Float[Tensor, " component"]:
        """(n mean(g)^2 - mean(g^2)) / (n - 1): omega without the bias of n sequences; can be negative. NaN at n = 1."""
        n, g = self.n_sequences, self.gradients.double()
        if n < 2:
            return torch.full_like(self.tau, float("nan"))
        return ((n * g.mean(0).square() - g.square().mean(0)) / (n - 1)).to(self.gradients)

    @property
    def coherence(self) -> Float[Tensor, " component"]:
        """omega / tau, in [0, 1]; NaN where tau is 0."""
        return self.omega / torch.where(self.tau > 0, self.tau, float("nan"))


def gate_scores(
    model: HookedModel,
    dictionary: Dictionary,
    tokens: TokenSet,
    *,
    hook_name: str,
    center_codes: bool = True,
    keep_error: bool = False,
    by: str = "sequence",
    batch_size: int = BATCH_SIZE,
) -> GateScores:
    """tau and omega of every component, from one backward pass a batch (formula 14 of the sufficiency methods).

    g_i(e) = dL(e)/dz_i at z = 1 = sum over the positions of e of u_i <v_i, dL/dx>, with L(e) the mean cross-entropy
    over the scored positions of e, against the true labels, and the reconstruction injected at every valid position.
    Sequences without a scored position are left out.

    Args:
        model: a hooked model; left as it is.
        dictionary: with a reference when `center_codes` is set.
        tokens: text on which nothing was fitted.
        hook_name: where the reconstruction goes.
        center_codes: as in `MaskedReconstruction`.
        keep_error: as in `MaskedReconstruction`.
        by: "sequence", or "document" (ours): L(e) is then the mean over all scored positions of the document, so that
            long documents cut into windows count once and give the same scores as uncut ones wherever windows do not
            change the predictions.
        batch_size: sequences in one pass; the scores do not depend on it.

    Raises:
        InputError: a model in training mode, an unknown hook point, no scored position, a missing reference, or with
            by="document" a sequence that scores positions of two documents.

    How it can mislead: see `GateScores`.
    """
    one_of("by", by, ("sequence", "document"))
    documents = _documents(tokens) if by == "document" else None
    sums, counts = [], []
    batches = sequence_gradients(
        model,
        dictionary,
        tokens,
        lambda batch, head, final: [batch.labels[batch.scored]],
        hook_name=hook_name,
        center_codes=center_codes,
        keep_error=keep_error,
        batch_size=batch_size,
    )
    for batch, gradients in batches:
        n_scored = batch.scored.sum(1)
        sums.append(gradients[0][n_scored > 0])
        counts.append(n_scored[n_scored > 0])
    total, count = torch.cat(sums), torch.cat(counts)
    if documents is not None:
        _, unit = torch.unique(documents, return_inverse=True)
        n_units = int(unit.max()) + 1
        total = total.new_zeros(n_units, total.shape[1]).index_add_(0, unit, total)
        count = count.new_zeros(n_units).index_add_(0, unit, count)
    return GateScores(total / count.unsqueeze(1), hook_name, by)


def _documents(tokens: TokenSet) -> Tensor:
    """The document of each sequence that has a scored position."""
    assert tokens.documents is not None  # filled in by TokenSet
    scored = tokens.scored
    found = []
    for sequence in scored.any(1).nonzero()[:, 0].tolist():
        here = tokens.documents[sequence][scored[sequence]].unique()
        if len(here) > 1:
            raise InputError(
                f"Sequence {sequence} scores positions of {len(here)} documents, so their gradients cannot be told "
                'apart: use windows that hold one document, or by="sequence".'
            )
        found.append(here)
    return torch.cat(found) if found else torch.zeros(0, dtype=torch.long)


def enrichment(mask: Any, scores: Float[Tensor, " score"]) -> float:
    """How much more of the scores a mask keeps than of the components (formula 15 of the sufficiency methods).

    (sum_i z_i s_i / sum_i s_i) / mean_i z_i, for s in tau, omega or the diagonal of the gate Fisher: 1 for a constant
    mask, at most 1 over the soft mass. NaN where all scores, or all gates, are 0.

    Args:
        mask: gates, or a mask that has `.gates`.
        scores: one for each component.

    Raises:
        InputError: another number of scores than of gates, or a score below 0.

    How it can mislead: with a few heavy scores the value is decided by a few gates, and small masks reach large values
    by chance: compare with random masks of the same soft mass.
    """
    gates = as_gates(mask)
    if gates.shape != scores.shape:
        raise InputError(f"There are {len(gates)} gates and {len(scores)} scores: give one score for each gate.")
    if bool((scores < 0).any()):
        raise InputError("A score is negative: enrichment is a ratio of shares (use tau or omega, not omega_debiased).")
    z, s = gates.double().cpu(), scores.detach().double().cpu()
    whole, mass = float(s.sum()), float(z.mean())
    if whole == 0 or mass == 0:
        return float("nan")
    return float((z * s).sum()) / whole / mass
