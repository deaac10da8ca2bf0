from __future__ import annotations

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import tl_lifehist as lh
from tl_lifehist.effects import scored_losses
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.ablation_breakdown import RandomDirection, compare_roles
from tl_lifehist.lifehistory.controls import CALIPER, draw_controls
from tl_lifehist.lifehistory.profiles import FeatureProfiles

HOOK = "blocks.1.hook_resid_post"


def population(
    rates: list[float], *, scale: list[float] | None = None, n: int = 20_000, seed: int = 0
) -> FeatureProfiles:
    """Features with exactly these firing rates; `scale` multiplies their codes."""
    rng = np.random.default_rng(seed)
    codes = np.zeros((n, len(rates)), dtype=np.float32)
    for i, rate in enumerate(rates):
        codes[rng.permutation(n)[: int(rate * n)], i] = 1.0 if scale is None else scale[i]
    return FeatureProfiles(0, HOOK, sp.csr_array(codes))


@given(st.integers(0, 10_000), st.sampled_from(["count", "rate", "mass"]))
def test_controls_are_alive_non_carriers_of_equal_number_without_repeats(seed: int, kind: str):
    rng = np.random.default_rng(seed)
    profile = population(list(10 ** rng.uniform(-2.3, -0.5, size=30)) + [0.0], n=3000, seed=seed)
    carriers = {HOOK: sorted(rng.permutation(30)[:5].tolist())}
    for draw in draw_controls({HOOK: profile}, carriers, kind=kind, n_draws=5, seed=seed):
        controls, against = draw.controls[HOOK], draw.carriers[HOOK]
        assert len(controls) == len(set(controls)) == len(against)
        assert not set(controls) & set(carriers[HOOK])
        assert set(against) <= set(carriers[HOOK])
        assert 30 not in controls
        assert draw.unmatched_share == pytest.approx(1 - len(against) / 5)


def test_matched_controls_stay_within_the_caliper_and_balance_where_equals_exist():
    rates = [0.01 * 1.15**i for i in range(25) for _ in range(4)]
    profile = population(rates)
    carriers = {HOOK: list(range(0, 100, 4))}
    for draw in draw_controls({HOOK: profile}, carriers, kind="rate", n_draws=20, seed=1):
        assert draw.unmatched_share == 0
        log_rate = np.log10(profile.firing_rate)
        gap = abs(np.sort(log_rate[draw.controls[HOOK]]) - np.sort(log_rate[draw.carriers[HOOK]]))
        assert gap.max() <= CALIPER + 1e-9


def test_mass_matching_looks_at_mass_not_at_rate():
    # carrier 0: rate 0.1, mass 0.1; feature 1 has its rate but a tenth of its mass, feature 2 its mass at half the rate
    profile = population([0.1, 0.1, 0.05], scale=[1.0, 0.1, 2.0])
    by = {
        kind: draw_controls({HOOK: profile}, {HOOK: [0]}, kind=kind, n_draws=1)[0].controls[HOOK]
        for kind in ("rate", "mass")
    }
    assert by == {"rate": [1], "mass": [2]}


def test_a_carrier_without_an_equal_is_unmatched():
    profile = population([0.4, 0.01, 0.011, 0.012])
    draw = draw_controls({HOOK: profile}, {HOOK: [0]}, kind="mass", n_draws=1)[0]
    assert draw.unmatched_share == 1
    assert draw.controls[HOOK] == []


def test_where_carriers_outnumber_the_rest_equal_subsets_are_compared():
    profile = population([0.02] * 10)
    draws = draw_controls({HOOK: profile}, {HOOK: list(range(7))}, kind="count", n_draws=30, seed=2)
    assert all(len(d.controls[HOOK]) == len(d.carriers[HOOK]) == 2 and d.subset for d in draws)  # half of three, up
    assert len({tuple(d.controls[HOOK]) for d in draws}) == 3
    assert len({tuple(d.carriers[HOOK]) for d in draws}) > 5


def test_in_subsets_the_unmatched_are_a_share_of_those_tried():
    profile = population([0.4] * 100 + [0.01] * 9 + [0.4])
    draws = draw_controls({HOOK: profile}, {HOOK: list(range(100))}, kind="mass", n_draws=20)
    assert all(d.subset and d.unmatched_share == pytest.approx(0.8) for d in draws)


