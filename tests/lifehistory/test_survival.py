from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.lineages import Lineages, trace_lineages
from tl_lifehist.lifehistory.profiles import FeatureProfiles
from tl_lifehist.lifehistory.survival import COLUMNS, kaplan_meier, survival_by_entropy, wilson_interval


def lived(lives: list[tuple[str, int, int]], steps: tuple[int, ...]) -> Lineages:
    """Lineages with a hook point, a first step and a last step each."""
    rows = [
        (number, hook, step, number, np.nan if step == first else 1.0)
        for number, (hook, first, last) in enumerate(lives)
        for step in steps
        if first <= step <= last
    ]
    table = pd.DataFrame(rows, columns=["lineage", "hook_name", "step", "feature", "similarity"])
    return Lineages(table, steps, tuple(dict.fromkeys(hook for hook, _, _ in lives)), {})


DIED = [6, 6, 6, 7, 10, 13, 16, 22, 23]
CENSORED = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]


def test_kaplan_meier_on_the_textbook_example():
    """Freireich's 6-mercaptopurine arm: weeks of remission, 21 patients."""
    steps = tuple(range(36))
    lives = [("h", 0, age - 1) for age in DIED] + [("h", 35 - age, 35) for age in CENSORED]
    table = kaplan_meier(lived(lives, steps))
    table = table[table["hook_name"] == "h"].set_index("step")
    published = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert table.loc[list(published), "survival"].tolist() == pytest.approx(list(published.values()), abs=5e-4)
    assert table.loc[[6, 7, 10, 13, 16, 22, 23], "at_risk"].tolist() == [21, 17, 15, 12, 11, 7, 6]
    assert table.loc[[6, 7, 10, 13, 16, 22, 23], "deaths"].tolist() == [3, 1, 1, 1, 1, 1, 1]
    assert table.loc[35, "survival"] == table.loc[23, "survival"]  # the end of observation is no death
    assert tuple(table.loc[0, ["at_risk", "deaths", "survival"]]) == (21, 0, 1)


def test_on_the_training_clock_a_lineage_is_at_risk_after_its_birth():
    table = kaplan_meier(
        lived([("h", 0, 0), ("h", 0, 100), ("h", 10, 100), ("h", 10, 10)], (0, 10, 100)), clock="training"
    )
    found = table[table["hook_name"] == "h"][["step", "at_risk", "deaths", "survival"]].to_numpy().tolist()
    # one of two dies by step 10, one of three by step 100
    assert found == [[0, 2, 0, 1], [10, 2, 1, 0.5], [100, 3, 1, pytest.approx(1 / 3)]]


def test_hook_points_come_apart_and_together():
    table = kaplan_meier(lived([("a", 0, 0), ("a", 0, 100), ("b", 0, 100)], (0, 10, 100)))
    assert table["hook_name"].drop_duplicates().tolist() == ["a", "b", "all"]
    last = table.groupby("hook_name")["survival"].min()
    assert last.to_dict() == pytest.approx({"a": 1 / 2, "b": 1, "all": 2 / 3})


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=25), st.booleans())
def test_survival_falls_and_equals_the_plain_share_without_censoring(spans, censored):
    steps = (0, 1, 2, 4, 8, 16)
    lives = [("h", steps[0 if not censored else min(a, b)], steps[max(a, b)]) for a, b in spans]
    table = kaplan_meier(lived(lives, steps))
    table = table[table["hook_name"] == "h"]
    assert (np.diff(table["survival"]) <= 1e-12).all()
    assert table["survival"].between(0, 1).all()
    if not censored:
        for row in table.itertuples():
            assert row.survival == pytest.approx(np.mean([last == 16 or last >= row.step for _, _, last in lives]))


def test_an_unknown_clock_is_refused():
    with pytest.raises(InputError, match='"age" or "training"'):
        kaplan_meier(lived([("h", 0, 0)], (0, 1)), clock="wall")


@given(st.integers(1, 60), st.integers(0, 60))
def test_the_ends_of_wilsons_interval_lie_1_96_standard_errors_of_their_own_away(n, successes):
    share = min(successes, n) / n
    for end in wilson_interval(min(successes, n), n):
        assert 0 <= end <= 1
        assert (share - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / n, abs=1e-6)


def test_wilson_by_hand():
    assert wilson_interval(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert np.isnan(wilson_interval(0, 0)).all()


def persisting(n_features: int = 20):
    """Features of rising rate, the upper half of each layer lasting; of a constant code, so entropy follows rate."""
    rng = np.random.default_rng(0)
    rate = np.linspace(0.05, 0.3, n_features)
    profiles = {}
    for step in (0, 10, 1000):
        for hook in ("h0", "h1"):
            acts = (rng.random((3000, n_features)) < rate).astype(float)
            if step == 1000:
                acts[:, n_features // 2 :] = profiles[10, hook].acts.toarray()[:, n_features // 2 :]
            profiles[step, hook] = FeatureProfiles(step, hook, acts)
    return profiles, trace_lineages(profiles)


def test_the_upper_deciles_survive_where_the_broad_features_do():
    profiles, lineages = persisting()
    table = survival_by_entropy(profiles, lineages)
    assert list(table.columns) == COLUMNS
    assert table["decile"].tolist() == list(range(1, 11))
    assert table["n"].tolist() == [4] * 10
    assert table["survival"].tolist() == [0] * 5 + [1] * 5
    assert table["survival_by_rate"].tolist() == [0] * 5 + [1] * 5
    assert (table["entropy_low"] <= table["entropy_high"]).all()
    assert (table["entropy_high"].to_numpy()[:-1] <= table["entropy_low"].to_numpy()[1:]).all()
    assert tuple(table.loc[9, ["low", "high"]]) == pytest.approx(wilson_interval(4, 4))


def test_entropy_is_told_from_rate():
    """All rates are alike; an uneven code lowers entropy, and only the even half lasts."""
    rng = np.random.default_rng(0)
    fires = rng.random((4000, 20)) < 0.1
    codes = np.where(np.arange(20) < 10, rng.pareto(1.0, (4000, 20)), 1.0) * fires
    later = np.where(np.arange(20) < 10, rng.permuted(codes, axis=0), codes)
    profiles = {(s, "h"): FeatureProfiles(s, "h", c) for s, c in ((0, codes), (10, codes), (1000, later))}
    table = survival_by_entropy(profiles, trace_lineages(profiles), onset=10)
    assert table["survival"].tolist() == [0] * 5 + [1] * 5
    assert table["survival_by_rate"].mean() == pytest.approx(0.5)
    assert table["survival_by_rate"].tolist() != table["survival"].tolist()


def test_fewer_than_ten_features_leave_empty_deciles():
    profiles, lineages = persisting(n_features=2)
    table = survival_by_entropy(profiles, lineages)
    assert table["n"].sum() == 4
    assert (
        table.loc[table["n"] == 0, ["survival", "low", "high", "entropy_low", "survival_by_rate"]].isna().all(axis=None)
    )


def test_the_onset_must_have_profiles():
    profiles, lineages = persisting()
    with pytest.raises(InputError, match="onset 5"):
        survival_by_entropy(profiles, lineages, onset=5)
    assert survival_by_entropy(profiles, lineages, onset=1000)["survival"].tolist() == [1] * 10
