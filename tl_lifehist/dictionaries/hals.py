"""Alternating least squares with non-negative codes, one read of the rows per pass: what NMF and SemiNMF share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.nnls import first_guess, sweep, with_ridge

SWEEPS = 5  # over the codes for each product with the rows: a sweep costs a fraction of the product
_FIRST_SWEEPS = 10  # the same in the first pass, which starts from a guess

Update = Callable[[Float[Tensor, "component d_model"], Tensor, Tensor], Float[Tensor, "component d_model"]]


@dataclass(frozen=True, eq=False)
class Alternation:
    """Where it ended: the directions, what was minimised after each pass, and whether its change met the tolerance."""

    directions: Float[Tensor, "component d_model"]
    errors: list[float]
    converged: bool


def alternate(
    blocks: Callable[[], Iterable[Tensor]],
    directions: Float[Tensor, "component d_model"],
    update: Update,
    *,
    ridge: float = 0.0,
    max_iter: int,
    tol: float,
) -> Alternation:
    """Minimise ||X − U V||² + ridge sum_i ||u_i||² ||v_i||² over U >= 0 by sweeps and over V by `update`.

    It ends when a pass lowers the error by no more than `tol` of it.

    A pass reads each block once for `V X^T`, a few sweeps of its codes (Gillis and Glineur 2012: they are cheap beside
    that product) and its share of `U^T X` and `U^T U`, from which V follows. Neither step can raise the error. Memory
    beyond a block: the codes of all rows.

    Args:
        blocks: a fresh iterator over the rows of X, `[row, d_model]`, at each call.
        directions: V to start from.
        update: the next V from V, `U^T X` and `U^T U`, the latter with the ridge.
    """
    codes: list[Tensor] = []
    errors: list[float] = []
    size = 0.0
    for n_iter in range(max_iter + 1):
        gram = with_ridge(directions @ directions.T, ridge)
        product = torch.zeros_like(directions, dtype=torch.float64)
        square = torch.zeros_like(gram, dtype=torch.float64)
        for i, block in enumerate(blocks()):
            target = directions @ block.T
            if n_iter == 0:
                size += float(block.square().sum(dtype=torch.float64))
                codes.append(first_guess(gram, target))
            sweep(codes[i], gram, target, SWEEPS if n_iter else _FIRST_SWEEPS)
            product += codes[i] @ block
            square += codes[i] @ codes[i].T
        error = size - 2 * float((product * directions).sum()) + float((square * gram).sum())
        errors.append(max(error, 0.0))
        if n_iter and errors[-2] - errors[-1] <= tol * errors[-1]:
            return Alternation(directions, errors, True)
        if n_iter < max_iter:
            directions = update(directions, product.to(directions), with_ridge(square, ridge).to(directions))
    return Alternation(directions, errors, False)