def test_controls_that_are_systematically_lighter_are_no_equals(pocket_model, pocket_tokens, make_sae):
    # every carrier finds features within the caliper, and all of them are lighter
    profile = population([0.2] * 4 + [0.13] * 40)
    load = lh.joint_ablation(
        pocket_model,
        {HOOK: make_sae(d_sae=44)},
        {HOOK: [0, 1, 2, 3]},
        {HOOK: profile},
        pocket_tokens,
        controls=("mass",),
        n_draws=3,
    )
    assert load.balance["unmatched_share"].tolist() == [0.0]
    assert load.balance["smd_log_mass"].iloc[0] > 1
    assert load.verdicts == {"mass": "not testable"}


@pytest.fixture(scope="module")
def measured(pocket_model, pocket_tokens, make_sae):
    sae = make_sae(d_sae=48, k=12, seed=4)
    return sae, lh.profile_saes(pocket_model, {HOOK: sae}, pocket_tokens, step=4096)[HOOK]


def test_load_is_the_ablation_effect_and_its_p_counts_the_draws(pocket_model, pocket_tokens, measured):
    sae, profile = measured
    carriers = {HOOK: np.argsort(-profile.mass)[:4].tolist()}
    graph = nx.DiGraph()
    graph.add_nodes_from((HOOK, int(f)) for f in np.flatnonzero(profile.alive()))
    load = lh.joint_ablation(
        pocket_model,
        {HOOK: sae},
        carriers,
        {HOOK: profile},
        pocket_tokens,
        graph=graph,
        controls=("count", "rate"),
        n_draws=6,
    )
    effect = lh.ablation_effect(pocket_model, lh.FeatureAblation({HOOK: sae}, carriers), pocket_tokens)
    assert load.delta_ce == pytest.approx(effect.delta_ce, abs=1e-6)
    assert load.base_ce == pytest.approx(effect.base_ce, abs=1e-6)
    assert load.delta_ce_interval == pytest.approx(effect.delta_ce_interval, abs=1e-5)
    count = load.controls[load.controls["kind"] == "count"]
    assert len(count) == 6
    assert load.p_values["count"] == (1 + (count["delta_ce"] >= count["delta_ce_carriers"]).sum()) / 7
    # no node has an edge, so there are no roots, mids or leaves to draw from
    assert load.verdicts["count_root"] == "not testable"
    assert np.isnan(load.p_values["count_root"])
    again = lh.joint_ablation(
        pocket_model,
        {HOOK: sae},
        carriers,
        {HOOK: profile},
        pocket_tokens,
        graph=graph,
        controls=("count", "rate"),
        n_draws=6,
    )
    pd.testing.assert_frame_equal(load.controls, again.controls)


def test_above_a_tenth_unmatched_nothing_is_claimed(pocket_model, pocket_tokens, measured):
    sae, _ = measured
    lonely = population([0.5] + [0.01] * 47)
    load = lh.joint_ablation(
        pocket_model, {HOOK: sae}, {HOOK: [0]}, {HOOK: lonely}, pocket_tokens, controls=("mass",), n_draws=3
    )
    assert load.verdicts == {"mass": "not testable"}
    assert np.isnan(load.p_values["mass"])
    assert load.balance["unmatched_share"].tolist() == [1.0]
    assert load.controls.empty


def test_what_is_testable_and_what_is_beyond_is_the_callers_choice(pocket_model, pocket_tokens, measured):
    sae, _ = measured
    # the carrier's rate and mass are 1.6 times those of its only equals
    profile = population([0.16] + [0.1] * 20 + [0.01] * 27)

    def found(**knobs):
        load = lh.joint_ablation(
            pocket_model,
            {HOOK: sae},
            {HOOK: [0]},
            {HOOK: profile},
            pocket_tokens,
            controls=("mass",),
            n_draws=3,
            **knobs,
        )
        return load.verdicts["mass"], load.balance["unmatched_share"].iloc[0]

    assert found() == ("not testable", 0)  # the controls are lighter
    assert found(max_smd=float("inf"), max_p=1.0) == ("beyond", 0)
    assert found(max_smd=float("inf"), max_p=0.0) == ("within", 0)
    assert found(max_smd=float("inf"), caliper=0.1) == ("not testable", 1)
    assert found(max_smd=float("inf"), min_rate=0.2) == ("not testable", 1)  # nothing else is alive


