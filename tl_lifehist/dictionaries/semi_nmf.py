"""SemiNMF (Ding, Li and Jordan 2010): centred activations ~ U V with U >= 0 and V free."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.hals import alternate
from tl_lifehist.dictionaries.rows import Moments, Rows
from tl_lifehist.dictionaries.svd import Fit

MAX_ITER = 500
TOL = 1e-3
RIDGE = 1e-3  # (ours) penalty on a component's energy, as a share of it
_LLOYD = 10  # rounds of k-means for the start


def fit_semi_nmf(
    rows: Rows, found: Moments, n_components: int, *, seed: int, max_iter: int = MAX_ITER, tol: float = TOL
) -> Fit:
    """H − mean ~ U V with U >= 0, from the start that Ding, Li and Jordan propose: the centres of k-means.

    Both steps are exact: V is the least-squares solution for U, U is swept coordinate by coordinate. Without a ridge
    the minimum is an SVD of k − 1 components whose codes are shifted to be positive: then the k directions lie in
    k − 1 dimensions, and components of any size cancel each other. `RIDGE` sum_i ||u_i||² ||v_i||² is added to the
    error, here and in the codes, so that they are unique and stay small.
    """
    sample = found.sample - found.mean
    generator = torch.Generator().manual_seed(seed)
    centres = sample[torch.randperm(len(sample), generator=generator)[:n_components].to(sample.device)]
    for _ in range(_LLOYD):
        nearest = (sample @ centres.T - centres.square().sum(dim=1) / 2).argmax(dim=1)
        count = torch.bincount(nearest, minlength=n_components)[:, None]
        total = torch.zeros_like(centres).index_add_(0, nearest, sample)
        centres = torch.where(count > 0, total / count.clamp_min(1), centres)
    start = alternate(lambda: [sample], centres, least_squares, ridge=RIDGE, max_iter=max_iter, tol=tol)
    ended = alternate(
        lambda: (block - found.mean for block in rows),
        start.directions,
        least_squares,
        ridge=RIDGE,
        max_iter=max_iter,
        tol=tol,
    )
    return Fit(ended.directions, found.mean, None, ended.converged, len(ended.errors) - 1, ridge=RIDGE)


def least_squares(
    directions: Float[Tensor, "component d_model"], product: Tensor, square: Tensor
) -> Float[Tensor, "component d_model"]:
    # The pseudo-inverse, because a component that no row uses leaves the square singular
    inverse = torch.linalg.pinv(square.double(), hermitian=True)
    return (inverse @ product.double()).to(directions)
