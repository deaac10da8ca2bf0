"""Documents, hook points and increments as units."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ttest_1samp

from tl_lifehist.inference.documents import over_documents, over_units
from tl_lifehist.inference.increments import path_null


def test_documents_of_unequal_length_weigh_by_their_positions():
    found = over_documents(np.array([10.0] * 8 + [0.0] * 8), np.array([10.0] * 8 + [30.0] * 8))
    assert found.mean == pytest.approx(0.25)
    assert found.low < 0.25 < found.high
    assert found.n == 16


def test_too_few_documents_or_no_scatter_are_not_tested():
    assert np.isnan(over_documents(np.ones(7), np.ones(7)).p)
    assert np.isnan(over_documents(np.ones(20), np.ones(20)).p)
    assert np.isnan(over_documents(np.zeros(0), np.zeros(0)).mean)
    few = over_documents(np.array([1.0, np.nan, 3.0]), np.ones(3))
    assert (few.mean, few.n) == (2.0, 2)


@given(st.integers(0, 1000))
def test_a_shift_moves_mean_and_interval_and_lowers_p(seed: int):
    x = np.random.default_rng(seed).normal(size=12)
    here, there = over_documents(x, np.ones(12)), over_documents(x + 1, np.ones(12))
    assert there.mean == pytest.approx(here.mean + 1)
    assert (there.low, there.high) == pytest.approx((here.low + 1, here.high + 1))
    assert there.p <= here.p
    assert here.detectable == pytest.approx(there.detectable)


def test_documents_hold_their_level_where_cells_of_one_text_do_not():
    """Every cell sees the same documents: cells as units take what these share for an effect."""
    rng = np.random.default_rng(0)
    documents, cells = [], []
    for _ in range(300):
        shared = rng.normal(size=16)
        difference = 0.65 * shared[:, None] + 0.75 * rng.normal(size=(16, 12))
        documents.append(over_documents(difference.mean(axis=1), np.ones(16), n_draws=499).p)
        cells.append(ttest_1samp(difference.mean(axis=0), 0, alternative="greater").pvalue)
    assert 0.02 <= np.mean(np.array(documents) <= 0.05) <= 0.09
    assert np.mean(np.array(cells) <= 0.05) > 0.15


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=8))
def test_few_units_are_students(values: list[float]):
    found, x = over_units(np.array(values)), np.array(values)
    if np.isfinite(found.p):
        reference = ttest_1samp(x, 0, alternative="greater")
        assert found.p == pytest.approx(float(reference.pvalue))
        both = ttest_1samp(x, 0).confidence_interval()
        assert (found.low, found.high) == pytest.approx((both.low, both.high))
    else:
        assert np.ptp(x) < 1e-10 * max(1.0, np.abs(x).max())


def test_two_units_and_missing_ones_are_not_tested():
    assert np.isnan(over_units(np.array([1.0, 2.0])).p)
    assert over_units(np.array([1.0, np.nan, 2.0])).n == 2
    assert np.isnan(over_units(np.full(3, np.nan)).mean)


def test_a_path_that_always_rises_is_as_rare_as_its_signs():
    null = path_null(np.arange(8.0))
    assert null.observed == pytest.approx(1)
    # of the 2^7 patterns only the one that falls throughout is as far out
    assert null.p == pytest.approx(1 / 128)
    assert null.p_two_sided == pytest.approx(2 / 128)
    assert path_null(-np.arange(8.0)).observed == pytest.approx(-1)
    assert path_null(np.arange(6.0)).p_two_sided == pytest.approx(2 / 32)  # five increments: never below 0.05


def test_a_path_that_rests_has_no_order():
    assert np.isnan(path_null(np.ones(8)).p)


def test_random_walks_are_no_trends():
    rng = np.random.default_rng(3)
    walks = np.cumsum(rng.normal(size=(400, 8)), axis=1)
    rejected = np.mean([path_null(w).p_two_sided <= 0.05 for w in walks])
    assert rejected <= 0.09
    order = np.arange(8.0)
    independent = [abs(np.corrcoef(w.argsort().argsort(), order)[0, 1]) > 0.738 for w in walks]  # 5 % of 8 points
    assert np.mean(independent) > 0.35
    drifting = walks + 2.0 * order
    assert np.mean([path_null(w).p_two_sided <= 0.05 for w in drifting]) > 0.5
