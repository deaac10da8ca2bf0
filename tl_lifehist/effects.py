"""What an intervention costs the model: cross-entropy, KL and accuracy over scored positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from tl_lifehist.few_documents import warn_of_few
from tl_lifehist.interventions import Intervention
from tl_lifehist.metrics import bootstrap_mean, cross_entropy, kl_divergence
from tl_lifehist.models import HookedModel, exactly_once, require_hooks, run_model
from tl_lifehist.self_check import require_repeatable
from tl_lifehist.tokens import TokenSet, require_scored

BATCH_SIZE = 16


def scored_logits(model: HookedModel, batch: TokenSet, intervention: Intervention | None) -> torch.Tensor:
    """Logits at the batch's scored positions, `[scored, d_vocab]`, with the intervention at its valid positions."""
    hooks = [] if intervention is None else intervention.fwd_hooks(valid=batch.valid)
    with exactly_once(model, hooks):
        logits = run_model(model, batch.ids, batch.attention_mask)
    return logits[batch.scored.to(logits.device)]


@torch.no_grad()
def scored_losses(
    model: HookedModel, tokens: TokenSet, intervention: Intervention | None = None, *, batch_size: int = BATCH_SIZE
) -> NDArray[np.float64]:
    """Cross-entropy in nats at each scored position, in order, with or without an intervention.

    Raises:
        InputError: a model in training mode or with noise, an unknown hook point, or no scored position.
    """
    require_scored(tokens)
    require_hooks(model, [name for name, _ in intervention.fwd_hooks()] if intervention else [])
    require_repeatable(model, tokens)
    parts = [
        cross_entropy(scored_logits(model, batch, intervention), batch.labels[batch.scored])
        for batch in tokens.batches(batch_size)
        if batch.n_scored
    ]
    return torch.cat(parts).double().cpu().numpy()


@dataclass(frozen=True)
class AblationEffect:
    """What an intervention costs, over the scored positions of one text.

    Attributes:
        delta_ce: mean cross-entropy with the intervention minus without, nats. Negative: the model got better.
        delta_ce_interval: its 95 % interval over documents; NaN for fewer than `metrics.MIN_GROUPS` (6).
        kl: mean KL(clean || with the intervention), nats.
        accuracy_drop: fall of top-1 accuracy, percentage points.
        base_ce: mean cross-entropy without the intervention, nats.
        n_scored: scored positions.
        by_document: one row per document: document, n, delta_ce, kl.

    How it can mislead: a cost means little without the cost of removing as many, as frequent and as heavy features
    (see `joint_ablation`), and joint costs do not add up from single ones.
    """

    delta_ce: float
    delta_ce_interval: tuple[float, float]
    kl: float
    accuracy_drop: float
    base_ce: float
    n_scored: int
    by_document: pd.DataFrame


@torch.no_grad()
def ablation_effect(
    model: HookedModel, intervention: Intervention, tokens: TokenSet, *, batch_size: int = BATCH_SIZE, seed: int = 0
) -> AblationEffect:
    """Run the text with and without the intervention and compare the predictions (D18 of the life-history methods).

    A `FeatureAblation` of form "substitute" is compared with the full reconstruction, anything else with the bare
    model. Ablating nothing gives exactly 0. A text of too few documents for an interval is said in a warning.

    Raises:
        InputError: a model in training mode or with noise, an unknown hook point, no scored position, or a hook point
            that does not fire exactly once.
    """
    require_scored(tokens)
    baseline = getattr(intervention, "baseline", None)
    require_hooks(model, [name for name, _ in intervention.fwd_hooks()])
    require_repeatable(model, tokens)
    columns: dict[str, list[np.ndarray]] = {key: [] for key in ("document", "base", "ce", "kl", "lost")}
    for batch in tokens.batches(batch_size):
        if not batch.n_scored:
            continue
        labels = batch.labels[batch.scored]
        clean, changed = scored_logits(model, batch, baseline), scored_logits(model, batch, intervention)
        lost = (clean.argmax(-1).cpu() == labels).float() - (changed.argmax(-1).cpu() == labels).float()
        assert batch.documents is not None
        columns["document"].append(batch.documents[batch.scored].numpy())
        columns["base"].append(cross_entropy(clean, labels).double().cpu().numpy())
        columns["ce"].append(cross_entropy(changed, labels).double().cpu().numpy())
        columns["kl"].append(kl_divergence(clean, changed).double().cpu().numpy())
        columns["lost"].append(lost.numpy())
    table = pd.DataFrame({key: np.concatenate(parts) for key, parts in columns.items()})
    table["delta_ce"] = table["ce"] - table["base"]
    warn_of_few(table["document"].to_numpy(), "delta_ce_interval")
    grouped = table.groupby("document")
    by_document = grouped[["delta_ce", "kl"]].mean().assign(n=grouped.size()).reset_index()
    return AblationEffect(
        delta_ce=float(table["delta_ce"].mean()),
        delta_ce_interval=bootstrap_mean(table["delta_ce"].to_numpy(), table["document"].to_numpy(), seed=seed),
        kl=float(table["kl"].mean()),
        accuracy_drop=100 * float(table["lost"].mean()),
        base_ce=float(table["base"].mean()),
        n_scored=len(table),
        by_document=by_document[["document", "n", "delta_ce", "kl"]],
    )