def test_single_costs_are_those_of_single_ablations(pocket_model, pocket_tokens, measured):
    sae, profile = measured
    features = [int(f) for f in np.argsort(-profile.count)[[0, 20]]]
    table = lh.lifehistory.single_ablation(pocket_model, {HOOK: sae}, {HOOK: features}, pocket_tokens)
    scored = pocket_tokens.scored[pocket_tokens.valid].numpy()
    base = scored_losses(pocket_model, pocket_tokens)
    for row in table.itertuples():
        ablation = lh.FeatureAblation({HOOK: sae}, {HOOK: [row.feature]})
        change = scored_losses(pocket_model, pocket_tokens, ablation) - base
        firing = np.zeros(profile.n_rows, dtype=bool)
        firing[profile.acts.indices[slice(*profile.acts.indptr[row.feature : row.feature + 2])]] = True
        expected = change[firing[scored]].mean()
        assert row.per_firing == pytest.approx(expected, abs=1e-5)
        assert row.n_firings == firing[scored].sum()
        assert row.per_token == pytest.approx(expected * firing[scored].mean(), abs=1e-6)


def test_a_feature_that_never_fires_costs_nothing(pocket_model, pocket_tokens, make_sae):
    sae = make_sae(d_sae=16, k=16, seed=5)
    sae.b_enc.data[3] = -1e6
    table = lh.lifehistory.single_ablation(pocket_model, {HOOK: sae}, {HOOK: [3]}, pocket_tokens)
    assert table["n_firings"].tolist() == [0]
    assert np.isnan(table["per_firing"][0])
    assert table["per_token"][0] == 0


def test_a_random_direction_has_the_norm_of_what_is_removed(pocket_model, pocket_tokens, measured):
    sae, _ = measured
    ablation = lh.FeatureAblation({HOOK: sae}, {HOOK: [0, 1, 2, 3]})
    x = lh.collect_activations(pocket_model, HOOK, pocket_tokens[:1])[None]
    removed = x - ablation.fwd_hooks()[0][1](x, hook=None)
    pushed = x - RandomDirection(ablation, seed=1).fwd_hooks()[0][1](x, hook=None)
    np.testing.assert_allclose(pushed.norm(dim=-1), removed.norm(dim=-1), rtol=1e-4, atol=1e-5)
    cosine = (pushed * removed).sum(-1) / (removed.norm(dim=-1) * pushed.norm(dim=-1)).clamp_min(1e-9)
    assert float(cosine.abs().mean()) < 0.3


def test_parts_add_up_as_named(pocket_model, pocket_tokens, make_sae):
    other = "blocks.3.hook_resid_post"
    saes = {HOOK: make_sae(seed=4), other: make_sae(seed=6)}
    profiles = lh.profile_saes(pocket_model, saes, pocket_tokens)
    carriers = {HOOK: [1, 2], other: [3]}
    parts = lh.lifehistory.ablation_parts(pocket_model, saes, carriers, profiles, pocket_tokens).set_index("part")[
        "delta_ce"
    ]
    assert parts["sum of layers"] == pytest.approx(parts[HOOK] + parts[other])
    joint = lh.ablation_effect(pocket_model, lh.FeatureAblation(saes, carriers), pocket_tokens)
    assert parts["joint"] == pytest.approx(joint.delta_ce, abs=1e-6)


def test_roles_are_compared_with_an_effect_size():
    table = pd.DataFrame({"role": ["root"] * 4 + ["leaf"] * 4, "per_firing": [5.0, 6, 7, 8, 1, 2, 3, 4]})
    found = compare_roles(table)
    # Kruskal-Wallis of completely separated halves of 8: H = 16/3, epsilon squared = H / (n - 1)
    assert found["h"] == pytest.approx(16 / 3)
    assert found["epsilon_squared"] == pytest.approx(16 / 21)
    assert found["n"] == 8
    assert np.isnan(compare_roles(table.assign(per_firing=1.0))["p"])


def test_bad_input_is_named(pocket_model, pocket_tokens, measured):
    sae, profile = measured
    with pytest.raises(InputError, match="carrier set is empty"):
        lh.joint_ablation(pocket_model, {HOOK: sae}, {HOOK: []}, {HOOK: profile}, pocket_tokens)
    with pytest.raises(InputError, match=r"controls=\['norm'\]: name some of"):
        lh.joint_ablation(pocket_model, {HOOK: sae}, {HOOK: [1]}, {HOOK: profile}, pocket_tokens, controls=("norm",))
    with pytest.raises(InputError, match="no SAE or no profile for 'elsewhere'"):
        lh.joint_ablation(pocket_model, {HOOK: sae}, {"elsewhere": [1]}, {HOOK: profile}, pocket_tokens)
