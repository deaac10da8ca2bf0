"""Figures of several versions of an activation, gathered over batches: in a model, and before a fixed head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.readout import Comparison, compare_readouts
from tl_lifehist.sufficiency.clean import TINY
from tl_lifehist.sufficiency.translator import Translator
from tl_lifehist.suffix import ModelSuffix, Prefix


class ReaderScores:
    """Predictions of a fixed head from each version, beside those from the clean activation."""

    def __init__(self) -> None:
        self._comparisons: list[Comparison] = []

    @torch.no_grad()
    def read(self, translator: Translator, prefix: Prefix, versions: Sequence[Float[Tensor, "row d_model"]]) -> None:
        """Compare the versions of one batch with its clean rows."""
        if prefix.batch.n_scored:
            scored = prefix.scored_row
            clean = translator(prefix.acts.to(versions[0])[scored])
            changed = [translator(rows[scored]) for rows in versions]
            self._compare(translator.head, clean, changed, prefix)

    def _compare(self, head, clean: Tensor, changed: Sequence[Tensor], prefix: Prefix) -> None:
        self._comparisons.append(compare_readouts(head, clean, changed, prefix.batch.labels[prefix.batch.scored]))

    def kl(self, version: int) -> np.ndarray:
        """KL(clean || version) of each scored position, nats."""
        return torch.cat([c.kl[version] for c in self._comparisons]).double().cpu().numpy()

    @property
    def entropy(self) -> float:
        """Mean entropy of the clean predictions, nats."""
        return float(torch.cat([c.entropy for c in self._comparisons]).double().mean())

    @property
    def base_ce(self) -> float:
        """Mean cross-entropy of the clean predictions, nats."""
        return float(torch.cat([c.cross_entropy for c in self._comparisons]).double().mean())

    @property
    def correct(self) -> np.ndarray:
        """Whether the clean top-1 token is the true one, for each scored position."""
        return torch.cat([c.correct for c in self._comparisons]).cpu().numpy()

    def lost(self, version: int) -> np.ndarray:
        """Fall of the top-1 hit (1, 0 or -1) of each scored position (formula 10 of the sufficiency methods)."""
        changed = torch.cat([c.changed_correct[version] for c in self._comparisons]).cpu().numpy()
        return self.correct.astype(float) - changed


class InjectedScores(ReaderScores):
    """The same for versions injected into a model, with their squared errors about a mean."""

    def __init__(self, suffix: ModelSuffix, mean: Float[Tensor, " d_model"]) -> None:
        super().__init__()
        self.suffix, self.mean = suffix, mean
        self._errors: list[Tensor] = []
        self._scatter: list[Tensor] = []
        self._row_documents: list[Tensor] = []
        self._documents: list[Tensor] = []

    @torch.no_grad()
    def inject(self, prefix: Prefix, versions: Sequence[Float[Tensor, "row d_model"]]) -> None:
        """Compare the versions of one batch with its clean run."""
        acts, batch = prefix.acts.to(versions[0]), prefix.batch
        self._errors.append(torch.stack([(acts - rows).double().square().sum(1) for rows in versions]).cpu())
        self._scatter.append((acts - self.mean.to(acts)).double().square().sum(1).cpu())
        assert batch.documents is not None
        self._row_documents.append(batch.documents[batch.valid])
        if batch.n_scored:
            changed = [self.suffix.run_suffix(prefix, rows) for rows in versions]
            self._compare(self.suffix.head, prefix.final, changed, prefix)
            self._documents.append(batch.documents[batch.scored])

    def errors(self, version: int) -> np.ndarray:
        """Squared error of each valid row."""
        return torch.cat([e[version] for e in self._errors]).numpy()

    @property
    def scatter(self) -> np.ndarray:
        """Squared distance from the mean of each valid row."""
        return torch.cat(self._scatter).numpy()

    def nmse(self, version: int) -> float:
        """Formula 6 of the sufficiency methods."""
        return over(float(self.errors(version).sum()), float(self.scatter.sum()), least=0.0)

    @property
    def row_documents(self) -> np.ndarray:
        return torch.cat(self._row_documents).numpy()

    @property
    def documents(self) -> np.ndarray:
        """The document of each scored position."""
        return torch.cat(self._documents).numpy()


def over(value: float, reference: float, least: float = TINY) -> float:
    """A relative figure; NaN where the reference is practically 0 (formula 9 of the sufficiency methods)."""
    return value / reference if reference > least else float("nan")
