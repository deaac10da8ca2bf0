"""Masks of the same soft mass as a given one, none of them optimised: what an optimised mask has to beat."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.errors import InputError


def as_gates(mask: Any) -> Float[Tensor, " component"]:
    """The gates of a mask, or gates given as they are: detached, at least float32.

    Raises:
        InputError: not one row of values between 0 and 1.
    """
    gates = torch.as_tensor(getattr(mask, "gates", mask)).detach()
    if gates.ndim != 1 or len(gates) == 0:
        raise InputError(f"Gates have the shape {tuple(gates.shape)}: give one value for each component.")
    if not bool(((gates >= 0) & (gates <= 1)).all()):
        raise InputError("Gates must lie between 0 and 1.")
    return gates.to(torch.promote_types(gates.dtype, torch.float32))


def permuted_mask(mask: Any, *, seed: int = 0) -> Float[Tensor, " component"]:
    """The mask's own gates dealt out to random components: the random mask of equal soft mass.

    The values of the gates stay, so the soft mass (formula 4) and how soft or hard the mask is stay exactly; expected
    enrichment is 1. The global random state is untouched.

    How it can mislead: it ignores variance, so nearly every mask beats it; the harder nulls are `ranked_mask`s.

    Raises:
        InputError: not one row of values between 0 and 1.
    """
    gates = as_gates(mask)
    order = np.random.default_rng(seed).permutation(len(gates))
    return gates[torch.as_tensor(order, device=gates.device)]


def ranked_mask(scores: Float[Tensor, " component"], soft_mass: float) -> Float[Tensor, " component"]:
    """Gates of 1 for the highest scores, one gate in between at the border, 0 for the rest: mean gate `soft_mass`.

    With `component_variance` as scores it is the top-variance mask, with tau the one-backward ranking, with the
    diagonal of the gate Fisher the curvature ranking: nothing is optimised. Equal scores go by their order.

    How it can mislead: an optimised mask of the same soft mass can be soft where this one is hard, and a gate of 0.5
    already saves three quarters of a component's squared error.

    Raises:
        InputError: no scores, scores that are NaN, or a soft mass outside [0, 1].
    """
    if len(scores) == 0 or bool(torch.isnan(scores).any()):
        raise InputError("Scores to rank by must be numbers, one for each component: there is none, or a NaN.")
    if not 0 <= soft_mass <= 1:
        raise InputError(f"soft_mass={soft_mass} must lie between 0 and 1: it is the mean of the gates.")
    budget = soft_mass * len(scores)
    n_full = math.floor(budget)
    order = torch.argsort(scores.detach(), descending=True, stable=True)
    gates = torch.zeros(len(scores), dtype=torch.promote_types(scores.dtype, torch.float32), device=scores.device)
    gates[order[:n_full]] = 1
    gates[order[n_full : n_full + 1]] = budget - n_full
    return gates


def rivals(mask: Any, scores: Float[Tensor, " component"]) -> tuple[Tensor, Tensor]:
    """A ranking as two masks of equal soft mass: hard gates, and the mask's own gates dealt out by rank. The cheaper of
    the two is the one to beat.
    """
    return ranked_mask(scores, float(as_gates(mask).double().mean())), dealt_mask(mask, scores)


def dealt_mask(mask: Any, scores: Float[Tensor, " component"]) -> Float[Tensor, " component"]:
    """The mask's own gates dealt out by rank: the largest gate to the highest score. Soft mass and softness stay.

    The counterpart of `ranked_mask`, whose gates are 1 or 0: which of the two is the harder rival depends on how soft
    the mask is.

    How it can mislead: the gates' values still come from an optimisation; only where they go does not.

    Raises:
        InputError: scores that are NaN, or of another number than the gates.
    """
    gates = as_gates(mask)
    if scores.shape != gates.shape or bool(torch.isnan(scores).any()):
        raise InputError(f"There are {tuple(scores.shape)} scores for {len(gates)} gates: give a number for each.")
    dealt = torch.empty_like(gates)
    order = torch.argsort(scores.detach(), descending=True, stable=True).to(gates.device)
    dealt[order] = gates.sort(descending=True).values
    return dealt
