"""Do the first measurements of features tell more about later carriers than their firing rate does? (D21, C9)"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from tl_lifehist.inference.curves import spline_design
from tl_lifehist.inference.exchange import CALIPER, blocks_of, shuffled_within
from tl_lifehist.lifehistory.recruitment import RATE_BLOCK
from tl_lifehist.nulls import Null

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Gain:
    """What the measurements add to a smooth curve of the firing rate and the layer.

    Attributes:
        gain: AUC of rate, layer and measurements less that of rate and layer alone, in the same folds.
        low: lower end of its 95 % interval over lineages, the scores held fixed.
        high: upper end.
        p: how often measurements that are exchanged among features of equal rate explain as much.
        n: features alive at the onset.
        n_positive: those whose lineage becomes a carrier.
    """

    gain: float
    low: float
    high: float
    p: float
    n: int
    n_positive: int


def score_null(
    measures: Floats,
    log_rate: Floats,
    layers: NDArray[np.generic],
    labels: Bools,
    *,
    block: int = RATE_BLOCK,
    caliper: float = CALIPER,
    n_draws: int = 199,
    inverse_penalty: float = 1.0,
    seed: int = 0,
) -> Null:
    """Score statistic of the measurements in a logistic model of the labels on a smooth curve of the rate and on the
    layer, beside the same with the measurements exchanged, whole rows, among features of a layer and equal rate.

    The statistic is U' V^-1 U: U sums the measurements times what the model leaves of the labels, V is their variance
    once what rate and layer explain of the measurements is taken out. It needs no further fit, so a null is cheap.

    Args:
        measures: `[feature, measure]`.
        log_rate: decades, `[feature]`.
        layers: `[feature]`.
        labels: becomes a carrier, `[feature]`.
        block: features of like rate among which rows are exchanged (ours).
        caliper: how far they may lie apart, in decades (ours).
        n_draws: draws of the null.
        inverse_penalty: scikit-learn's C of the model of rate and layer.
        seed: of the draws.
    """
    if not labels.any() or labels.all():
        return Null(float("nan"), np.zeros(0))
    design = spline_design(log_rate, layers)
    fitted = LogisticRegression(C=100 * inverse_penalty, fit_intercept=False, max_iter=2000).fit(design, labels)
    expected = fitted.predict_proba(design)[:, 1]
    left, weight = labels - expected, expected * (1 - expected)
    # the projection on rate and layer under these weights: what of a measure they already say
    root = np.sqrt(weight)[:, None]
    basis = np.linalg.svd(design * root, full_matrices=False)
    basis_u = basis[0][:, basis[1] > 1e-8 * basis[1].max()]

    def statistic(x: Floats) -> float:
        scaled = x * root
        own = (scaled - basis_u @ (basis_u.T @ scaled)) / root
        u, v = own.T @ left, (own * weight[:, None]).T @ own
        return float(u @ np.linalg.pinv(v, hermitian=True) @ u)

    spread = measures.std(axis=0)
    x = (measures - measures.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    blocks = [b for b in blocks_of(layers, log_rate, block=block, caliper=caliper) if len(b) > 1]
    rng = np.random.default_rng(seed)
    draws = np.array([statistic(x[shuffled_within(blocks, len(x), rng)]) for _ in range(n_draws if blocks else 0)])
    return Null(statistic(x), draws, rounding=1e-9)


def curve_columns(table: Any, column: str) -> Floats:
    """The design of a smooth curve of one column of the measurements and of the layer."""
    return spline_design(table[column].to_numpy(dtype=float), table["hook_name"].to_numpy(dtype=str))
