"""Curvature of predictions, exactly, in forward mode: formulas 11 and 12 of the sufficiency methods without a draw."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.readout import Head, chunks
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet, require_scored


def pullback_fisher(head: Head, rows: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model d_model"]:
    """F(h) = J^T (diag p - p p^T) J of each row, J = d head(h) / d h (formula 11 of the sufficiency methods).

    KL(p(h) || p(h - r)) = r^T F r / 2 + O(|r|^3): a downstream loss is a reconstruction error weighted by F. Positive
    semi-definite, of rank at most d_vocab - 1. Memory: row x d_model^2.

    How it can mislead: `head` has to be all that lies behind the row. In a model with attention an edit also moves
    later positions, which this F does not see; `gate_fisher` does.
    """
    directions = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device).expand(len(rows), -1, -1)
    return torch.cat([scaled @ scaled.transpose(1, 2) for _, scaled in centred(head, rows, directions)])


def exact_blocks(
    suffix: ModelSuffix, basis: MaskBasis, tokens: TokenSet, batch_size: int
) -> Iterator[tuple[TokenSet, Float[Tensor, "seq component component"]]]:
    """Each batch with the summed G^T (diag p - p p^T) G of each of its sequences."""
    require_scored(tokens)
    for start in range(0, len(tokens), batch_size):
        batch = tokens[start : start + batch_size]
        if not batch.n_scored:
            continue
        with torch.no_grad():
            prefix = suffix.run_prefix(batch, start)
            codes = basis.codes(prefix.acts)
            rows = basis.base(prefix.acts, codes) + codes @ basis.directions
            function = partial(suffix.run_suffix, prefix)
            moves = [
                _derivative(function, rows, u.unsqueeze(1) * v) for u, v in zip(codes.T, basis.directions, strict=True)
            ]
            blocks = codes.new_zeros(len(batch), codes.shape[1], codes.shape[1])
            for where, scaled in centred(suffix.head, function(rows), torch.stack(moves, dim=1)):
                sequence = prefix.scored_sequence[where].to(blocks.device)
                blocks.index_add_(0, sequence, (scaled @ scaled.transpose(1, 2)).to(blocks))
        yield batch, blocks


def _derivative(function: Head, at: Tensor, along: Tensor) -> Tensor:
    """The directional derivative, in forward mode. Fused attention has none, so its plain form is run."""
    with sdpa_kernel(SDPBackend.MATH), forward_ad.dual_level():
        with warnings.catch_warnings():  # the first call makes torch warn of its own use of torch.jit
            warnings.simplefilter("ignore", DeprecationWarning)
            dual = forward_ad.make_dual(at, along.to(at))
        moved = forward_ad.unpack_dual(function(dual)).tangent
    return torch.zeros_like(function(at)) if moved is None else moved


@torch.no_grad()
def centred(
    head: Head, rows: Float[Tensor, "row d_model"], along: Float[Tensor, "row component d_model"]
) -> Iterator[tuple[slice, Float[Tensor, "chunk component d_vocab"]]]:
    """sqrt(p) (G - mean of G under p) for each row, in chunks: its products over the vocabulary are the Fisher's."""
    k = along.shape[1]
    for where in chunks(head, rows, copies=k):
        p = _raised(head(rows[where])).softmax(-1).unsqueeze(1)
        repeated = rows[where].repeat_interleave(k, dim=0)
        moves = _raised(_derivative(head, repeated, along[where].flatten(0, 1))).unflatten(0, (-1, k))
        yield where, p.sqrt() * (moves - (p * moves).sum(-1, keepdim=True))


def _raised(value: Tensor) -> Tensor:
    return value.to(torch.promote_types(value.dtype, torch.float32))
