"""Every formula that ends in a number a user reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

# Documents (or other groups) below which no interval is given (ours). A bootstrap's interval lies within the range of
# its groups, and of n groups all lie on one side of the middle with probability 2 / 2**n: above 5 % for five of them.
MIN_GROUPS = 6


def cross_entropy(logits: Float[Tensor, "row d_vocab"], labels: Int[Tensor, " row"]) -> Float[Tensor, " row"]:
    """Negative log-probability of each label, in nats, at least in float32."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.nn.functional.cross_entropy(logits, labels.to(logits.device), reduction="none")


def kl_divergence(p: Float[Tensor, "row d_vocab"], q: Float[Tensor, "row d_vocab"]) -> Float[Tensor, " row"]:
    """KL(p || q) in nats of the distributions with logits `p` and `q`, row by row, at least in float32."""
    log_p = log_probabilities(p)
    return kl_of_logs(log_p.exp(), log_p, log_probabilities(q))


def kl_of_logs(
    p: Float[Tensor, "*#rows d_vocab"], log_p: Float[Tensor, "*#rows d_vocab"], log_q: Float[Tensor, "*#rows d_vocab"]
) -> Float[Tensor, "*rows"]:
    """KL(p || q) in nats from log-probabilities, for a `p` that many `q` are compared with."""
    return torch.linalg.vecdot(p, log_p - log_q).clamp_min(0)


def log_probabilities(logits: Float[Tensor, "row d_vocab"]) -> Float[Tensor, "row d_vocab"]:
    """Log-softmax, at least in float32."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def entropy(logits: Float[Tensor, "row d_vocab"]) -> Float[Tensor, " row"]:
    """Entropy in nats of the distribution with these logits, row by row, at least in float32."""
    log_p = log_probabilities(logits)
    return -torch.linalg.vecdot(log_p.exp(), log_p)


def nmse(
    x: Float[Tensor, "row d_model"], x_hat: Float[Tensor, "row d_model"], mean: Float[Tensor, " d_model"]
) -> float:
    """Squared error over squared distance from `mean`: 0 is perfect, 1 is what `mean` itself scores.

    How it can mislead: a few massive activations can hold most of the variance and decide the value.
    """
    return float((x - x_hat).square().sum() / (x - mean).square().sum())


def top_row_share(x: Float[Tensor, "row d_model"], share: float = 1e-3) -> float:
    """Share of the variance that the `share` of the rows farthest from the mean hold (at least one row)."""
    distance = (x - x.mean(dim=0)).double().square().sum(dim=1)
    return float(distance.topk(max(1, round(share * len(x)))).values.sum() / distance.sum())


def interval(draws: Array, level: float = 0.95) -> tuple[float, float]:
    """The central `level` of `draws`, by percentiles; NaN where there are fewer than two.

    How it can mislead: of few draws the ends are the smallest and the largest, and no 95 % lie between them.
    """
    kept = np.asarray(draws, dtype=float)
    kept = kept[np.isfinite(kept)]
    if len(kept) < 2:
        return float("nan"), float("nan")
    low, high = np.quantile(kept, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def exceedance_p(observed: float, null: Array) -> float:
    """One-sided p: (1 + number of null draws at least as large) / (number of draws + 1)."""
    null = np.asarray(null, dtype=float)
    return float((1 + (null >= observed).sum()) / (len(null) + 1))


def bootstrap_mean(
    values: Array, groups: NDArray[np.integer], *, n_draws: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % interval of the mean of `values`, resampling whole `groups` (documents), not single values; NaN for fewer
    than `MIN_GROUPS` of them.

    How it can mislead: with a handful of groups the interval is too narrow whatever the number of values.
    """
    known, index = np.unique(groups, return_inverse=True)
    if len(known) < MIN_GROUPS:
        return float("nan"), float("nan")
    sums = np.bincount(index, weights=values)
    counts = np.bincount(index)
    draws = np.random.default_rng(seed).integers(0, len(sums), size=(n_draws, len(sums)))
    return interval(sums[draws].sum(axis=1) / counts[draws].sum(axis=1))


def standardised_difference(a: Array, b: Array, *, gap: float | None = None) -> float:
    """(mean a - mean b) over the pooled standard deviation; 0 when both are constant and equal.

    Args:
        gap: stands in for the difference of the means, where these are weighted.
    """
    pooled = np.sqrt((np.var(a) + np.var(b)) / 2)
    gap = float(np.mean(a) - np.mean(b)) if gap is None else float(gap)
    if pooled == 0:
        return 0.0 if gap == 0 else float(np.sign(gap) * np.inf)
    return gap / float(pooled)


def fvu(rows: Float[Tensor, "row d_model"], reconstructed: Float[Tensor, "row d_model"]) -> float:
    """Fraction of variance unexplained: the squared error over the squared distance from the mean row (D1)."""
    error = (rows - reconstructed).double().square().sum()
    return float(error / (rows - rows.mean(dim=0)).double().square().sum())
