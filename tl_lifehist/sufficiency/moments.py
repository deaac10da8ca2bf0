"""From the matrices of single sequences to a gate Fisher with its standard error, none of them kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GateFisher:
    """Formula 12 of the sufficiency methods, with how sure it is.

    Attributes:
        matrix: M, nats per squared unit of gate; the mean over scored positions.
        standard_error: of each entry, over sequences: what other text of the same kind, and for an estimate other
            draws of the labels, would change. NaN from one sequence.
        participation_ratio: (tr M)^2 / tr M^2 from products of *different* sequences only, so that it has neither the
            cap at n of a matrix made of n gradients nor the noise of the labels; NaN where that cannot be had.
        n_sequences: sequences (rows, for a fixed head) with a scored position.
        n_scored: scored positions.
        method: "estimate" or "exact".

    How it can mislead: M is the curvature at the full mask. It says what closing gates a little costs; a mask that
    closes most of them is far away. `predicted_kl` beside the measured KL shows how far the expansion holds.
    """

    matrix: Float[Tensor, "component component"]
    standard_error: Float[Tensor, "component component"]
    participation_ratio: float
    n_sequences: int
    n_scored: int
    method: str


class FisherMoments:
    """Sums over sequences of X = mean over draws of g g^T, the [component component] sum of one sequence: what M, its
    standard error and its participation ratio need, without keeping an X.
    """

    # Invariant: after each call every sum below runs over all sequences so far, one X each, so neither the cut into
    # batches nor whether X came as gradients or as a block can be seen in `result`.
    def __init__(self) -> None:
        self.total = self.square = self.weighted = torch.zeros((), dtype=torch.float64)  # of X, X^2 by entry, n X
        self.own_trace = self.own_square = 0.0  # sums of (tr X)^2 and of tr X^2
        self.counts: list[Tensor] = []  # n, the scored positions of each sequence
        self.dtype = torch.float32

    def add_gradients(self, gradients: Float[Tensor, "draw seq component"], n_scored: Int[Tensor, " seq"]) -> None:
        g, n = gradients.double().cpu(), n_scored.double().cpu()
        draws = len(g)
        rows, weight = g.flatten(0, 1), n.repeat(draws).unsqueeze(1)
        self._add(rows.T @ rows / draws, (rows * weight).T @ rows / draws, n_scored, gradients.dtype)
        # X_ij^2 is a mean over pairs of draws of (g h)_i (g h)_j, so its sum is a product of matrices too
        for a in g:
            for b in g:
                both = a * b
                self.square = self.square + both.T @ both / draws**2
                self.own_square += float(both.sum(1).square().sum()) / draws**2
        self.own_trace += float(g.square().sum(2).mean(0).square().sum())

    def add_blocks(self, blocks: Float[Tensor, "seq component component"], n_scored: Int[Tensor, " seq"]) -> None:
        x, n = blocks.double().cpu(), n_scored.double().cpu()
        self._add(x.sum(0), (x * n[:, None, None]).sum(0), n_scored, blocks.dtype)
        self.square = self.square + x.square().sum(0)
        self.own_square += float(x.square().sum())
        self.own_trace += float(x.diagonal(dim1=1, dim2=2).sum(1).square().sum())

    def _add(self, total: Tensor, weighted: Tensor, n_scored: Tensor, dtype: torch.dtype) -> None:
        self.total, self.weighted = self.total + total, self.weighted + weighted
        self.counts.append(n_scored[n_scored > 0].double().cpu())
        self.dtype = dtype

    def result(self, method: str) -> GateFisher:
        n = torch.cat(self.counts)
        units, scored = len(n), float(n.sum())
        mean = self.total / scored
        # M is a ratio of sums, so a sequence departs from it by X - n M
        spread = self.square - 2 * mean * self.weighted + mean.square() * float(n.square().sum())
        correction = units / (units - 1) if units > 1 else float("nan")
        error = (spread.clamp_min(0) * correction).sqrt() / scored
        trace = float(self.total.trace()) ** 2 - self.own_trace
        square = float(self.total.square().sum()) - self.own_square
        ratio = trace / square if units > 1 and square > 0 else float("nan")
        return GateFisher(mean.to(self.dtype), error.to(self.dtype), ratio, units, int(scored), method)
