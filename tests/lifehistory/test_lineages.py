from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted import HOOK, latent, snapshot

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.lineages import longest_run, trace_lineages

STEPS = (0, 10, 100, 1000)


def world(spans: list[tuple[int, int]], seed: int, *, n_rows: int = 3000):
    """Latent i is there from snapshot spans[i][0] up to spans[i][1] (excluded); features are permuted in each."""
    codes = latent(n_rows, len(spans), seed=seed)
    profiles, places = {}, {}
    for t, step in enumerate(STEPS):
        present = [i for i, (start, end) in enumerate(spans) if start <= t < end]
        profiles[step, HOOK], places[step] = snapshot(codes, present, step=step, width=len(spans) + 3, seed=seed + t)
    return profiles, places


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12), st.integers(0, 1000))
def test_the_planted_lineages_come_back_whatever_the_feature_order(lives: list[tuple[int, int]], seed: int):
    spans = [(start, min(start + length, 4)) for start, length in lives]
    profiles, places = world(spans, seed)
    lineages = trace_lineages(profiles)
    table = lineages.to_dataframe()
    assert list(table.columns) == ["lineage", "hook_name", "step", "feature", "similarity"]
    found = {tuple(zip(g["step"], g["feature"], strict=True)) for _, g in table.groupby("lineage")}
    planted = {tuple((STEPS[t], places[STEPS[t]][i]) for t in range(*span)) for i, span in enumerate(spans)}
    assert found == planted
    summary = lineages.summary()
    ends = {
        (int(r.birth), None if math.isnan(r.death) else int(r.death), int(r.n_snapshots)) for r in summary.itertuples()
    }
    assert ends == {(STEPS[a], STEPS[b] if b < 4 else None, b - a) for a, b in spans}
    assert table.loc[table.groupby("lineage")["step"].idxmin(), "similarity"].isna().all()


def test_births_and_deaths_are_counted_by_transition_with_their_rates():
    profiles, _ = world([(0, 4), (0, 1), (1, 4), (1, 2), (3, 4)], seed=1)
    lineages = trace_lineages(profiles)
    births, deaths = lineages.births(), lineages.deaths()
    assert births["count"].tolist() == [2, 0, 1]
    assert deaths["count"].tolist() == [1, 1, 0]
    assert deaths["n_alive"].tolist() == [2, 3, 2]
    np.testing.assert_allclose(deaths["fraction"], [0.5, 1 / 3, 0])
    np.testing.assert_allclose(births["per_step"], [2 / 10, 0, 1 / 900])
    np.testing.assert_allclose(births["per_log_step"][0], 2 / math.log10(11))
    survival = lineages.survival()
    first = survival[(survival["birth"] == 0)]
    assert first["survival"].tolist() == [1.0, 0.5, 0.5, 0.5]


def test_carriers_need_two_thirds_of_the_trained_checkpoints_and_the_end():
    #         all   no end  from 100 on  init only
    profiles, places = world([(0, 4), (0, 3), (2, 4), (0, 1)], seed=2)
    lineages = trace_lineages(profiles)
    carriers = lineages.carriers()
    assert carriers.min_snapshots == 2
    assert carriers.at(1000) == {HOOK: sorted([places[1000][0], places[1000][2]])}
    assert carriers.at(0) == {HOOK: [places[0][0]]}
    assert carriers.share_of_alive[HOOK] == 1.0
    assert len(lineages.carriers(min_snapshots=3)) == 1
    assert len(lineages.carriers(alive_at_end=False)) == 3
    with pytest.raises(InputError, match="min_snapshots=4"):
        lineages.carriers(min_snapshots=4)


def test_a_transformed_link_joins_a_lineage_but_is_not_stable():
    codes = latent(5000, 2, rate=0.2, seed=3)
    other = latent(5000, 2, rate=0.2, seed=4)
    mixed = 0.25 * codes + 0.75 * other  # correlates with codes between 0.2 and 0.5
    profiles = {}
    for t, (step, values) in enumerate(zip(STEPS, (codes, codes, mixed, mixed), strict=True)):
        profiles[step, HOOK], _ = snapshot(values, [0, 1], step=step, width=3, seed=t)
    plain, joined = trace_lineages(profiles), trace_lineages(profiles, transformed=0.2)
    assert plain.summary()["n_snapshots"].tolist() == [2, 2, 2, 2]
    assert joined.summary()["n_snapshots"].tolist() == [4, 4]
    # the link at 100 is no stable snapshot: of 10, 100 and 1000 the runs are one long
    assert len(joined.carriers(min_snapshots=2)) == 0
    assert len(joined.carriers(min_snapshots=2, consecutive=False)) == 2


def test_max_gap_links_over_one_missing_checkpoint():
    codes = latent(3000, 3, seed=5)
    present = [[0, 1, 2], [0, 1], [0, 1, 2], [0, 1, 2]]
    profiles = {}
    for t, step in enumerate(STEPS):
        profiles[step, HOOK], _ = snapshot(codes, present[t], step=step, width=5, seed=t)
    assert len(trace_lineages(profiles).summary()) == 4
    bridged = trace_lineages(profiles, max_gap=1).summary()
    assert len(bridged) == 3
    assert sorted(bridged["n_snapshots"]) == [3, 4, 4]


def test_hook_points_are_traced_apart_and_kept_in_order():
    profiles = {}
    for name, seed in (("blocks.9.hook_resid_post", 6), ("blocks.10.hook_resid_post", 7)):
        codes = latent(3000, 4, seed=seed)
        for t, step in enumerate(STEPS):
            profiles[step, name], _ = snapshot(codes, [0, 1, 2, 3], step=step, width=4, seed=t, hook_name=name)
    lineages = trace_lineages(profiles)
    assert lineages.hook_names == ("blocks.9.hook_resid_post", "blocks.10.hook_resid_post")
    assert len(lineages.summary()) == 8
    assert isinstance(lineages.births(), pd.DataFrame)


def test_a_single_checkpoint_and_a_missing_profile_are_named():
    profiles, _ = world([(0, 4)], seed=8)
    with pytest.raises(InputError, match="at least two checkpoints"):
        trace_lineages({(0, HOOK): profiles[0, HOOK]})
    with pytest.raises(InputError, match="no profile for step"):
        trace_lineages({(0, HOOK): profiles[0, HOOK], (10, "other"): profiles[10, HOOK]})


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_longest_run(values: list[bool]):
    text = "".join("x" if v else " " for v in values)
    assert longest_run(np.array([values]))[0] == max((len(part) for part in text.split()), default=0)
