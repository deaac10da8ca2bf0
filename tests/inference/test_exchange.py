from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.inference.exchange import blocks_of, exchanged, shuffled_within, strata_of, without_slope


def two_layers(n: int, seed: int):
    rng = np.random.default_rng(seed)
    return rng, np.repeat(["a", "b"], n), rng.normal(size=2 * n)


@given(st.integers(0, 10_000), st.integers(2, 12), st.floats(0.01, 3))
def test_blocks_hold_neighbours_of_one_layer_each_item_once(seed: int, block: int, caliper: float):
    _, layers, values = two_layers(20, seed)
    blocks = blocks_of(layers, values, block=block, caliper=caliper)
    assert sorted(np.concatenate(blocks).tolist()) == list(range(40))
    for items in blocks:
        assert len(items) <= block
        assert np.ptp(values[items]) <= caliper
        assert len(set(layers[items])) == 1
        between = (values > values[items].min()) & (values < values[items].max()) & (layers == layers[items[0]])
        assert set(np.flatnonzero(between)) <= set(items.tolist())


def test_a_gap_parts_a_block_and_a_rest_is_shared_out():
    values = np.array([0.0, 0.1, 0.2, 1.0, 1.05])
    assert [b.tolist() for b in blocks_of(np.zeros(5), values, block=8, caliper=0.25)] == [[0, 1, 2], [3, 4]]
    nine = np.linspace(0, 0.2, 9)
    assert [len(b) for b in blocks_of(np.zeros(9), nine, block=8, caliper=0.25)] == [5, 4]
    assert [len(b) for b in blocks_of(np.zeros(9), None)] == [9]


@given(st.integers(0, 10_000))
def test_exchange_keeps_the_marked_of_every_group_and_leaves_the_others_out(seed: int):
    rng, layers, values = two_layers(30, seed)
    labels = rng.random(60) < 0.3
    strata = strata_of(labels, layers, values, block=6, caliper=0.5)
    drawn = strata.draws(25, rng)
    for group in strata.groups:
        assert (drawn[:, group].sum(axis=1) == labels[group].sum()).all()
        assert 0 < labels[group].sum() < len(group)
    assert not drawn[:, ~strata.inside].any()
    assert strata.unmatched_share == pytest.approx(
        1 - (labels & strata.inside).sum() / labels.sum() if labels.any() else np.nan, nan_ok=True
    )


def test_every_place_of_a_group_is_taken_equally_often():
    labels = np.array([True, True, False, False, False])
    drawn = strata_of(labels, np.zeros(5)).draws(20_000, np.random.default_rng(0))
    assert np.abs(drawn.mean(axis=0) - 0.4).max() < 0.015


def test_rows_move_within_their_block_only():
    order = shuffled_within([np.array([0, 2]), np.array([1, 3, 4])], 6, np.random.default_rng(1))
    assert sorted(order[[0, 2]]) == [0, 2]
    assert sorted(order[[1, 3, 4]]) == [1, 3, 4]
    assert order[5] == 5


def test_what_follows_from_the_total_by_a_line_is_taken_out():
    totals = np.arange(10.0)
    null = without_slope(3 * 20.0 + 1, 3 * totals + 1, 20.0, totals)
    assert null.observed == pytest.approx(null.mean)
    assert null.sd == pytest.approx(0)
    # nothing to take out where all sets have one total
    flat = without_slope(5.0, np.array([1.0, 2.0]), 4.0, np.array([4.0, 4.0]))
    assert (flat.observed, flat.draws.tolist()) == (5.0, [1.0, 2.0])


def heavier(seed: int, extra: float = 1.0, by_mass: bool = True):
    """Carriers are heavier than others, and cost follows mass: as in the real case."""
    rng = np.random.default_rng(seed)
    layers = np.repeat(np.arange(4), 60)
    log_mass = rng.normal(scale=0.6, size=240)
    labels = rng.random(240) < 1 / (1 + np.exp(-3 * log_mass))
    cost = 10**log_mass * np.exp(rng.normal(size=240)) * np.where(labels, extra, 1.0)
    strata = strata_of(labels, layers, log_mass if by_mass else None)
    found = exchanged(strata, lambda s: float(s @ cost), 99, rng, measure=10**log_mass if by_mass else None)
    return found.null.p


def test_equals_of_mass_hold_their_level_where_a_count_does_not():
    p = np.array([heavier(seed) for seed in range(300)])
    assert 0.02 <= (p <= 0.05).mean() <= 0.09
    assert np.mean([heavier(seed, by_mass=False) <= 0.05 for seed in range(60)]) > 0.9
    assert np.mean([heavier(seed, extra=2.0) <= 0.05 for seed in range(60)]) > 0.6
