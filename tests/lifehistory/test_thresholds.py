"""Every threshold can be set, and moving it moves what it decides."""

from __future__ import annotations

import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from planted import HOOK, latent, snapshot
from test_containment import broad_carriers
from test_forecast import FEW, world
from test_joint_ablation import population
from test_survival import lived, persisting

from tl_lifehist.lifehistory import noise
from tl_lifehist.lifehistory.ablation_breakdown import compare_roles
from tl_lifehist.lifehistory.content import content_classes
from tl_lifehist.lifehistory.controls import draw_controls
from tl_lifehist.lifehistory.forecast import onset_step, predict_carriers, training_phase
from tl_lifehist.lifehistory.matching import match_features, rematch_rate
from tl_lifehist.lifehistory.profiles import FeatureProfiles, profile_saes
from tl_lifehist.lifehistory.recruitment import recruitment_null
from tl_lifehist.lifehistory.survival import survival_by_entropy


def test_a_code_below_the_threshold_does_not_fire(pocket_model, pocket_tokens, make_sae):
    acts = np.array([[0.2, 0.0], [0.6, 0.4]])
    profile = FeatureProfiles(0, HOOK, acts, firing_threshold=0.5)
    assert profile.count.tolist() == [1, 0]
    assert FeatureProfiles(0, HOOK, acts).count.tolist() == [2, 1]
    assert profile.permuted(0).firing_threshold == profile.select_rows(np.array([True, True])).firing_threshold == 0.5
    saes = {HOOK: make_sae()}
    low, high = (
        profile_saes(pocket_model, saes, pocket_tokens, firing_threshold=least)[HOOK].acts.data for least in (1e-6, 1.0)
    )
    assert high.min() > 1.0
    assert sorted(high.tolist()) == sorted(low[low > 1.0].tolist())


def test_a_match_within_a_checkpoint_is_that_of_any_two_profiles():
    codes = latent(3000, 10, seed=1)
    codes[:, 9] *= np.arange(3000) < 600  # a rare one
    base, _ = snapshot(codes, list(range(10)), step=5, width=12, seed=0)
    other, _ = snapshot(codes, list(range(9)), step=5, width=12, seed=1)
    for knobs in ({}, {"min_count": 100}, {"min_rate": 0.05}, {"method": "dense"}, {"min_similarity": 1.0}):
        expected = match_features(base, other, **knobs).rate
        assert rematch_rate(base, other, **knobs) == expected
        table = noise.rematch_table({(5, HOOK): base}, {(5, "data1"): {HOOK: other}}, **knobs)
        assert table["rate"].tolist() == [expected]
        assert noise.rematch_frequencies(base, [other], **knobs).mean() == expected
        matched = noise.seed_stable({HOOK: base}, [{HOOK: other}], **knobs)[HOOK]
        assert len(matched) == len(match_features(base, other, **knobs).pairs)
    assert rematch_rate(base, other) == 0.9
    assert rematch_rate(base, other, min_count=100) == 1  # the rare feature is not alive


def test_the_unrelated_null_asks_what_the_carriers_were_asked():
    codes = latent(2000, 6, seed=3)
    profiles = {(s, HOOK): snapshot(codes, list(range(6)), step=s, width=6, seed=s)[0] for s in (0, 1, 2)}
    # shuffled rows match nothing, so a lineage lives in one checkpoint: enough only where one is
    counts = [
        noise.unrelated_null(profiles, n_draws=2, **rule).mean
        for rule in ({"min_share": 0.5}, {"min_share": 0.5, "alive_at_end": False}, {"min_share": 1.0})
    ]
    assert counts == [6, 12, 0]
    assert noise.unrelated_null(profiles, n_draws=1, min_share=0.5, min_count=10_000).mean == 0


