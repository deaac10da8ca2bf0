"""What measurements tell beyond the firing rate, survival at equal rate, and directions of a turned basis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.inference.curves import beside_curve, spline_design
from tl_lifehist.lifehistory.beyond_rate import score_null
from tl_lifehist.lifehistory.direction import aligned_cosines
from tl_lifehist.lifehistory.survival import Cohort, survival_at_equal_rate


def cohort(seed: int, *, own: float = 0.0, by_rate: float = 3.0, n: int = 240):
    """Labels follow the rate along a bend, and `own` times a measurement of their own; entropy follows both."""
    rng = np.random.default_rng(seed)
    log_rate = rng.uniform(-3, -0.5, n)
    extra = rng.normal(size=n)
    entropy = 0.5 + 0.15 * log_rate + 0.03 * log_rate**2 + 0.02 * extra
    odds = by_rate * np.sin(2 * log_rate) + own * extra
    labels = rng.random(n) < 1 / (1 + np.exp(-odds))
    return np.repeat(["a", "b"], n // 2), log_rate, entropy, labels


def forecast_p(seed: int, own: float = 0.0) -> float:
    layers, log_rate, entropy, labels = cohort(seed, own=own)
    measures = np.stack(
        [entropy, entropy**2 + 0.01 * np.random.default_rng(seed + 1).normal(size=len(entropy))], axis=1
    )
    return score_null(measures, log_rate, layers, labels, n_draws=79, seed=seed).p


def test_a_bend_of_the_rate_is_no_forecast_of_ones_own():
    null = np.array([forecast_p(seed) for seed in range(200)])
    assert (null <= 0.05).mean() <= 0.09
    assert np.mean([forecast_p(seed, own=1.0) <= 0.05 for seed in range(40)]) > 0.8


def test_the_score_statistic_is_the_one_of_rao():
    """Against the same statistic written out with the information matrix of the whole model."""
    layers, log_rate, entropy, labels = cohort(5, own=1.0)
    x = (entropy - entropy.mean())[:, None] / entropy.std()
    found = score_null(x, log_rate, layers, labels, n_draws=3, seed=0)
    from sklearn.linear_model import LogisticRegression

    z = spline_design(log_rate, layers)
    p = LogisticRegression(C=100, fit_intercept=False, max_iter=2000).fit(z, labels).predict_proba(z)[:, 1]
    w = p * (1 - p)
    zx, zz, xx = z.T @ (w[:, None] * x), z.T @ (w[:, None] * z), x.T @ (w[:, None] * x)
    projected = x - z @ np.linalg.pinv(zz) @ zx
    u, v = projected.T @ (labels - p), xx - zx.T @ np.linalg.pinv(zz) @ zx
    assert found.observed == pytest.approx(float(u[0] ** 2 / v[0, 0]), rel=1e-4)


@pytest.mark.parametrize("labels", [np.zeros(10, dtype=bool), np.ones(10, dtype=bool)])
def test_one_class_is_no_forecast(labels: np.ndarray):
    null = score_null(np.ones((10, 1)), np.zeros(10), np.repeat("a", 10), labels)
    assert np.isnan(null.p)


def survival_p(seed: int, own: float = 0.0) -> float:
    layers, log_rate, entropy, labels = cohort(seed, own=own)
    return survival_at_equal_rate(Cohort(layers, entropy, 10**log_rate, labels), n_draws=99, seed=seed).p


def test_broad_features_outlive_others_only_at_equal_rate():
    null = np.array([survival_p(seed) for seed in range(200)])
    assert (null <= 0.05).mean() <= 0.09
    assert np.mean([survival_p(seed, own=2.0) <= 0.05 for seed in range(40)]) > 0.8


def test_survival_at_equal_rate_is_the_difference_of_two_shares():
    # four features of one rate: the two of higher entropy survive, the others do not
    one = Cohort(
        np.repeat("a", 4), np.array([0.1, 0.2, 0.3, 0.4]), np.full(4, 0.01), np.array([False, False, True, True])
    )
    null = survival_at_equal_rate(one, n_draws=600)
    assert null.observed == 1
    assert set(np.unique(null.draws)) <= {-1.0, 0.0, 1.0}
    assert (null.draws == 1).mean() == pytest.approx(1 / 6, abs=0.05)
    assert np.isnan(
        survival_at_equal_rate(Cohort(*(x[:0] for x in (one.hook_names, one.entropy, one.rate, one.reached)))).p
    )


@given(st.integers(0, 1000), st.integers(0, 12))
def test_a_curve_is_taken_out_whatever_the_sizes(seed: int, n: int):
    rng = np.random.default_rng(seed)
    values, layers = rng.normal(size=n), rng.choice(["a", "b"], size=n)
    line = 3 * values + (layers == "a")
    np.testing.assert_allclose(beside_curve(line, values, layers), 0, atol=1e-6)


def test_a_turn_of_the_whole_basis_is_no_change_of_direction():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(200, 16))
    a /= np.linalg.norm(a, axis=1, keepdims=True)
    turn = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    b = a @ turn
    assert abs((a * b).sum(axis=1).mean()) < 0.3
    assert aligned_cosines(a, b).mean() > 0.98
    # what no rotation brings together stays apart, also where rows are few and a rotation could fit them
    other = np.random.default_rng(1).normal(size=(200, 16))
    other /= np.linalg.norm(other, axis=1, keepdims=True)
    assert abs(aligned_cosines(a, other).mean()) < 0.15
    assert abs(aligned_cosines(a[:6], other[:6]).mean()) < 0.5


@pytest.mark.parametrize("n", [0, 1, 2])
def test_alignment_of_next_to_nothing(n: int):
    rows = np.eye(4)[:n]
    np.testing.assert_allclose(aligned_cosines(rows, rows), np.ones(n))
