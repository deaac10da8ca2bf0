"""The four things a mask can be asked to preserve.

Each target turns a clean run and a dictionary's basis into the loss that calibration minimises. All losses are
relative, so that one penalty serves every target, model and layer. Their names are in `target_kinds`.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from tl_lifehist.deprecated import warn
from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.dictionaries.protocol import reference_of
from tl_lifehist.errors import InputError, one_of
from tl_lifehist.models import HookedModel
from tl_lifehist.readout import readout_entropy, readout_kl
from tl_lifehist.sufficiency.alignment import Alignment
from tl_lifehist.sufficiency.clean import CleanRun, reference_value
from tl_lifehist.sufficiency.objectives import FixedReadout, Injected, Quadratic
from tl_lifehist.sufficiency.translator import Translator

Objective = Quadratic | FixedReadout | Injected


def __getattr__(name: str) -> Any:
    """`TARGETS` and `TargetKind`, which were here, with a warning that names their new place."""
    if name not in ("TARGETS", "TargetKind"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = f"tl_lifehist.sufficiency.target_kinds.{name}"
    warn(f"{__name__}.{name}", place)
    return pkgutil.resolve_name(place)  # by its name: target_kinds knows this module


@runtime_checkable
class Target(Protocol):
    """What a mask preserves."""

    name: ClassVar[str]

    def objective(self, clean: CleanRun, basis: MaskBasis) -> Objective: ...


@dataclass(frozen=True)
class Reconstruction:
    """The activation itself: NMSE about the train mean (formula 6), over all rows in every step."""

    name: ClassVar[str] = "reconstruction"

    def objective(self, clean: CleanRun, basis: MaskBasis) -> Objective:
        acts = clean.prefix.acts.to(basis.directions)
        codes = basis.codes(acts)
        scale = scatter(acts, _mean(basis, clean.hook_name))
        return Quadratic.of(acts - basis.base(acts, codes), codes, basis.directions, scale)


@dataclass(frozen=True, eq=False)
class FixedHead:
    """The predictions of a fixed linear reader: KL(q(h) || q(h_hat)) (formula 7).

    Attributes:
        translator: the reader, fitted on other text and not changed any more.
        relative_to: "entropy" of the reader's own predictions, "mean_ablation" or "nats" (formula 9).
    """

    translator: Translator
    relative_to: str = "entropy"
    name: ClassVar[str] = "fixed_head"

    def objective(self, clean: CleanRun, basis: MaskBasis) -> Objective:
        translator = self.translator
        rows = clean.prefix.acts[clean.prefix.scored_row].to(basis.directions)
        read = translator(rows)
        mean = translator(_mean(basis, clean.hook_name).to(rows).unsqueeze(0))
        with torch.no_grad():
            reference = reference_value(
                self.name,
                self.relative_to,
                lambda: float(readout_entropy(translator.head, read).double().mean()),
                lambda: float(readout_kl(translator.head, read, mean.expand(read.shape)).double().mean()),
            )
        return FixedReadout(clean.source(basis), translator, translator.head, reference)


@dataclass(frozen=True)
class Downstream:
    """What the model itself goes on to predict: KL(p(.|h) || p(.|h_hat)) with h replaced at every valid position of the
    layer (formula 8).

    Attributes:
        relative_to: "entropy" of the clean predictions, "mean_ablation" at the same site, or "nats" (formula 9).
    """

    relative_to: str = "entropy"
    name: ClassVar[str] = "downstream"

    def objective(self, clean: CleanRun, basis: MaskBasis) -> Objective:
        mean = _mean(basis, clean.hook_name)
        reference = reference_value(
            self.name, self.relative_to, lambda: clean.entropy, lambda: clean.kl_of_constant(mean)
        )
        return Injected(clean.source(basis), clean.suffix, clean.prefix, None, reference)


@dataclass(frozen=True, eq=False)
class Transfer:
    """The final checkpoint's activation, or predictions, from the source checkpoint's masked reconstruction under a
    learned alignment (formula 16).

    Attributes:
        final_model: the final checkpoint.
        alignment: from the source's activations to the final ones, see `align_checkpoints`.
        loss: "nmse" at the final checkpoint, or "kl" of its predictions with the aligned rows injected.
        relative_to: for "kl": "entropy" of the final checkpoint's predictions, "mean_ablation" there, or "nats".
    """

    final_model: HookedModel
    alignment: Alignment
    loss: str = "nmse"
    relative_to: str = "entropy"
    name: ClassVar[str] = "transfer"

    def objective(self, clean: CleanRun, basis: MaskBasis) -> Objective:
        one_of("loss", self.loss, ("nmse", "kl"))
        final = clean.of(self.final_model)
        mean = self.alignment.mean_final
        source = clean.source(basis)
        if self.loss == "kl":
            reference = reference_value(
                self.name,
                self.relative_to,
                lambda: final.entropy,
                lambda: final.kl_of_constant(mean.to(final.prefix.acts)),
            )
            return Injected(source, final.suffix, final.prefix, self.alignment, reference)
        base, codes = source.parts(torch.arange(len(clean.prefix)))
        wanted = final.prefix.acts.to(basis.directions)
        directions = basis.directions @ self.alignment.weight.to(basis.directions)
        return Quadratic.of(wanted - self.alignment(base).to(wanted), codes, directions, scatter(wanted, mean))


@dataclass(frozen=True, eq=False)
class TargetContext:
    """What a study has at one checkpoint and hook point to make a target of.

    Attributes:
        translator: the fixed head there.
        alignment: from there to the final checkpoint.
        final_model: the final checkpoint.
        relative_to: what losses in nats are divided by (formula 9).
        transfer_loss: "nmse" or "kl".
    """

    translator: Translator
    alignment: Alignment
    final_model: HookedModel
    relative_to: str
    transfer_loss: str


def scatter(acts: Tensor, mean: Tensor) -> float:
    """Squared distance of all rows from the mean: the denominator of an NMSE.

    Raises:
        InputError: every row is the mean.
    """
    total = sum(float((rows - mean.to(rows)).double().square().sum()) for rows in acts.split(8192))
    if total <= 0:
        raise InputError("The activations are all equal to the train mean, so an error relative to it means nothing.")
    return total


def _mean(basis: MaskBasis, hook_name: str) -> Tensor:
    """The train mean, which travels with the dictionary."""
    return reference_of(hook_name, basis.dictionary, None, "a relative loss").x_mean
