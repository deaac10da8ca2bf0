"""Anisotropy of the gates over training, and the sender-receiver comparison (formula 18 of the sufficiency methods)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.errors import InputError
from tl_lifehist.models import HookedModel
from tl_lifehist.sufficiency.fisher import GateFisher
from tl_lifehist.sufficiency.gradients import BATCH_SIZE
from tl_lifehist.sufficiency.overlap import mask_overlap_null
from tl_lifehist.sufficiency.sensitivity import gate_scores
from tl_lifehist.tokens import TokenSet


def participation_ratio(matrix: Float[Tensor, "component component"]) -> float:
    """(tr M)^2 / tr M^2: over how many directions a positive semi-definite matrix is spread, from 1 to its width.

    NaN for a matrix of zeros.

    Raises:
        InputError: a matrix that is not symmetric.

    How it can mislead: an estimate from n gradients has rank at most n, so noise alone caps its ratio at n, and a
    noisier checkpoint looks flatter or sharper for no reason of its own. Use `GateFisher.participation_ratio`, which
    corrects for that, and compare only estimates from equally many sequences.
    """
    m = matrix.detach().double()
    if not torch.allclose(m, m.T, rtol=1e-4, atol=1e-6 * float(m.abs().max())):
        raise InputError("The matrix is not symmetric: give a Fisher or a covariance.")
    square = float((m * m).sum())
    return float(m.trace()) ** 2 / square if square > 0 else float("nan")


def gini(values: Float[Tensor, " component"]) -> float:
    """Gini coefficient: 0 when all values are equal, 1 - 1/n when one of n holds everything. NaN when all are 0.

    Raises:
        InputError: a negative value, or no values.

    How it can mislead: a dictionary ordered by variance has unequal scores in any model, an untrained one included:
    compare with step 0 and with `gini_null`.
    """
    x = values.detach().double().cpu().sort().values
    if len(x) == 0 or bool((x < 0).any()):
        raise InputError("gini needs at least one value and none below 0.")
    n, whole = len(x), float(x.sum())
    if whole == 0:
        return float("nan")
    rank = torch.arange(1, n + 1, dtype=x.dtype)
    return float(((2 * rank - n - 1) * x).sum()) / (n * whole)


def permuted_labels(tokens: TokenSet, *, seed: int = 0) -> TokenSet:
    """The same text with its labels permuted among the scored positions: what remains is the labels' frequency."""
    generator = torch.Generator().manual_seed(seed)
    scored, labels = tokens.scored, tokens.labels.clone()
    found = labels[scored]
    labels[scored] = found[torch.randperm(len(found), generator=generator)]
    return TokenSet(tokens.ids, tokens.valid, labels, tokens.attention_mask, tokens.documents)


def gini_null(
    model: HookedModel,
    dictionary: Dictionary,
    tokens: TokenSet,
    *,
    hook_name: str,
    n_draws: int = 1,
    seed: int = 0,
    center_codes: bool = True,
    keep_error: bool = False,
    batch_size: int = BATCH_SIZE,
) -> NDArray[np.float64]:
    """Gini of tau under permuted labels, one value a draw: the anisotropy that needs no true label.

    Args:
        n_draws: permutations; each costs one `gate_scores`.
        seed: of the permutations.
        center_codes: as in `MaskedReconstruction`.
        keep_error: as in `MaskedReconstruction`.
        batch_size: sequences in one pass.

    How it can mislead: permuted labels are far less likely than true ones, so these gradients are larger; the Gini does
    not see size, but the ratio of tau to its null would.
    """
    draws = []
    for draw in range(n_draws):
        scores = gate_scores(
            model,
            dictionary,
            permuted_labels(tokens, seed=seed + draw),
            hook_name=hook_name,
            center_codes=center_codes,
            keep_error=keep_error,
            batch_size=batch_size,
        )
        draws.append(gini(scores.tau))
    return np.array(draws)


@dataclass(frozen=True)
class SenderReceiver:
    """What a linear reader finds beside what the model itself uses, at one hook point.

    A hypothesis, to be printed as one: when the two masks drift apart over training while the two curvatures spread
    over different numbers of directions, the representation ("sender") and the later blocks ("receiver") have not
    matured together. Nothing here tests that claim.

    Attributes:
        overlap: overlap of the fixed-head and the downstream mask (`mask_overlap`).
        overlap_null: mean overlap of random masks of the same gates.
        overlap_p: how often such masks overlap as much, one-sided.
        participation_fixed_head: participation ratio of the fixed head's gate Fisher.
        participation_downstream: participation ratio of the downstream gate Fisher.
        alignment: tr(AB) / sqrt(tr A^2 tr B^2) of the two Fishers (ours): 1 where they are proportional, 0 where they
            share no direction.

    How it can mislead: both masks depend on their penalty, and the fixed head on its training; two masks can also
    differ because neither is unique. Both Fishers are large where the codes are, so part of the alignment is variance.
    """

    overlap: float
    overlap_null: float
    overlap_p: float
    participation_fixed_head: float
    participation_downstream: float
    alignment: float


def sender_receiver(
    fixed_head_mask: Any,
    downstream_mask: Any,
    fixed_head_fisher: GateFisher,
    downstream_fisher: GateFisher,
    *,
    n_draws: int = 1000,
    seed: int = 0,
) -> SenderReceiver:
    """Compare what a linear reader finds with what the model uses, at one checkpoint and hook point (formula 18).

    Args:
        fixed_head_mask: gates, or a mask that has `.gates`.
        downstream_mask: the same, over the same dictionary.
        fixed_head_fisher: from `fixed_head_fisher`.
        downstream_fisher: from `measure_gate_fisher`.
        n_draws: random masks for the overlap's null.
        seed: of those masks.

    Raises:
        InputError: masks or Fishers over different numbers of components.

    How it can mislead: see `SenderReceiver`; it is a hypothesis of the paper's and no test of it.
    """
    a, b = (f.matrix.detach().double().cpu() for f in (fixed_head_fisher, downstream_fisher))
    if a.shape != b.shape:
        raise InputError(f"The Fishers are over {len(a)} and {len(b)} components: compare them over one dictionary.")
    chance = mask_overlap_null(fixed_head_mask, downstream_mask, n_draws=n_draws, seed=seed)
    size = float(a.norm() * b.norm())
    return SenderReceiver(
        overlap=chance.observed,
        overlap_null=chance.mean,
        overlap_p=chance.p,
        participation_fixed_head=fixed_head_fisher.participation_ratio,
        participation_downstream=downstream_fisher.participation_ratio,
        alignment=float((a * b).sum()) / size if size > 0 else float("nan"),
    )
