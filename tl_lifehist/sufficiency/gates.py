"""Soft masks: annealed sigmoid gates and the mask they end in."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.protocol import Dictionary
from tl_lifehist.errors import InputError
from tl_lifehist.interventions import MaskedReconstruction, Valid
from tl_lifehist.models import Hook

HOT, COLD = 1.0, 0.1  # temperatures at the start and at the end (published)
ANNEALED = 0.75  # share of the steps over which the temperature falls (ours)


def temperature(step: int, steps: int) -> float:
    """The temperature of a step: geometric from 1.0 to 0.1 over the first 75 % of the steps, then held (formula 3 of
    the sufficiency methods).
    """
    share = min(1.0, step / max(1.0, ANNEALED * steps))
    return HOT * (COLD / HOT) ** share


def soft_mass(gates: Float[Tensor, " component"]) -> float:
    """Mean gate (formula 4 of the sufficiency methods)."""
    return float(gates.double().mean())


@dataclass(frozen=True, eq=False, repr=False)
class SoftMask:
    """A calibrated mask.

    Attributes:
        gates: one value in [0, 1] for each component. It is what is injected and reported, and never made binary.
        hook_name: where it applies.
        dictionary: whose components it scales.
        target: what it preserves: "reconstruction", "fixed_head", "downstream" or "transfer".
        penalty: the lambda of its objective.
        seed: of its minibatches.
        history: step, temperature, loss (relative, over the step's rows), soft_mass; every tenth step and the last.
        center_codes: as in `MaskedReconstruction`.
        keep_error: as in `MaskedReconstruction`.

    How it can mislead: masks are not unique (compare seeds with `mask_overlap`), and a mask that keeps behaviour at a
    place the model hardly needs shows nothing (compare with gates of 0).
    """

    gates: Float[Tensor, " component"]
    hook_name: str
    dictionary: Dictionary
    target: str
    penalty: float
    seed: int = 0
    history: pd.DataFrame = field(default_factory=pd.DataFrame)
    center_codes: bool = True
    keep_error: bool = False

    @property
    def soft_mass(self) -> float:
        """Mean gate (formula 4)."""
        return soft_mass(self.gates)

    def __repr__(self) -> str:
        return (
            f"SoftMask({self.target!r} at {self.hook_name!r}: {len(self.gates)} gates, soft mass {self.soft_mass:.4f}, "
            f"penalty {self.penalty:g}, seed {self.seed})"
        )

    def fwd_hooks(self, valid: Valid | None = None) -> list[Hook]:
        """Hooks for `model.hooks(fwd_hooks=...)`; `valid` as in `FeatureAblation.fwd_hooks`."""
        return MaskedReconstruction(
            self.hook_name,
            self.dictionary,
            self.gates,
            center_codes=self.center_codes,
            keep_error=self.keep_error,
        ).fwd_hooks(valid)


def require_counts(**counts: int) -> None:
    """Refuse a number that must be at least 1."""
    for name, value in counts.items():
        if value < 1:
            raise InputError(f"{name}={value} must be at least 1.")


def require_gates(gates: Tensor, n_components: int) -> None:
    """Refuse gates of another length, outside [0, 1] or not finite."""
    if gates.shape != (n_components,):
        raise InputError(f"There are {tuple(gates.shape)} gates for {n_components} components: give one for each.")
    if not bool(((gates >= 0) & (gates <= 1)).all()):
        raise InputError("Gates must lie between 0 and 1.")
