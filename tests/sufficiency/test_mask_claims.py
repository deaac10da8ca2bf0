"""The sign-flip test behind the claims."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from report.plausible_masks import plausible_mask_tables

from tl_lifehist.sufficiency.calibration import gates_can_close
from tl_lifehist.sufficiency.claims import make_claims, paired


def series(values):
    return pd.Series(values, index=pd.MultiIndex.from_tuples([(i, "h") for i in range(len(values))]))


@pytest.mark.parametrize("seed", range(20))
def test_all_units_one_way_is_the_smallest_p_there_is(seed):
    """Exactly 1 / 32 with five units, whatever the sizes of the gaps and the order of their sum."""
    gaps = np.random.default_rng(seed).random(5) + 0.1
    row = paired("x", series(1 - gaps), series(np.ones(5)), less=True, seed=seed)
    assert row["p"] == pytest.approx(1 / 32, abs=0.012)
    assert row["verdict"] == "beyond"
    assert row["n"] == 5


def test_the_wrong_way_is_never_beyond():
    row = paired("x", series(np.full(8, 1.2)), series(np.ones(8)), less=True, seed=0)
    assert row["p"] > 0.99
    assert row["verdict"] == "within"
    row = paired("x", series(np.full(8, 1.2)), series(np.ones(8)), less=False, seed=0)
    assert row["verdict"] == "beyond"
    assert row["low"] < row["null"] < row["high"]


def test_equal_units_are_within():
    row = paired("x", series(np.ones(9)), series(np.ones(9)), less=True, seed=0)
    assert row["p"] == 1


def test_few_units_or_missing_ones_are_not_testable():
    row = paired("x", series([1.0, 2.0, np.nan, 4.0, 5.0]), series(np.zeros(5)), less=False, seed=0)
    assert row["n"] == 4
    assert row["verdict"] == "not testable"
    assert "fewer than 5 units" in row["note"]


def test_it_rejects_as_often_as_it_says():
    rng = np.random.default_rng(1)
    p = [
        paired("x", series(rng.normal(size=8)), series(rng.normal(size=8)), less=True, seed=i)["p"] for i in range(200)
    ]
    assert 0.01 < np.mean(np.array(p) <= 0.05) < 0.1


def test_masks_that_had_no_time_to_close_claim_nothing():
    """At the start alpha is 2 and Adam moves it by at most 0.05 per step, less towards the end."""
    assert not gates_can_close(45)
    assert gates_can_close(46)
    tables = plausible_mask_tables()
    long, short = (make_claims(tables, 0, steps=steps).set_index("claim") for steps in (1000, 20))
    assert list(long.index) == list(short.index)
    of_masks = long.index.str.contains("masks")
    assert (long.loc[of_masks, "verdict"] == "beyond").any()
    assert (short.loc[of_masks, "verdict"] == "not testable").all()
    assert short.loc[of_masks, "note"].str.contains("20 steps").all()
    other = [name for name in long.index if "masks" not in name]
    assert len(other) == 4
    assert list(short.loc[other, "verdict"]) == list(long.loc[other, "verdict"])


def test_units_that_drift_together_are_taken_for_independent_ones():
    """A limit, named on the method page: a common random walk over 8 checkpoints of 5 layers rejects far too often."""
    rng = np.random.default_rng(0)
    beyond = []
    for seed in range(100):
        drift = rng.normal(size=8).cumsum()[:, None] + rng.normal(size=5) + 0.5 * rng.normal(size=(8, 5))
        row = paired("x", series(10 + drift.ravel()), series(np.full(40, 10.0)), less=True, seed=seed)
        beyond.append(row["verdict"] == "beyond")
    assert 0.3 < np.mean(beyond) < 0.6
