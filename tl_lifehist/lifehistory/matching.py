"""Matching the features of two SAEs by what they do: Pearson of profiles and a one-to-one assignment (D5, D6)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components, min_weight_full_bipartite_matching

from tl_lifehist.errors import InputError, one_of
from tl_lifehist.lifehistory.profiles import MIN_COUNT, MIN_RATE, FeatureProfiles, column_of

MIN_SIMILARITY = 0.5
_BLOCK = 512  # features of one side multiplied at a time: bounds the memory of the overlap matrix
_PAIRS = 2048  # candidate pairs computed in full at a time
_SMALL = 1 << 20  # pairs of features up to which no code is left out
_TAIL = 0.7  # share of the threshold that a feature's small codes may account for
_SLACK = 1 - 1e-3  # the first product is in float32: what its rounding could hide is computed in full
_DENSE = 1 << 20  # entries above which a component is assigned sparsely

Ints = NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class FeatureMatch:
    """A one-to-one match of the alive features of two SAEs.

    Attributes:
        pairs: `[m, 2]`, feature of a and feature of b, in the order of a.
        similarity: `[m]`, Pearson of the two profiles.
        unmatched_a: alive features of a without a partner.
        unmatched_b: alive features of b without a partner.

    How it can mislead: two trainings of one SAE on one model match only in part. An unmatched feature is news only
    beyond that noise (see `rematch_rate`, `compare_saes`).
    """

    pairs: Ints
    similarity: NDArray[np.float64]
    unmatched_a: Ints
    unmatched_b: Ints

    @property
    def rate(self) -> float:
        """Accepted pairs over the alive features of a; NaN when none is alive."""
        alive = len(self.pairs) + len(self.unmatched_a)
        return len(self.pairs) / alive if alive else float("nan")


def match_features(
    a: FeatureProfiles,
    b: FeatureProfiles,
    *,
    min_similarity: float = MIN_SIMILARITY,
    method: str = "gated",
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> FeatureMatch:
    """Match alive features of `a` to alive features of `b` over the same rows.

    Args:
        min_similarity: pairs below it are never accepted [P: 0.5].
        method: "gated" (ours) drops pairs below the threshold first and then maximises the total similarity over what
            is left, exactly, one connected component at a time. "dense" assigns on all pairs and then drops, the
            literal order; it can give away a real match to raise the total with matches that are then dropped.
        min_rate: see `FeatureProfiles.alive`.
        min_count: see `FeatureProfiles.alive`.

    Raises:
        InputError: profiles over different rows, or a threshold that is not positive.
    """
    if a.n_rows != b.n_rows:
        raise InputError(f"The profiles cover {a.n_rows} and {b.n_rows} rows: compute both on the same tokens.")
    if not 0 < min_similarity <= 1:
        raise InputError(f"min_similarity={min_similarity} must lie above 0 and up to 1.")
    one_of("method", method, ("gated", "dense"))
    alive_a, alive_b = (np.flatnonzero(p.alive(min_rate=min_rate, min_count=min_count)) for p in (a, b))
    if method == "gated":
        scores = similarities(a, b, alive_a, alive_b, min_similarity=min_similarity)
        rows, columns, values = assign(scores)
    else:
        rows, columns, values = _dense_then_drop(a, b, alive_a, alive_b, min_similarity)
    return FeatureMatch(
        pairs=np.stack([alive_a[rows], alive_b[columns]], axis=1).astype(np.int64),
        similarity=values,
        unmatched_a=np.delete(alive_a, rows).astype(np.int64),
        unmatched_b=np.delete(alive_b, columns).astype(np.int64),
    )


def similarities(
    a: FeatureProfiles, b: FeatureProfiles, features_a: Ints, features_b: Ints, *, min_similarity: float
) -> sp.csr_array:
    """Pearson of the chosen features, keeping entries of at least `min_similarity` (> 0): sparse `[a, b]`, exact.

    Pairs that never fire together correlate at most 0, so a sparse product of the codes holds every entry that can
    pass. Two steps keep it small. First the product is taken with each feature's large codes only: the small ones,
    together less than `min_similarity` of its standard deviation, can add at most what the Cauchy-Schwarz inequality
    allows, so a pair that stays under the rest of the threshold cannot pass. Then the few pairs that are left are
    computed in full. Blocks bound the memory and share the threads that torch may use.
    """
    n = a.n_rows
    mean_a, scale_a = _moments(a, features_a)
    mean_b, scale_b = _moments(b, features_b)
    # in a small problem the whole product costs less than the pairs that leaving codes out lets through
    tail = _TAIL if len(features_a) * len(features_b) > _SMALL else 0.0
    head, dropped = _large_codes(a.acts[:, features_a], tail * min_similarity * scale_a)
    head_sum = np.bincount(column_of(head), weights=head.data, minlength=len(features_a))
    least = min_similarity * scale_a - dropped
    right = sp.csr_array(b.acts[:, features_b])

    def candidates(start: int) -> tuple[Ints, Ints]:
        product = sp.csr_array(head[:, start : start + _BLOCK].T @ right)
        row = start + np.repeat(np.arange(product.shape[0]), np.diff(product.indptr))
        # Invariant: covariance = head @ b - head_sum mean_b + (what was left out) @ (b - mean_b), the last at most
        # dropped * scale_b; so a pair whose product stays below `needed` has a correlation below min_similarity.
        needed = least[row] * scale_b[product.indices] + head_sum[row] * mean_b[product.indices]
        kept = (product.data >= needed * _SLACK) & (needed > 0)
        return row[kept], product.indices[kept].astype(np.int64)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        found = list(pool.map(candidates, range(0, len(features_a), _BLOCK)))
    row = np.concatenate([part[0] for part in found]) if found else np.zeros(0, dtype=np.int64)
    column = np.concatenate([part[1] for part in found]) if found else np.zeros(0, dtype=np.int64)
    scale = scale_a[row] * scale_b[column]
    value = _dot_products(a, b, features_a[row], features_b[column]) - n * mean_a[row] * mean_b[column]
    pearson = np.divide(value, scale, out=np.zeros(len(row)), where=scale > 0)
    passed = pearson >= min_similarity
    entries = (np.minimum(pearson[passed], 1.0), (row[passed], column[passed]))
    return sp.csr_array(entries, shape=(len(features_a), len(features_b)))


def _large_codes(codes: sp.csc_array, budget: NDArray[np.float64]) -> tuple[sp.csc_array, NDArray[np.float64]]:
    """Leave out each column's smallest codes as long as their norm stays within `budget`; also the norm left out."""
    keep = np.ones(codes.nnz, dtype=bool)
    dropped = np.zeros(codes.shape[1])
    for i, (start, end) in enumerate(pairwise(codes.indptr.tolist())):
        ordered = np.sort(codes.data[start:end])
        energy = np.cumsum(ordered.astype(np.float64) ** 2)
        count = int(np.searchsorted(energy, budget[i] ** 2, side="right"))
        if count:
            keep[start:end] = codes.data[start:end] > ordered[count - 1]  # ties are all left out: within what follows
            left_out = codes.data[start:end][~keep[start:end]].astype(np.float64)
            dropped[i] = np.sqrt((left_out**2).sum())
            if dropped[i] > budget[i]:  # the ties went over it
                keep[start:end], dropped[i] = True, 0.0
    kept = np.concatenate([[0], np.cumsum(keep)])[codes.indptr]
    return sp.csc_array((codes.data[keep], codes.indices[keep], kept), shape=codes.shape), dropped


