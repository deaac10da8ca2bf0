"""Every mask under every metric, on unseen text (formulas 6 to 10 and 16 of the sufficiency methods)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from tl_lifehist.dictionaries.basis import MaskBasis
from tl_lifehist.dictionaries.protocol import Dictionary, reference_of
from tl_lifehist.errors import InputError
from tl_lifehist.few_documents import warn_of_few
from tl_lifehist.metrics import bootstrap_mean
from tl_lifehist.models import HookedModel
from tl_lifehist.sufficiency.calibration import BATCH_SIZE
from tl_lifehist.sufficiency.gates import SoftMask, require_counts, require_gates, soft_mass
from tl_lifehist.sufficiency.scoring import InjectedScores, ReaderScores, over
from tl_lifehist.sufficiency.targets import Transfer
from tl_lifehist.sufficiency.translator import Translator
from tl_lifehist.suffix import ModelSuffix
from tl_lifehist.tokens import TokenSet, require_scored

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class MaskEvaluation:
    """One mask on one text. Figures that were not asked for are NaN.

    Attributes:
        soft_mass: mean gate.
        nmse: squared error of the masked rows over their squared distance from the train mean.
        kl: mean KL(clean || masked) of the model's predictions, nats.
        kl_interval: its 95 % interval over documents; NaN for fewer than `metrics.MIN_GROUPS` (6).
        relative_kl: `kl` over the mean entropy of the clean predictions.
        lost_fraction: `kl` over that of mean ablation at the same site. The empty mask scores 1, except where its codes
            are not centred or the error is kept: then it is no mean ablation.
        accuracy_drop: fall of top-1 accuracy, percentage points.
        fixed_head_kl: mean KL of the fixed head's predictions, nats.
        fixed_head_relative_kl: over the mean entropy of the fixed head's own predictions.
        transfer_nmse: squared error at the final checkpoint, over the distance from its train mean.
        transfer_kl: mean KL of the final checkpoint's predictions with the aligned rows injected, nats.
        transfer_relative_kl: over the mean entropy of its clean predictions.
        entropy: mean entropy of the clean predictions, nats.
        accuracy: top-1 accuracy of the clean predictions, between 0 and 1.
        base_ce: mean cross-entropy of the clean predictions, nats.
        n_scored: scored positions.
        by_document: one row a document: document, n, kl, accuracy_drop, nmse (about the same mean).
        empty: the same figures for gates of 0: the null of every downstream figure.
        full: the same figures for gates of 1: what the dictionary itself costs.

    How it can mislead: a low KL at a site the model hardly needs is no sufficiency. Read `lost_fraction`, and the empty
    mask beside every figure. A few massive activations can decide the NMSE.
    """

    soft_mass: float
    nmse: float
    kl: float
    kl_interval: tuple[float, float]
    relative_kl: float
    lost_fraction: float
    accuracy_drop: float
    fixed_head_kl: float
    fixed_head_relative_kl: float
    transfer_nmse: float
    transfer_kl: float
    transfer_relative_kl: float
    entropy: float
    accuracy: float
    base_ce: float
    n_scored: int
    by_document: pd.DataFrame = field(repr=False)
    empty: MaskEvaluation | None = field(default=None, repr=False)
    full: MaskEvaluation | None = field(default=None, repr=False)


def evaluate_mask(
    model: HookedModel,
    dictionary: Dictionary,
    mask: Any,
    tokens: TokenSet,
    *,
    hook_name: str,
    translator: Translator | None = None,
    transfer: Transfer | None = None,
    center_codes: bool | None = None,
    keep_error: bool | None = None,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> MaskEvaluation:
    """One mask under every metric, with the empty and the full mask beside it. A text of too few documents for an
    interval is said in a warning.

    Args:
        model: hooked, in evaluation mode.
        dictionary: whose components are gated.
        mask: a `SoftMask`, or gates as a tensor or sequence of numbers.
        tokens: the test split.
        hook_name: where the activation is replaced.
        translator: asks for the fixed head's figures.
        transfer: asks for the figures at the final checkpoint.
        center_codes: as in `MaskedReconstruction`; by default the mask's own, True for gates.
        keep_error: as in `MaskedReconstruction`; by default the mask's own, False for gates.
        batch_size: sequences a pass.
        seed: of the bootstrap over documents.

    Raises:
        InputError: gates of another length or outside [0, 1], no scored position, a dictionary without reference, a
            `SoftMask` of another hook point or dictionary.
    """
    if isinstance(mask, SoftMask):
        if mask.hook_name != hook_name or mask.dictionary is not dictionary:
            raise InputError(
                f"This mask was calibrated at {mask.hook_name!r} over a dictionary of its own: evaluate it there with "
                "mask.dictionary, or pass mask.gates to try its gates elsewhere."
            )
        center_codes = mask.center_codes if center_codes is None else center_codes
        keep_error = mask.keep_error if keep_error is None else keep_error
    gates = mask.gates if isinstance(mask, SoftMask) else torch.as_tensor(mask)
    return evaluate_masks(
        model,
        dictionary,
        {"mask": gates},
        tokens,
        hook_name=hook_name,
        translator=translator,
        transfer=transfer,
        center_codes=center_codes is not False,
        keep_error=bool(keep_error),
        batch_size=batch_size,
        seed=seed,
    )["mask"]


@torch.no_grad()
def evaluate_masks(
    model: HookedModel,
    dictionary: Dictionary,
    masks: Mapping[Any, Any],
    tokens: TokenSet,
    *,
    hook_name: str,
    translator: Translator | None = None,
    transfer: Transfer | None = None,
    center_codes: bool = True,
    keep_error: bool = False,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
) -> dict[Any, MaskEvaluation]:
    """Several masks of one dictionary as `evaluate_mask` does one; they share the clean pass and its predictions.

    Raises:
        InputError: as `evaluate_mask`.
    """
    require_scored(tokens)
    require_counts(batch_size=batch_size)
    basis = MaskBasis.of(dictionary, hook_name, center_codes=center_codes, keep_error=keep_error)
    given = [torch.as_tensor(gates) for gates in masks.values()]
    for one in given:
        require_gates(one, len(basis.directions))
    none = torch.zeros_like(basis.code_mean)
    gates = [none, none + 1, *(one.detach().to(none) for one in given)]
    mean = reference_of(hook_name, dictionary, None, "lost_fraction").x_mean.to(none)
    scores = InjectedScores(ModelSuffix(model, hook_name), mean)
    read = ReaderScores()
    final = None
    if transfer is not None:
        final = InjectedScores(ModelSuffix(transfer.final_model, hook_name), transfer.alignment.mean_final)
    for start in range(0, len(tokens), batch_size):
        batch = tokens[start : start + batch_size]
        prefix = scores.suffix.run_prefix(batch, start)
        versions = masked_versions(basis, prefix.acts, gates)
        scores.inject(prefix, [*versions, mean.expand(versions[0].shape)])  # mean ablation last
        if translator is not None:
            read.read(translator, prefix, versions)
        if final is not None and transfer is not None:
            final.inject(final.suffix.run_prefix(batch, start), [transfer.alignment(rows) for rows in versions])
    warn_of_few(scores.documents, "kl_interval")
    made = [
        evaluation_of(
            i,
            z,
            scores,
            None if translator is None else (read, i),
            None if final is None else (final, i),
            seed=seed,
        )
        for i, z in enumerate(gates)
    ]
    return {name: replace(e, empty=made[0], full=made[1]) for name, e in zip(masks, made[2:], strict=True)}


@torch.no_grad()
def masked_versions(
    basis: MaskBasis, acts: Float[Tensor, "row d_model"], gates: Sequence[Float[Tensor, " component"]]
) -> list[Float[Tensor, "row d_model"]]:
    """The masked reconstruction of the same rows by each mask; they are encoded once."""
    codes = basis.codes(acts)
    base = basis.base(acts, codes)
    return [base + (z * codes) @ basis.directions for z in gates]


def evaluation_of(
    version: int,
    gates: Float[Tensor, " component"],
    scores: InjectedScores,
    read: tuple[ReaderScores, int] | None,
    final: tuple[InjectedScores, int] | None,
    *,
    seed: int,
    n_draws: int = 1000,
) -> MaskEvaluation:
    """The figures of one version; the last version of `scores` is mean ablation. `read` and `final` hold the version
    under another number.
    """
    kl, lost, documents = scores.kl(version), scores.lost(version), scores.documents
    mean_kl = float(kl.mean())
    fixed_kl = NAN if read is None else float(read[0].kl(read[1]).mean())
    final_kl = NAN if final is None else float(final[0].kl(final[1]).mean())
    return MaskEvaluation(
        soft_mass=soft_mass(gates),
        nmse=scores.nmse(version),
        kl=mean_kl,
        kl_interval=bootstrap_mean(kl, documents, n_draws=n_draws, seed=seed),
        relative_kl=over(mean_kl, scores.entropy),
        lost_fraction=over(mean_kl, float(scores.kl(-1).mean())),
        accuracy_drop=100 * float(lost.mean()),
        fixed_head_kl=fixed_kl,
        fixed_head_relative_kl=NAN if read is None else over(fixed_kl, read[0].entropy),
        transfer_nmse=NAN if final is None else final[0].nmse(final[1]),
        transfer_kl=final_kl,
        transfer_relative_kl=NAN if final is None else over(final_kl, final[0].entropy),
        entropy=scores.entropy,
        accuracy=float(scores.correct.mean()),
        base_ce=scores.base_ce,
        n_scored=len(kl),
        by_document=_by_document(scores, version, kl, lost),
    )


def _by_document(scores: InjectedScores, version: int, kl: np.ndarray, lost: np.ndarray) -> pd.DataFrame:
    scored = pd.DataFrame({"document": scores.documents, "kl": kl, "accuracy_drop": 100 * lost}).groupby("document")
    columns = {"document": scores.row_documents, "error": scores.errors(version), "scatter": scores.scatter}
    valid = pd.DataFrame(columns).groupby("document").sum()
    table = scored.mean().assign(n=scored.size(), nmse=valid["error"] / valid["scatter"].where(valid["scatter"] > 0))
    return table.reset_index()[["document", "n", "kl", "accuracy_drop", "nmse"]]
