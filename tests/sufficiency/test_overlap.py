from __future__ import annotations

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.errors import InputError
from tl_lifehist.sufficiency.overlap import mask_overlap, mask_overlap_null


@st.composite
def two_masks(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    n = draw(st.integers(1, 40))
    gates = hnp.arrays(np.float64, n, elements=st.floats(0, 1))
    return draw(gates), draw(gates)


@given(masks=two_masks())
def test_overlap_is_symmetric_and_between_0_and_1(masks: tuple[np.ndarray, np.ndarray]):
    a, b = masks
    found = mask_overlap(a, b)
    if not a.any() and not b.any():
        assert np.isnan(found)
        return
    assert 0 <= found <= 1
    assert found == pytest.approx(mask_overlap(b, a), rel=1e-12)
    if a.any():
        assert mask_overlap(a, a) == 1


@given(flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=50))
def test_hard_masks_give_the_jaccard_index(flags: list[tuple[bool, bool]]):
    a, b = {i for i, f in enumerate(flags) if f[0]}, {i for i, f in enumerate(flags) if f[1]}
    found = mask_overlap(*(np.array(side, dtype=float) for side in zip(*flags, strict=True)))
    if a | b:
        assert found == pytest.approx(len(a & b) / len(a | b))
    else:
        assert np.isnan(found)


def test_known_overlaps():
    assert mask_overlap(torch.tensor([0.2, 0.8, 0.0]), torch.tensor([0.5, 0.4, 0.1])) == pytest.approx(0.6 / 1.4)
    assert mask_overlap([1.0, 0.0], [0.0, 1.0]) == 0
    assert np.isnan(mask_overlap([0.0, 0.0], [0.0, 0.0]))


def test_masks_that_share_their_components_beat_chance():
    rng = np.random.default_rng(4)
    a = np.where(np.arange(80) < 10, 0.9, 0.02)
    b = np.clip(a + rng.normal(0, 0.01, 80), 0, 1)
    null = mask_overlap_null(a, b, n_draws=400, seed=2)
    assert null.observed == pytest.approx(mask_overlap(a, b))
    assert null.observed > null.high
    assert null.p == pytest.approx(1 / 401)
    assert len(null.draws) == 400
    assert null.low < null.mean < null.high


def test_two_random_masks_are_within_their_null_nine_times_in_ten():
    rng = np.random.default_rng(6)
    found = [mask_overlap_null(rng.random(40), rng.random(40), n_draws=100, seed=s).p for s in range(200)]
    assert np.mean(np.array(found) <= 0.1) == pytest.approx(0.1, abs=0.06)
    assert np.mean(found) == pytest.approx(0.5, abs=0.07)


def test_the_mean_of_the_null_of_hard_masks_is_hypergeometric():
    a, b = np.arange(30) < 12, np.arange(30) < 9
    null = mask_overlap_null(a.astype(float), b.astype(float), n_draws=4000, seed=0)
    from scipy.stats import hypergeom

    common = np.arange(10)
    expected = (hypergeom(30, 12, 9).pmf(common) * common / (21 - common)).sum()
    assert null.mean == pytest.approx(expected, rel=0.03)


def test_constant_masks_are_never_beyond_chance():
    """All permutations are equal, whatever the last bit of their sums says."""
    rng = np.random.default_rng(0)
    null = mask_overlap_null(np.full(37, 0.1), rng.random(37), n_draws=300, seed=1)
    assert null.p == 1
    assert null.low == pytest.approx(null.high)


def test_two_empty_masks_have_no_overlap_and_no_null():
    null = mask_overlap_null(np.zeros(5), np.zeros(5), n_draws=10)
    assert all(np.isnan(value) for value in (null.observed, null.mean, null.low, null.high, null.p))
    empty = mask_overlap_null(np.zeros(5), np.ones(5), n_draws=10)
    assert (empty.observed, empty.mean, empty.p) == (0, 0, 1)


def test_the_seed_decides_the_draws():
    a, b = np.linspace(0, 1, 20), np.linspace(1, 0, 20) ** 2
    first, same, other = (mask_overlap_null(a, b, n_draws=20, seed=s).draws for s in (3, 3, 4))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_masks_over_two_dictionaries_are_refused():
    with pytest.raises(InputError, match="3 and 2 components"):
        mask_overlap([0.0, 1.0, 0.5], [0.0, 1.0])
    with pytest.raises(InputError, match="n_draws=0"):
        mask_overlap_null([1.0], [1.0], n_draws=0)
