"""One clean pass over a token set, shared by everything that replaces activations at one hook point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.errors import InputError, one_of
from tl_lifehist.models import HookedModel
from tl_lifehist.readout import readout_entropy, readout_kl
from tl_lifehist.suffix import ModelSuffix, Prefix
from tl_lifehist.tokens import TokenSet

KEPT_CODES = 2**27  # codes kept between steps, in numbers; a wider dictionary encodes each minibatch again
TINY = 1e-8  # a reference below it makes a relative figure meaningless (formula 9)


class NoReference(InputError):
    """What a loss is relative to is practically 0. `target` names the target it was wanted for."""

    def __init__(self, message: str, target: str) -> None:
        super().__init__(message)
        self.target = target

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (str(self), self.target)  # so that a worker can send it back


@dataclass(frozen=True, eq=False)
class CleanRun:
    """A model's own activations and final residuals on a token set, and what relative losses are relative to.

    Attributes:
        model: the model.
        hook_name: where activations are replaced.
        tokens: the text.
        batch_size: sequences a pass.
        given: what a clean pass has left already; without it the run makes its own.
        others: the same text through other models, where such runs are there already.
    """

    model: HookedModel
    hook_name: str
    tokens: TokenSet
    batch_size: int
    given: Prefix | None = None
    others: tuple[CleanRun, ...] = ()

    @cached_property
    def suffix(self) -> ModelSuffix:
        return ModelSuffix(self.model, self.hook_name)

    @cached_property
    def _sources(self) -> dict[int, SourceRows]:
        return {}

    def source(self, basis: MaskBasis) -> SourceRows:
        """The rows of a basis, encoded once however many masks share it."""
        return self._sources.setdefault(id(basis), SourceRows(self.prefix, basis))

    @cached_property
    def _others(self) -> list[CleanRun]:
        return list(self.others)

    def of(self, model: HookedModel) -> CleanRun:
        """The same text through another model, once however often it is asked for."""
        if model is self.model:
            return self
        known = [run for run in self._others if run.model is model]
        if not known:
            known = [CleanRun(model, self.hook_name, self.tokens, self.batch_size)]
            self._others.extend(known)
        return known[0]

    @cached_property
    def prefix(self) -> Prefix:
        return self.suffix.run_prefix_all(self.tokens, self.batch_size) if self.given is None else self.given

    @cached_property
    def entropy(self) -> float:
        """Mean entropy of the clean predictions, nats."""
        return float(readout_entropy(self.suffix.head, self.prefix.final).double().mean())

    @torch.no_grad()
    def kl_of_constant(self, row: Float[Tensor, " d_model"]) -> float:
        """Mean KL, nats, of one and the same activation at every valid position (mean ablation, for the mean)."""
        total = 0.0
        for part in torch.arange(len(self.prefix)).split(self.batch_size):
            prefix = self.prefix[part]
            final = self.suffix.run_suffix(prefix, row.expand(len(prefix.acts), -1))
            total += float(readout_kl(self.suffix.head, prefix.final, final).double().sum())
        return total / self.tokens.n_scored


@dataclass(frozen=True, eq=False)
class SourceRows:
    """The masked rows of chosen sequences. Codes are made once where they fit, since NNLS codes are dear."""

    prefix: Prefix
    basis: MaskBasis

    @cached_property
    def _kept(self) -> Float[Tensor, "seq pos component"] | None:
        valid = self.prefix.batch.valid
        if valid.numel() * len(self.basis.directions) > KEPT_CODES:
            return None
        codes = self.basis.codes(self.prefix.acts)
        kept = codes.new_zeros(*valid.shape, codes.shape[1])
        kept[valid.to(codes.device)] = codes
        return kept

    def parts(
        self, sequences: Int[Tensor, " chosen"]
    ) -> tuple[Float[Tensor, "row d_model"], Float[Tensor, "row component"]]:
        """What stays at gates of 0, and the codes, of the chosen sequences' valid positions."""
        acts = self.prefix.value[sequences][self.prefix.batch.valid[sequences].to(self.prefix.value.device)]
        acts = acts.to(self.basis.directions)
        if self._kept is None:
            codes = self.basis.codes(acts)
        else:
            codes = self._kept[sequences][self.prefix.batch.valid[sequences].to(self._kept.device)]
        return self.basis.base(acts, codes), codes

    def rows(self, sequences: Int[Tensor, " chosen"], gates: Float[Tensor, " component"]) -> Tensor:
        """The masked reconstruction of the chosen sequences. Gradients flow to the gates."""
        base, codes = self.parts(sequences)
        return base + (gates.to(codes) * codes) @ self.basis.directions


def reference_value(
    target: str, relative_to: str, entropy: Callable[[], float], mean_ablation: Callable[[], float]
) -> float:
    """What a KL is divided by: formula 9 of the sufficiency methods.

    Raises:
        InputError: an unknown choice.
        NoReference: a reference that is practically 0.
    """
    one_of("relative_to", relative_to, ("entropy", "mean_ablation", "nats"))
    value = {"entropy": entropy, "mean_ablation": mean_ablation, "nats": lambda: 1.0}[relative_to]()
    if value < TINY:
        raise NoReference(
            f"The reference ({relative_to}) is {value:.1e} nats, so a loss relative to it means nothing: "
            'use another relative_to, "nats" at the last.',
            target,
        )
    return value
