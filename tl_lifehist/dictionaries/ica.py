"""FastICA (Hyvarinen 1999) on whitened activations: parallel, logcosh, symmetric decorrelation."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.rows import Moments, Rows
from tl_lifehist.dictionaries.svd import Fit, principal, with_sign
from tl_lifehist.errors import InputError

MAX_ITER = 2000
TOL = 1e-4
_ROWS = 2048  # rows turned at a time: they stay in the processor's cache


def fit_ica(
    rows: Rows, found: Moments, n_components: int, *, seed: int, max_iter: int = MAX_ITER, tol: float = TOL
) -> Fit:
    """Codes of unit variance, as independent as possible; V = mixing^T within the first principal directions."""
    values, axes = principal(found, n_components)
    floor = values[0] * torch.finfo(torch.float64).eps * len(found.mean)
    rank = int((values > floor).sum())
    if rank < n_components:
        raise InputError(
            f"The activations vary in {rank} directions only, so ICA cannot find {n_components} components: "
            f"use n_components={rank} or less."
        )
    scale = values.sqrt()[:, None]
    whiten = (axes / scale).to(found.mean)
    white = torch.cat([whiten @ (block - found.mean).T for block in rows], dim=1)
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(n_components, n_components, generator=generator, dtype=torch.float64)
    rotation, converged, n_iter = rotate(white, decorrelated(start), max_iter=max_iter, tol=tol)
    mixing = with_sign(rotation @ (axes * scale))
    unmixing = ((axes / scale).T @ (axes / scale)) @ mixing.T  # of a rotation of axes * scale: its pseudo-inverse
    return Fit(mixing.to(found.mean), found.mean, unmixing.to(found.mean), converged, n_iter)


def rotate(
    white: Float[Tensor, "component row"], rotation: Float[Tensor, "component component"], *, max_iter: int, tol: float
) -> tuple[Float[Tensor, "component component"], bool, int]:
    """The fixed-point iteration: the rotation, whether no component turned by more than `tol`, and its steps."""
    n_rows = white.shape[1]
    for n_iter in range(1, max_iter + 1):
        turned = rotation.to(white)
        product = torch.zeros_like(rotation)
        slope = torch.zeros(len(rotation), dtype=torch.float64)
        for block in white.split(_ROWS, dim=1):
            value = torch.tanh(turned @ block)
            product += (value @ block.T).cpu().double()
            slope += block.shape[1] - value.square().sum(dim=1).cpu().double()
        step = decorrelated(product / n_rows - (slope / n_rows)[:, None] * rotation)
        change = float(((step * rotation).sum(dim=1).abs() - 1).abs().max())
        rotation = step
        if change < tol:
            return rotation, True, n_iter
    return rotation, False, max_iter


def decorrelated(matrix: Float[Tensor, "component component"]) -> Float[Tensor, "component component"]:
    """The nearest rotation: (W W^T)^(-1/2) W."""
    left, _, right = torch.linalg.svd(matrix)
    return left @ right
