from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from planted import latent

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory import matching
from tl_lifehist.lifehistory.matching import assign, match_features, rematch_rate, similarities
from tl_lifehist.lifehistory.profiles import FeatureProfiles


def profiles(codes: np.ndarray) -> FeatureProfiles:
    return FeatureProfiles(0, "h", sp.csr_array(codes))


@pytest.mark.parametrize("small", [0, 1 << 20])  # with and without leaving small codes out at first
@given(st.integers(0, 10_000), st.sampled_from([0.02, 0.3, 0.95]))
def test_sparse_pearson_is_that_of_the_dense_profiles(small: int, seed: int, rate: float):
    a = latent(200, 6, rate=rate, seed=seed).astype(np.float32)
    b = np.where(np.random.default_rng(seed).random((200, 6)) < 0.7, a, latent(200, 6, rate=rate, seed=seed + 1))
    b = b.astype(np.float32)
    a[:, 0], b[:, 0] = 0.7, 0.3  # constant columns: no correlation, never NaN
    everything = np.arange(6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(matching, "_SMALL", small)
        found = similarities(profiles(a), profiles(b), everything, everything, min_similarity=1e-9).toarray()
        half = similarities(profiles(a), profiles(b), everything, everything, min_similarity=0.5).toarray()
    np.testing.assert_allclose(half, np.where(found >= 0.5, found, 0), atol=1e-12)
    with np.errstate(invalid="ignore", divide="ignore"):
        dense = np.corrcoef(a.T.astype(float), b.T.astype(float))[:6, 6:]
    expected = np.nan_to_num(np.where(dense > 1e-9, dense, 0.0))
    expected[0, :] = expected[:, 0] = 0.0
    np.testing.assert_allclose(found, expected, atol=1e-5)


def best_total(scores: np.ndarray) -> float:
    if scores.shape[0] > scores.shape[1]:
        scores = scores.T
    rows = range(scores.shape[0])
    return max(scores[rows, list(p)].sum() for p in itertools.permutations(range(scores.shape[1]), scores.shape[0]))


instances = st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 100_000), st.floats(0, 0.9))


@given(instances, st.booleans())
def test_gated_assignment_equals_brute_force(instance: tuple[int, int, int, float], sparse_solver: bool):
    n_a, n_b, seed, threshold = instance
    scores = np.random.default_rng(seed).random((n_a, n_b))
    scores[scores < threshold] = 0
    with pytest.MonkeyPatch.context() as patch:
        if sparse_solver:
            patch.setattr(matching, "_DENSE", 0)
        rows, columns, values = assign(sp.csr_array(scores))
    assert len(set(rows.tolist())) == len(rows)
    assert len(set(columns.tolist())) == len(columns)
    assert (values > 0).all()
    np.testing.assert_allclose(values, scores[rows, columns])
    assert values.sum() == pytest.approx(best_total(scores), abs=1e-9)


@given(st.integers(0, 100_000))
def test_gated_total_is_at_least_that_of_dense_then_drop(seed: int):
    rng = np.random.default_rng(seed)
    a = latent(300, 8, rate=0.3, seed=seed)
    b = a @ rng.dirichlet(np.full(8, 0.3), size=8).T
    keep = {"min_rate": 0.0, "min_count": 1}
    gated = match_features(profiles(a), profiles(b), **keep)
    dense = match_features(profiles(a), profiles(b), method="dense", **keep)
    assert gated.similarity.sum() >= dense.similarity.sum() - 1e-9
    for match in (gated, dense):
        assert (match.similarity >= 0.5).all()
        together = sorted([*match.pairs[:, 0].tolist(), *match.unmatched_a.tolist()])
        assert together == np.flatnonzero(profiles(a).alive(**keep)).tolist()


def test_dense_order_can_give_a_real_match_away():
    # a0 ~ b0 at 0.63, a0 ~ b1 and a1 ~ b0 at 0.45: the dense order takes the two that it then drops
    x, y, z, w = latent(20_000, 4, rate=0.3, seed=2).T
    a = np.stack([0.7 * x + 0.45 * y + 0.55 * z, w], axis=1)
    b = np.stack([x + 0.5 * w, y], axis=1)
    gated, dense = (match_features(profiles(a), profiles(b), method=m) for m in ("gated", "dense"))
    assert gated.pairs.tolist() == [[0, 0]]
    assert gated.similarity.tolist() == pytest.approx([0.63], abs=0.03)
    assert dense.pairs.tolist() == []


def test_a_permutation_is_found_exactly():
    codes = latent(4000, 40)
    order = np.random.default_rng(1).permutation(40)
    match = match_features(profiles(codes), profiles(codes[:, order]))
    assert np.array_equal(order[match.pairs[:, 1]], match.pairs[:, 0])
    np.testing.assert_allclose(match.similarity, 1, atol=1e-9)
    assert match.rate == 1


def test_shuffled_rows_match_nothing():
    codes = profiles(latent(4000, 40))
    assert rematch_rate(codes, codes.permuted(seed=5)) == 0


def test_dead_features_are_neither_matched_nor_counted():
    codes = latent(4000, 3)
    codes[50:, 2] = 0
    codes[:, 2] = codes[:, 2] > 0.5  # under 50 firings
    match = match_features(profiles(codes), profiles(codes))
    assert match.pairs.tolist() == [[0, 0], [1, 1]]
    assert match.unmatched_a.tolist() == []


def test_no_alive_feature_gives_an_empty_match_and_no_rate():
    match = match_features(profiles(np.zeros((100, 3))), profiles(np.zeros((100, 3))))
    assert match.pairs.shape == (0, 2)
    assert np.isnan(match.rate)


def test_bad_input_is_named():
    a, b = profiles(np.ones((3, 1))), profiles(np.ones((4, 1)))
    with pytest.raises(InputError, match="3 and 4 rows"):
        match_features(a, b)
    with pytest.raises(InputError, match="min_similarity=0.0"):
        match_features(a, a, min_similarity=0.0)
    with pytest.raises(InputError, match="gated"):
        match_features(a, a, method="greedy")
