"""NMF by hierarchical alternating least squares on activations made non-negative (Cichocki and Phan 2009)."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.hals import SWEEPS, alternate
from tl_lifehist.dictionaries.nnls import sweep
from tl_lifehist.dictionaries.rows import Moments, Rows
from tl_lifehist.dictionaries.svd import Fit

MAX_ITER = 500
TOL = 1e-3


def fit_nmf(
    rows: Rows, found: Moments, n_components: int, *, offset: str, seed: int, max_iter: int = MAX_ITER, tol: float = TOL
) -> Fit:
    """H ~ b + U V with U, V >= 0: b is each feature's minimum, or 0 with H replaced by relu(H) for `offset="relu"`.

    V starts at random, is brought close on the sample of the rows and finished on all of them.
    """
    base = torch.zeros_like(found.mean) if offset == "relu" else found.minimum

    def shifted(block: Tensor) -> Tensor:
        return block.relu() if offset == "relu" else block - base

    sample = shifted(found.sample)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(n_components, len(base), generator=generator, dtype=torch.float64).to(base)
    start = alternate(lambda: [sample], noise * sample.mean(dim=0), non_negative, max_iter=max_iter, tol=tol)
    ended = alternate(lambda: map(shifted, rows), start.directions, non_negative, max_iter=max_iter, tol=tol)
    return Fit(ended.directions, base, None, ended.converged, len(ended.errors) - 1)


def non_negative(
    directions: Float[Tensor, "component d_model"], product: Tensor, square: Tensor
) -> Float[Tensor, "component d_model"]:
    directions = directions.clone()
    sweep(directions, square, product, SWEEPS)
    return directions