def _dot_products(a: FeatureProfiles, b: FeatureProfiles, features_a: Ints, features_b: Ints) -> NDArray[np.float64]:
    """Sum over rows of code times code for each listed pair, in float64."""
    parts = [np.zeros(0)]
    for start in range(0, len(features_a), _PAIRS):
        chosen = slice(start, start + _PAIRS)
        left, right = a.acts[:, features_a[chosen]].astype(np.float64), b.acts[:, features_b[chosen]]
        parts.append(np.asarray(left.multiply(right).sum(axis=0)).ravel())
    return np.concatenate(parts)


def _moments(profile: FeatureProfiles, features: Ints) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and centred norm of each chosen profile; a constant profile has norm 0 and never matches."""
    codes = profile.acts[:, features]
    square = np.asarray(codes.astype(np.float64).power(2).sum(axis=0)).ravel()
    mean = profile.code_sum[features] / profile.n_rows
    centred = square - profile.n_rows * mean**2
    # What rounding leaves of a constant profile's variance is far below this share of its square
    return mean, np.sqrt(np.where(centred > 1e-10 * np.maximum(square, 1e-300), centred, 0.0))


def assign(scores: sp.csr_array) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """The matching of greatest total score over the stored entries, exactly: rows, columns, scores.

    Each connected component is solved alone: most are a single pair, and none is as large as the whole.
    """
    scores = sp.csr_array(scores)
    n_a, n_b = scores.shape
    rows: list[Ints] = []
    columns: list[Ints] = []
    entry_row = np.repeat(np.arange(n_a), np.diff(scores.indptr))
    size = n_a + n_b
    graph = sp.coo_array((scores.data, (entry_row, n_a + scores.indices)), shape=(size, size))
    _, label = connected_components(graph, directed=False)
    order = np.argsort(label[entry_row], kind="stable")
    cuts = np.flatnonzero(np.diff(label[entry_row][order])) + 1
    for entries in np.split(order, cuts) if len(order) else []:
        local_a, i = np.unique(entry_row[entries], return_inverse=True)
        local_b, j = np.unique(scores.indices[entries], return_inverse=True)
        if len(local_a) == 1 or len(local_b) == 1:
            best = int(np.argmax(scores.data[entries]))
            picked = np.array([i[best]]), np.array([j[best]])
        elif len(local_a) * len(local_b) <= _DENSE:
            weight = np.zeros((len(local_a), len(local_b)))
            weight[i, j] = scores.data[entries]
            left, right = linear_sum_assignment(weight, maximize=True)
            real = weight[left, right] > 0
            picked = left[real], right[real]
        else:
            picked = _assign_sparse(i, j, scores.data[entries], len(local_a), len(local_b))
        rows.append(local_a[picked[0]])
        columns.append(local_b[picked[1]])
    if not rows:
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, np.zeros(0)
    row, column = np.concatenate(rows), np.concatenate(columns)
    by_row = np.argsort(row, kind="stable")
    row, column = row[by_row], column[by_row]
    return row, column, np.asarray(scores[row, column]).ravel()


def _assign_sparse(i: Ints, j: Ints, data: NDArray[np.float64], n_a: int, n_b: int) -> tuple[Ints, Ints]:
    """The same for a large component: every row may also take a column of its own that is worth nothing.

    All weights are raised by one, so that the full matching which the solver insists on costs the total nothing.
    """
    own = np.arange(n_a)
    weight = sp.csr_array(
        (np.concatenate([data + 1, np.ones(n_a)]), (np.concatenate([i, own]), np.concatenate([j, n_b + own]))),
        shape=(n_a, n_b + n_a),
    )
    left, right = min_weight_full_bipartite_matching(weight, maximize=True)
    real = right < n_b
    return left[real], right[real]


def _dense_then_drop(
    a: FeatureProfiles, b: FeatureProfiles, features_a: Ints, features_b: Ints, min_similarity: float
) -> tuple[Ints, Ints, NDArray[np.float64]]:
    n = a.n_rows
    mean_a, scale_a = _moments(a, features_a)
    mean_b, scale_b = _moments(b, features_b)
    product = (a.acts[:, features_a].T.astype(np.float64) @ sp.csc_array(b.acts[:, features_b])).toarray()
    scale = np.outer(scale_a, scale_b)
    # A constant profile has no correlation: -1 keeps it assignable, so the solver never sees a NaN, and never accepted
    pearson = np.divide(product - n * np.outer(mean_a, mean_b), scale, out=np.full(scale.shape, -1.0), where=scale > 0)
    rows, columns = linear_sum_assignment(pearson, maximize=True)
    value = pearson[rows, columns]
    accepted = value >= min_similarity
    return rows[accepted], columns[accepted], np.minimum(value[accepted], 1.0)


def rematch_rate(
    a: FeatureProfiles,
    b: FeatureProfiles,
    *,
    min_similarity: float = MIN_SIMILARITY,
    method: str = "gated",
    min_rate: float = MIN_RATE,
    min_count: int = MIN_COUNT,
) -> float:
    """Accepted matches over the alive features of `a`: what SAE noise leaves when both read one model (C1).

    The arguments are those of `match_features`.
    """
    return match_features(
        a, b, min_similarity=min_similarity, method=method, min_rate=min_rate, min_count=min_count
    ).rate
