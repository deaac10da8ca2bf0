"""What removing features costs a planted model, in closed form over the vocabulary."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.lifehistory.planted.recipe import LABEL_NOISE, N_IDS

Floats = NDArray[np.float64]

MEAN_LOGIT = 4.0  # of the successor at the end, over all ids, where no id has too much
# A logit of 9.1 is the best there is: up to it every feature helps, and cross-entropy is not far from a straight line
HIGH_LOGIT = 8.0  # at most, of 99 % of the ids
ROUNDS = 12


def cross_entropy_of(logit: Floats, follows: NDArray[np.bool_] | float) -> Floats:
    """Nats where the successor has `logit` and every other id 0; `follows` says whether, or how often, it is the next
    id.
    """
    return np.log(np.exp(logit) + N_IDS - 1) - follows * logit


def single_costs(reading: Floats, codes: Floats) -> Floats:
    """Expected cost of removing each feature alone, nats, `[layer, feature]`; every id is equally frequent.

    Args:
        reading: what one unit of a code adds to the successor's logit, `[layer, feature]`.
        codes: `[layer, feature, id]`.
    """
    logit = np.einsum("lf,lfv->v", reading, codes)
    layer, feature, at = np.nonzero(codes)  # anywhere else nothing changes
    before = logit[at]
    after = before - reading[layer, feature] * codes[layer, feature, at]
    rise = cross_entropy_of(after, 1 - LABEL_NOISE) - cross_entropy_of(before, 1 - LABEL_NOISE)
    which = layer * reading.shape[1] + feature
    return np.bincount(which, rise, minlength=reading.size).reshape(reading.shape) / codes.shape[2]


def readings(target: Floats, mass: Floats, codes: Floats, alive: NDArray[np.bool_]) -> Floats:
    """The readings with which single costs at the end are proportional to `target`, `[layer, feature]`.

    Cross-entropy is no linear function of the logit, so each is mended by what it costs, round by round. Features that
    are gone by the end are read at the typical rate.
    """
    reading = target / mass
    for _ in range(ROUNDS):
        reading = _scaled(reading, codes)
        cost = single_costs(reading, codes)
        ratio = (target / np.where(cost > 0, cost, np.inf))[alive]
        reading[alive] *= np.clip(ratio / np.median(ratio), 0.5, 2.0)
    reading = np.where(alive, reading, target / mass * np.median((reading * mass / target)[alive]))
    return _scaled(reading, codes)


def _scaled(reading: Floats, codes: Floats) -> Floats:
    logit = np.einsum("lf,lfv->v", reading, codes)
    return reading * min(MEAN_LOGIT / logit.mean(), HIGH_LOGIT / np.quantile(logit, 0.99))