@pytest.mark.parametrize("n", [*range(1, 60), 300, 999])
def test_two_thirds_are_rounded_up_whatever_the_number(n: int):
    lineages = lived([("h", 0, 1)], tuple(range(n + 1)))
    lineages = replace(lineages, alive={(n, "h"): np.zeros(0, dtype=int)})
    assert lineages.carriers().min_snapshots == math.ceil(2 * n / 3) == -(-2 * n // 3)
    assert lineages.carriers(min_share=1.0).min_snapshots == n


def test_a_share_that_is_no_binary_number_counts_as_written():
    lineages = replace(lived([("h", 0, 1)], tuple(range(101))), alive={(100, "h"): np.zeros(0, dtype=int)})
    assert lineages.carriers(min_share=0.55).min_snapshots == 55


def test_a_wider_caliper_finds_equals_and_a_smaller_block_fewer():
    profile = population([0.1, 0.2, 0.21, 0.22])

    def equals(**knobs) -> set[int]:
        draws = draw_controls({HOOK: profile}, {HOOK: [0]}, kind="rate", n_draws=30, **knobs)
        return {f for d in draws for f in d.controls[HOOK]}

    assert equals(caliper=0.25) == set()
    assert equals(caliper=0.5) == {0, 1, 2, 3}
    assert equals(caliper=0.5, block=2) == {0, 1}


def test_recruitment_is_tested_where_the_caller_finds_equals_enough():
    graph, carriers = broad_carriers()
    sizes = {"n_draws": 10, "n_rewired": 0}
    strict = recruitment_null(graph, carriers, caliper=0.0, **sizes)
    assert strict.unmatched_share > 0.5
    assert np.isnan(strict.p)
    assert recruitment_null(graph, carriers, caliper=0.0, max_unmatched=1.0, **sizes).p <= 1


def test_a_chain_without_rounds_stays_where_it_is():
    # two carriers with the same two children, and two others with two other ones: any swap lets the carriers reach more
    graph = nx.DiGraph(orientation="container", n_rows=1000)
    graph.add_nodes_from((("a", f), {"count": 500 + f, "firing_rate": 0.5}) for f in range(4))
    graph.add_nodes_from((("b", f), {"count": 100 + f, "firing_rate": 0.1}) for f in range(4))
    graph.add_edges_from((("a", f), ("b", f // 2 * 2 + i)) for f in range(4) for i in range(2))
    carriers = {"a": [0, 1]}
    found = [
        recruitment_null(graph, carriers, n_draws=1, n_rewired=2, burn_in=first, thinning=then).rewired.tolist()
        for first, then in ((0, 0), (0, 9), (9, 0))
    ]
    observed = 2 / 6
    assert found[0] == [observed] * 2
    assert found[1][0] == observed < found[1][1]
    assert found[2][0] == found[2][1] > observed


def test_a_class_needs_the_share_of_mass_that_it_is_asked_for():
    profile = FeatureProfiles(0, HOOK, np.array([[3.0], [1.0]]), token_ids=np.array([0, 1]))
    found = [content_classes(profile, np.array([True, False]), min_mass_share=share)[0] for share in (0.5, 0.75, 0.76)]
    assert found == ["infrastructure", "infrastructure", "legible"]


def test_the_onset_moves_with_its_share():
    assert [onset_step([0, 10, 100, 1000], onset_share=share) for share in (0.001, 0.1, 0.5)] == [10, 100, 1000]
    assert training_phase(100, 1000, onset_share=0.1) == "I"
    assert training_phase(100, 1000, phase_two_share=0.05) == "III"
    profiles, lineages = persisting()
    late = survival_by_entropy(profiles, lineages, onset_share=1.0, n_groups=4)
    assert late["survival"].tolist() == [1] * 4
    assert late["n"].sum() == 40


def test_a_forecast_needs_as_many_as_it_is_asked_for_and_reads_its_knobs():
    profiles, lineages, carriers = world(telling=False)
    told = predict_carriers(profiles, lineages, carriers, min_positives=41, **FEW)
    assert told.reason is not None
    assert "41 are needed" in told.reason
    assert predict_carriers(profiles, lineages, carriers, onset_share=1.0, **FEW).onset == 1000
    base = predict_carriers(profiles, lineages, carriers, **FEW).table["score"]
    for knob in ({"n_folds": 3}, {"inverse_penalty": 0.01}, {"min_lift": 9.0}):
        assert not np.allclose(base, predict_carriers(profiles, lineages, carriers, **knob, **FEW).table["score"])
    assert np.isnan(predict_carriers(profiles, lineages, carriers, n_bootstrap=0, **FEW).auc_interval).all()


def test_roles_are_compared_where_there_are_features_enough():
    table = pd.DataFrame({"role": ["root", "root", "leaf", "leaf"], "per_firing": [1.0, 2.0, 3.0, 4.0]})
    assert np.isnan(compare_roles(table)["p"])
    assert compare_roles(table, min_features=4)["p"] < 0.2
