"""Equals within a caliper: who may be drawn, that nobody is drawn twice, and the draw written out plainly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tl_lifehist.lifehistory.caliper import draw_within_caliper, n_without_equal

# few distinct values, so that many distances are equal
VALUES = arrays(np.float64, st.integers(0, 25), elements=st.integers(0, 12).map(lambda i: i / 10))


def plainly(wanted, pool, rng, n_nearest, caliper):
    """The same draw with every distance written out."""
    free, kept, picked = np.ones(len(pool), dtype=bool), [], []
    for i in rng.permutation(np.arange(len(wanted))):
        distance = np.where(free, np.abs(pool - wanted[i]), np.inf)
        near = [j for j in np.argsort(distance, kind="stable")[:n_nearest] if distance[j] <= caliper]
        if near:
            kept.append(int(i))
            picked.append(int(rng.choice(near)))
            free[picked[-1]] = False
    return kept, picked


@given(VALUES, VALUES, st.integers(1, 6), st.sampled_from([0.05, 0.25, 3.0]), st.integers(0, 99))
def test_it_is_the_draw_that_every_distance_gives(wanted, pool, n_nearest, caliper, seed):
    found = draw_within_caliper(wanted, pool, np.random.default_rng(seed), n_nearest=n_nearest, caliper=caliper)
    kept, picked = plainly(wanted, pool, np.random.default_rng(seed), n_nearest, caliper)
    assert (found[0].tolist(), found[1].tolist()) == (kept, picked)


@given(VALUES, VALUES, st.integers(1, 6), st.integers(0, 99))
def test_nobody_is_drawn_twice_or_from_afar(wanted, pool, n_nearest, seed):
    kept, picked = draw_within_caliper(wanted, pool, np.random.default_rng(seed), n_nearest=n_nearest, caliper=0.25)
    assert len(set(picked.tolist())) == len(picked) == len(set(kept.tolist()))
    assert (np.abs(wanted[kept] - pool[picked]) <= 0.25).all()
    # whoever has an equal at all either got one, or every equal was taken by others
    left = np.setdiff1d(np.arange(len(wanted)), kept)
    for i in left:
        assert set(np.flatnonzero(np.abs(pool - wanted[i]) <= 0.25)) <= set(picked.tolist())


@given(VALUES, VALUES, st.integers(0, 99))
def test_the_nearest_stands_in_where_there_is_no_equal(wanted, pool, seed):
    kept, picked = draw_within_caliper(wanted, pool, np.random.default_rng(seed), caliper=0.05, or_nearest=True)
    assert len(kept) == len(set(picked.tolist())) == min(len(wanted), len(pool))


def test_a_lone_value_takes_the_nearest_and_then_the_next():
    wanted, pool = np.array([0.0, 0.0]), np.array([5.0, 0.2, 0.1])
    kept, picked = draw_within_caliper(wanted, pool, np.random.default_rng(0), n_nearest=1)
    assert sorted(kept.tolist()) == [0, 1]
    assert picked.tolist() == [2, 1]


@pytest.mark.parametrize(("caliper", "count"), [(0.05, 3), (0.25, 1), (9.0, 0)])
def test_who_has_no_equal_is_counted(caliper: float, count: int):
    assert n_without_equal(np.array([0.0, 1.0, 4.0]), np.array([0.2, 1.1]), caliper=caliper) == count
