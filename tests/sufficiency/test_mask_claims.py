"""The sign-flip test behind the claims."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from report.plausible_masks import plausible_mask_tables

from tl_lifehist.claims import Claim, claims_table
from tl_lifehist.sufficiency import claims
from tl_lifehist.sufficiency.calibration import gates_can_close
from tl_lifehist.sufficiency.claims import make_claims
from tl_lifehist.sufficiency.config import Masks, Verdicts


def paired(observed: pd.Series, null: pd.Series, *, less: bool, seed: int, **thresholds: float) -> Claim:
    return claims.paired("x", "x", observed, null, less=less, verdicts=Verdicts(**thresholds), seed=seed)


def series(values):
    return pd.Series(values, index=pd.MultiIndex.from_tuples([(i, "h") for i in range(len(values))]))


@pytest.mark.parametrize("seed", range(20))
def test_all_units_one_way_is_the_smallest_p_there_is(seed):
    """Exactly 1 / 32 with five units, whatever the sizes of the gaps and the order of their sum."""
    gaps = np.random.default_rng(seed).random(5) + 0.1
    claim = paired(series(1 - gaps), series(np.ones(5)), less=True, seed=seed)
    assert claim.p == pytest.approx(1 / 32, abs=0.012)
    assert claim.verdict == "beyond"
    assert claim.n == 5


def test_the_wrong_way_is_never_beyond():
    claim = paired(series(np.full(8, 1.2)), series(np.ones(8)), less=True, seed=0)
    assert claim.p > 0.99
    assert claim.verdict == "within"
    claim = paired(series(np.full(8, 1.2)), series(np.ones(8)), less=False, seed=0)
    assert claim.verdict == "beyond"
    assert claim.low < claim.null < claim.high


def test_equal_units_are_within():
    claim = paired(series(np.ones(9)), series(np.ones(9)), less=True, seed=0)
    assert claim.p == 1


def test_few_units_or_missing_ones_are_not_testable():
    claim = paired(series([1.0, 2.0, np.nan, 4.0, 5.0]), series(np.zeros(5)), less=False, seed=0)
    assert claim.n == 4
    assert claim.verdict == "not testable"
    assert "fewer than 5 units" in claim.note


def test_its_thresholds_are_the_studys():
    observed, null = series(np.full(6, 0.98)), series(np.ones(6))
    assert paired(observed, null, less=True, seed=0).verdict == "beyond"
    assert paired(observed, null, less=True, seed=0, least_effect=0.05).note.startswith("the difference is below 5%")
    assert paired(observed, null, less=True, seed=0, least_units=7).verdict == "not testable"
    assert paired(observed, null, less=True, seed=0, level=0.001).verdict == "within"


def test_it_rejects_as_often_as_it_says():
    rng = np.random.default_rng(1)
    p = [paired(series(rng.normal(size=8)), series(rng.normal(size=8)), less=True, seed=i).p for i in range(200)]
    assert 0.01 < np.mean(np.array(p) <= 0.05) < 0.1


def test_masks_that_had_no_time_to_close_claim_nothing():
    """At the start alpha is 2 and Adam moves it by at most 0.05 per step, less towards the end."""
    assert not gates_can_close(45)
    assert gates_can_close(46)
    tables = plausible_mask_tables()
    made = [make_claims(tables, Masks(mask_steps=n), verdicts=Verdicts(), seed=0) for n in (1000, 20)]
    long, short = (claims_table(found).set_index("id") for found in made)
    assert list(long.index) == list(short.index)
    of_masks = ~long.index.str.match("transfer|sensitivity")
    assert (long.loc[of_masks, "verdict"] == "beyond").any()
    assert (short.loc[of_masks, "verdict"] == "not testable").all()
    assert short.loc[of_masks, "note"].str.contains("20 steps").all()
    other = list(long.index[~of_masks])
    assert len(other) == 4
    assert list(short.loc[other, "verdict"]) == list(long.loc[other, "verdict"])


def test_units_that_drift_together_are_taken_for_independent_ones():
    """A limit, named on the method page: a common random walk over 8 checkpoints of 5 layers rejects far too often."""
    rng = np.random.default_rng(0)
    beyond = []
    for seed in range(100):
        drift = rng.normal(size=8).cumsum()[:, None] + rng.normal(size=5) + 0.5 * rng.normal(size=(8, 5))
        claim = paired(series(10 + drift.ravel()), series(np.full(40, 10.0)), less=True, seed=seed)
        beyond.append(claim.verdict == "beyond")
    assert 0.3 < np.mean(beyond) < 0.6
