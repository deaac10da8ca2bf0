"""The losses a mask is calibrated on. Each takes gates and gives a relative loss with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tl_lifehist.errors import InputError
from tl_lifehist.readout import Head, readout_kl
from tl_lifehist.sufficiency.clean import SourceRows
from tl_lifehist.suffix import ModelSuffix, Prefix

MAX_COMPONENTS = 8192  # of a squared error: its quadratic form is square in them
_BLOCK = 8192  # rows raised to float64 at a time


@dataclass(frozen=True, eq=False)
class Quadratic:
    """A squared error as the quadratic form that it is: all rows in every step, at the price of k x k numbers.

    `sum ||t - (z * w) V||² / scale = (constant - 2 z·linear + z G z) / scale`.
    """

    constant: Float[Tensor, ""]
    linear: Float[Tensor, " component"]
    gram: Float[Tensor, "component component"]

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        targets: Float[Tensor, "row d_out"],
        codes: Float[Tensor, "row component"],
        directions: Float[Tensor, "component d_out"],
        scale: float,
    ) -> Quadratic:
        """From the targets t, the codes w and the directions V; in float64, since small errors are differences."""
        if len(directions) > MAX_COMPONENTS:
            raise InputError(
                f"A squared error over {len(directions)} components needs the square of that number in memory: gate at "
                f"most {MAX_COMPONENTS}, for example the alive features."
            )
        directions = directions.double()
        constant = torch.zeros((), dtype=torch.float64, device=directions.device)
        cross = torch.zeros_like(directions)
        square = directions.new_zeros(len(directions), len(directions))
        for rows, w in zip(targets.split(_BLOCK), codes.split(_BLOCK), strict=True):
            rows, w = rows.double(), w.double()
            constant += rows.square().sum()
            cross += w.T @ rows
            square += w.T @ w
        linear = (cross * directions).sum(dim=1)
        return cls(constant / scale, linear / scale, square * (directions @ directions.T) / scale)

    def __call__(self, gates: Float[Tensor, " component"]) -> Tensor:
        z = gates.double()
        return self.constant - 2 * (z @ self.linear) + z @ self.gram @ z


@dataclass(frozen=True, eq=False)
class FixedReadout:
    """KL(q(h) || q(h_hat)) of a head that reads each position alone, over what it is relative to (formula 7)."""

    source: SourceRows
    translate: Callable[[Tensor], Tensor]
    head: Head
    reference: float


def readout_losses(
    objectives: Sequence[FixedReadout], gates: Sequence[Tensor], sequences: Int[Tensor, " chosen"]
) -> list[Tensor]:
    """The losses of several masks on the same sequences before one fixed head: they share its clean predictions."""
    first = objectives[0]
    prefix = first.source.prefix[sequences]
    scored = prefix.scored_row
    versions = []
    for objective, z in zip(objectives, gates, strict=True):
        base, codes = objective.source.parts(sequences)
        rows = base[scored] + (z.to(codes) * codes[scored]) @ objective.source.basis.directions
        versions.append(first.translate(rows))
    clean = first.translate(prefix.acts[scored].to(versions[0]))
    return _means(readout_kl(first.head, clean, torch.stack(versions, dim=1)), objectives)


@dataclass(frozen=True, eq=False)
class Injected:
    """KL(p(.|h) || p(.|h_hat)) with the masked rows injected into a model (formula 8), over what it is relative to.

    `suffix` and `prefix` are those of the model that is injected; `through` takes the rows there, for a transfer.
    """

    source: SourceRows
    suffix: ModelSuffix
    prefix: Prefix
    through: Callable[[Tensor], Tensor] | None
    reference: float


def injected_losses(
    objectives: Sequence[Injected], gates: Sequence[Tensor], sequences: Int[Tensor, " chosen"]
) -> list[Tensor]:
    """The losses of several masks on the same sequences and the same model, in one pass above the hook point: they
    share what the pass starts from and the clean predictions.
    """
    suffix, whole = objectives[0].suffix, objectives[0].prefix
    rows = []
    for objective, z in zip(objectives, gates, strict=True):
        made = objective.source.rows(sequences, z)
        rows.append(made if objective.through is None else objective.through(made))
    prefix = whole[sequences]
    final = suffix.run_suffix(whole[sequences.repeat(len(objectives))], torch.cat(rows))
    versions = final.unflatten(0, (len(objectives), len(prefix.final))).transpose(0, 1)
    return _means(readout_kl(suffix.head, prefix.final, versions), objectives)


def _means(kl: Float[Tensor, "row mask"], objectives: Sequence[FixedReadout | Injected]) -> list[Tensor]:
    """Mean over the rows, relative; 0 for a minibatch that happens to have no scored position."""
    means = kl.sum(dim=0) / max(1, len(kl))
    return [value / objective.reference for value, objective in zip(means, objectives, strict=True)]
