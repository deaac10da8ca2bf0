"""One null for all: its mean, interval and p, and what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tl_lifehist.nulls import Null

DRAWS = arrays(np.float64, st.integers(1, 40), elements=st.integers(-5, 5).map(float))


def test_a_null_by_hand():
    null = Null(2.0, np.array([0.0, 1.0, 2.0, 3.0]))
    assert (null.n, null.mean) == (4, 1.5)
    assert null.sd == pytest.approx(np.sqrt(1.25))
    assert (null.low, null.high) == pytest.approx((0.075, 2.925))
    assert null.p == 3 / 5  # two draws are as large
    assert null.p_low == 4 / 5
    assert null.p_two_sided == 1.0
    assert Null(9.0, null.draws).p_two_sided == 2 / 5


def test_draws_that_are_not_finite_were_not_drawn():
    null = Null(2.5, np.array([np.nan, 1.0, np.inf, 3.0]))
    assert (null.n, null.mean, null.p) == (2, 2.0, 2 / 3)


def test_without_draws_or_a_value_there_is_nothing_to_say():
    empty = Null(1.0, np.zeros(0))
    figures = (empty.mean, empty.sd, empty.low, empty.high, empty.p, empty.p_low, empty.p_two_sided)
    assert np.isnan(figures).all()
    unmeasured = Null(float("nan"), np.arange(4))
    assert np.isnan([unmeasured.p, unmeasured.p_low, unmeasured.p_two_sided]).all()
    assert unmeasured.mean == 1.5


def test_rounding_makes_nearly_equal_draws_equal_on_either_side():
    draws = np.array([0.3 - 1e-12, 0.3 + 1e-12])
    assert Null(0.3, draws).p == 2 / 3
    assert (Null(0.3, draws, rounding=1e-9).p, Null(0.3, draws, rounding=1e-9).p_low) == (1.0, 1.0)


@given(st.integers(-6, 6).map(float), DRAWS)
def test_p_is_a_share_that_never_reaches_zero_and_turns_with_the_sign(observed: float, draws: np.ndarray):
    null, turned = Null(observed, draws), Null(-observed, -draws)
    assert 1 / (len(draws) + 1) <= null.p <= 1
    assert (null.p, null.p_low) == (turned.p_low, turned.p)
    assert null.p_two_sided == turned.p_two_sided >= min(null.p, null.p_low)
    assert null.p + null.p_low >= 1  # each draw is on one side, or on both


@given(DRAWS, st.randoms())
def test_the_order_of_the_draws_does_not_matter(draws: np.ndarray, random):
    shuffled = np.array(random.sample(draws.tolist(), len(draws)))
    one, other = Null(0.0, draws), Null(0.0, shuffled)
    np.testing.assert_array_equal((one.p, one.low, one.high), (other.p, other.low, other.high))  # NaN for one draw
    assert one.mean == pytest.approx(other.mean)
