"""How much two masks over one dictionary agree, beside what two masks of these sizes share by chance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tl_lifehist.errors import InputError
from tl_lifehist.nulls import Null
from tl_lifehist.sufficiency.nulls import as_gates


@dataclass(frozen=True, eq=False)
class OverlapNull(Null):
    """An overlap and what random masks of the same gates give.

    Attributes:
        observed: the overlap of the two masks.
        draws: overlaps with the gates of one mask permuted.
        mean: mean of the draws.
        low: lower end of their central 95 %.
        high: upper end.
        p: one-sided; how often a draw is as large as the observed overlap.
    """

    rounding: float = 1e-9  # two permutations of equal gates may differ in the last bit of their sums


def mask_overlap(a: Any, b: Any) -> float:
    """Soft Jaccard index of two masks, sum_i min(a_i, b_i) / sum_i max(a_i, b_i) (ours).

    1 for equal masks, 0 for masks without a common component, the Jaccard index for gates of 0 and 1; NaN where both
    are empty.

    Args:
        a: gates `[component]`, or a mask that has `.gates`.
        b: the same, over the same dictionary.

    How it can mislead: large masks overlap by chance, and a large mask overlaps little with a small one inside it; see
    `mask_overlap_null`. Component i has to be the same component on both sides, so masks over two dictionaries cannot
    be compared by it.

    Raises:
        InputError: masks over different numbers of components, gates outside [0, 1].
    """
    return _jaccard(*_both(a, b))


def mask_overlap_null(a: Any, b: Any, *, n_draws: int = 1000, seed: int = 0) -> OverlapNull:
    """The overlap of two masks beside that of random masks of the same gates, and so the same soft masses.

    The gates of `b` are permuted; permuting both would draw from the same distribution. NaN where both are empty.

    How it can mislead: any common preference, such as that for components of high variance, beats this null; that two
    masks agree is no evidence that they agree for a reason of their own.

    Raises:
        InputError: as `mask_overlap`; no draws.
    """
    if n_draws < 1:
        raise InputError(f"n_draws={n_draws} must be at least 1.")
    left, right = _both(a, b)
    rng = np.random.default_rng(seed)
    draws = np.array([_jaccard(left, rng.permutation(right)) for _ in range(n_draws)])
    return OverlapNull(_jaccard(left, right), draws)


def _both(a: Any, b: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    left, right = (as_gates(mask).cpu().double().numpy() for mask in (a, b))
    if len(left) != len(right):
        raise InputError(
            f"The masks are over {len(left)} and {len(right)} components: compare masks over one dictionary."
        )
    return left, right


def _jaccard(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    union = np.maximum(a, b).sum()
    return float(np.minimum(a, b).sum() / union) if union > 0 else float("nan")
