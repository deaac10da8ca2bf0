from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist import metrics


def test_kl_of_two_coins():
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
    assert float(metrics.kl_divergence(p.double(), q.double())) == pytest.approx(0.143841036, abs=1e-8)
    assert float(metrics.kl_divergence(p, p)) == 0
    assert float(metrics.entropy(p)) == pytest.approx(math.log(2), abs=1e-6)


@given(st.integers(0, 1000), st.floats(-5, 5))
def test_kl_ignores_a_shift_of_the_logits_and_is_never_negative(seed: int, shift: float):
    logits = torch.randn(2, 4, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    value = metrics.kl_divergence(logits[0], logits[1] + shift)
    assert (value >= 0).all()
    torch.testing.assert_close(value, metrics.kl_divergence(logits[0], logits[1]))


def test_cross_entropy_raises_half_precision():
    logits = torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16)
    value = metrics.cross_entropy(logits, torch.tensor([0]))
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(math.log(1 + math.e), rel=1e-6)


def test_nmse_of_the_mean_is_one_and_of_the_rows_zero():
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    mean = x.mean(dim=0)
    assert metrics.nmse(x, mean.expand_as(x), mean) == pytest.approx(1)
    assert metrics.nmse(x, x, mean) == 0


def test_exceedance_counts_ties_and_never_reaches_zero():
    assert metrics.exceedance_p(3.0, np.array([1.0, 2.0, 3.0])) == 0.5
    assert metrics.exceedance_p(9.0, np.arange(99.0) / 100) == 0.01


def test_the_bootstrap_resamples_documents_not_tokens():
    values = np.repeat([0.0, 1.0] * 3, 500)  # six documents that disagree: 3,000 tokens say little
    low, high = metrics.bootstrap_mean(values, np.repeat(np.arange(6), 500))
    assert low < 0.2
    assert high > 0.8
    low, high = metrics.bootstrap_mean(np.tile([0.0, 1.0], 500), np.arange(1000))
    assert 0.45 < low < 0.5 < high < 0.55


@pytest.mark.parametrize("n", range(1, 9))
def test_too_few_documents_have_no_interval(n: int):
    found = metrics.bootstrap_mean(np.random.default_rng(0).normal(size=100 * n), np.repeat(np.arange(n), 100))
    assert np.isnan(found).all() == (n < metrics.MIN_GROUPS)


def test_six_is_the_least_number_of_documents_that_seldom_all_lie_on_one_side_of_the_middle():
    assert 2 / 2**metrics.MIN_GROUPS < 0.05 < 2 / 2 ** (metrics.MIN_GROUPS - 1)


@pytest.mark.parametrize("draws", [[], [np.nan], [1.0], [1.0, np.nan]])
def test_interval_of_nothing_or_of_one_draw_is_nan(draws: list[float]):
    assert all(math.isnan(v) for v in metrics.interval(np.array(draws)))


def test_standardised_difference():
    assert metrics.standardised_difference(np.array([1.0, 3.0]), np.array([0.0, 2.0])) == pytest.approx(1.0)
    assert metrics.standardised_difference(np.ones(3), np.ones(2)) == 0
    assert metrics.standardised_difference(np.ones(3), np.zeros(2)) == math.inf
