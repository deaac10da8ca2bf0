"""SVD of centred activations through their covariance, so that rows stream through `d_model x d_model` of memory."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.rows import Moments


@dataclass(frozen=True, eq=False)
class Fit:
    """What a method has found: `x ~ b_dec + codes @ W_dec`.

    `W_enc` makes the codes by `(x - b_dec) @ W_enc`; where it is None they are non-negative least squares with this
    `ridge`. `converged` and `n_iter` are those of the iteration, True and 0 where there is none.
    """

    W_dec: Float[Tensor, "component d_model"]
    b_dec: Float[Tensor, " d_model"]
    W_enc: Float[Tensor, "d_model component"] | None
    converged: bool = True
    n_iter: int = 0
    ridge: float = 0.0


def principal(
    found: Moments, n_components: int
) -> tuple[Float[Tensor, " component"], Float[Tensor, "component d_model"]]:
    """The largest variances of any direction, descending, and those directions, in float64 on the CPU."""
    values, vectors = torch.linalg.eigh(found.covariance)
    values, vectors = values.flip(0)[:n_components].clamp_min(0), vectors.flip(1)[:, :n_components]
    return values, with_sign(vectors.T)


def with_sign(directions: Float[Tensor, "component d_model"]) -> Float[Tensor, "component d_model"]:
    """Each direction turned so that its entry of largest size is positive: signs are arbitrary, so fix them."""
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return torch.where(largest < 0, -directions, directions)


def fit_svd(found: Moments, n_components: int) -> Fit:
    """V = the first right singular vectors of the centred rows; codes are the projections on them."""
    directions = principal(found, n_components)[1].to(found.mean)
    return Fit(directions, found.mean, directions.T.contiguous())
