"""Non-negative least squares of many rows against one dictionary, by its Gram matrix."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

TOL = 1e-11  # violation of the optimality conditions that a row may end with
_ROWS = 2048  # rows solved at a time: their codes stay in the processor's cache
_SWEEPS = 8  # coordinate sweeps before the first step on the free components
_PANEL = 20  # components whose codes are read for each of them in a sweep
_CG_STEPS = 6  # conjugate-gradient steps in one such step
_ROUNDS = 200
_SHARES = (0.3, 0.1, 0.03)  # of that step that are tried where it raises the error

Codes = Float[Tensor, "component row"]
Gram = Float[Tensor, "component component"]


def sweep(codes: Codes, gram: Gram, target: Codes, times: int = 1) -> None:
    """Minimise ½ u^T G u − c^T u over u >= 0, exactly in one component after the other, for all rows at once, in place.

    With codes U and target V X^T this is a sweep of HALS over U; with directions V and target U^T X, over V.
    A component without a direction (`G_jj = 0`) is set to 0. What the other panels of components contribute is one
    product a panel, so that each component reads the codes of its own panel only.
    """
    scale = torch.diagonal(gram)[:, None]
    inverse = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    step = (gram * inverse).fill_diagonal_(0)
    goal = target * inverse
    panels = []
    for start in range(0, len(gram), _PANEL):
        panel = slice(start, start + _PANEL)
        others = step[panel].clone()
        others[:, panel] = 0
        panels.append((codes[panel], step[panel, panel].unbind(), others, goal[panel]))
    with _one_thread():
        for _ in range(times):
            for inside, weights, others, wanted in panels:
                left = torch.addmm(wanted, others, codes, alpha=-1)
                for code, weight, rest in zip(inside.unbind(), weights, left.unbind(), strict=True):
                    torch.clamp_min(torch.addmv(rest, inside.T, weight, alpha=-1), 0, out=code)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Thousands of short products gain nothing from a second thread, and on busy cores each waits for it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def with_ridge(gram: Gram, ridge: float) -> Gram:
    """The Gram matrix with its diagonal raised by that share of itself: lengths of the directions do not matter."""
    return gram + ridge * torch.diag(torch.diagonal(gram))


def first_guess(gram: Gram, target: Codes) -> Codes:
    """The best multiple of relu(c) for each row: unlike zeros, a start from which no component takes all."""
    guess = target.clamp_min(0)
    return guess * _ratio((guess * target).sum(dim=0), (guess * (gram @ guess)).sum(dim=0))


@torch.no_grad()
def nnls(
    x: Float[Tensor, "row d_model"],
    directions: Float[Tensor, "component d_model"],
    *,
    ridge: float = 0.0,
    tol: float = TOL,
) -> Float[Tensor, "row component"]:
    """The codes u >= 0 of least ||x − u V||² + ridge sum_i u_i² ||v_i||² for every row, computed in float64.

    A few coordinate sweeps find most of the components that end at 0. Then a row alternates between the exact solution
    on its free components and a sweep, which frees or closes others, until its optimality conditions hold
    (`violation`) or the rounds are used up, whatever the other rows do: its codes are those of the row alone. Where the
    directions are linearly dependent the codes are one of many solutions; the same one at every call.
    """
    norm = directions.double().norm(dim=1)
    unit = directions.double() * _ratio(torch.ones_like(norm), norm)[:, None]
    gram = with_ridge(unit @ unit.T, ridge)
    # Restricted to the free components the inverse preconditions their equations: as many steps as components are at 0
    inverse = torch.linalg.pinv(with_ridge(gram, len(gram) * torch.finfo(gram.dtype).eps), hermitian=True)
    parts = []
    for rows in x.split(_ROWS):
        target = unit @ rows.double().T
        codes = first_guess(gram, target)
        sweep(codes, gram, target, _SWEEPS)
        waiting = torch.arange(len(rows), device=x.device)
        now = codes.clone()
        for _ in range(_ROUNDS):
            left = violation(now, gram, target) > tol
            codes[:, waiting] = now
            waiting, now, target = waiting[left], now[:, left], target[:, left]
            if len(waiting) == 0:
                break
            now = _on_free_components(now, gram, inverse, target)
            sweep(now, gram, target)
        parts.append((codes * _ratio(torch.ones_like(norm), norm)[:, None]).T.to(x.dtype))
    return torch.cat(parts) if parts else x.new_zeros(0, len(directions))


def violation(codes: Codes, gram: Gram, target: Codes) -> Float[Tensor, " row"]:
    """How far each row is from its optimum: the largest |min(u_i, g_i)|, g the gradient, over the largest |c_i|.

    Zero exactly where u >= 0, g >= 0 and u_i g_i = 0 (Karush, Kuhn and Tucker), for unit directions.
    """
    gap = torch.minimum(codes, gram @ codes - target).abs().amax(dim=0)
    return gap / target.abs().amax(dim=0).clamp_min(torch.finfo(codes.dtype).tiny)


def _on_free_components(codes: Codes, gram: Gram, inverse: Gram, target: Codes) -> Codes:
    """A step towards the minimum over the components above 0, cut at 0, that never raises the objective.

    It is shortened a few times; where that does not help it ends where the first component reaches 0.
    """
    # Invariant: directions are 0 outside the free components, so what is closed stays closed here (a sweep opens it),
    # and lengths are cut until the objective does not rise, so the rounds cannot go in circles.
    free = (codes > 0).to(codes)
    residual = (target - gram @ codes) * free
    scaled = (inverse @ residual) * free
    along, agreement = scaled, (residual * scaled).sum(dim=0)
    step = torch.zeros_like(codes)
    for _ in range(_CG_STEPS):
        bent = (gram @ along) * free
        length = _ratio(agreement, (along * bent).sum(dim=0))
        step = torch.addcmul(step, along, length)
        residual = torch.addcmul(residual, bent, length, value=-1)
        scaled = (inverse @ residual) * free
        before, agreement = agreement, (residual * scaled).sum(dim=0)
        along = torch.addcmul(scaled, along, _ratio(agreement, before))
    first_at_0 = torch.where(step < 0, codes / -step, torch.ones_like(codes)).amin(dim=0) * (1 + 1e-12)
    share = torch.ones_like(agreement)
    for shorter in (*_SHARES, first_at_0.clamp_max(1)):
        found = torch.addcmul(codes, step, share).clamp_min_(0)
        rise = ((found - codes) * (gram @ (found + codes) / 2 - target)).sum(dim=0)
        if bool((rise <= 0).all()):
            break
        share = torch.where(rise > 0, shorter, share)
    return torch.addcmul(codes, step, share).clamp_min_(0)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient where the denominator is positive, else 0."""
    return torch.where(denominator > 0, numerator / denominator, torch.zeros_like(numerator))
