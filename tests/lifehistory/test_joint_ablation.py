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
from tl_lifehist.inference.exchange import CALIPER, without_slope
from tl_lifehist.lifehistory.ablation_breakdown import RandomDirection, compare_roles
from tl_lifehist.lifehistory.control_kinds import Control
from tl_lifehist.lifehistory.controls import draw_controls, equals_of
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


@given(st.integers(0, 10_000), st.sampled_from(["count", "rate", "mass", "norm"]))
def test_sets_under_exchange_are_alive_and_of_equal_number(seed: int, kind: str):
    rng = np.random.default_rng(seed)
    profile = population(list(10 ** rng.uniform(-2.3, -0.5, size=30)) + [0.0], n=3000, seed=seed)
    carriers = {HOOK: sorted(rng.permutation(30)[:5].tolist())}
    for draw in draw_controls({HOOK: profile}, carriers, kind=kind, n_draws=5, seed=seed):
        controls, against = draw.controls[HOOK], draw.carriers[HOOK]
        assert len(controls) == len(set(controls)) == len(against)
        assert set(against) <= set(carriers[HOOK])
        assert 30 not in controls
        assert draw.unmatched_share == pytest.approx(1 - len(against) / 5)


def test_a_group_of_equals_is_no_wider_than_the_caliper():
    profile = population([0.01 * 1.15**i for i in range(25) for _ in range(4)])
    found = equals_of({HOOK: profile}, {HOOK: list(range(0, 100, 4))}, kind="rate")
    assert found.strata.unmatched_share == 0
    log_rate = np.log10(profile.firing_rate)
    assert max(np.ptp(log_rate[found.features[group]]) for group in found.strata.groups) <= CALIPER + 1e-9
    assert abs(found.smd(log_rate[found.features])) < 0.1


def test_mass_matching_looks_at_mass_not_at_rate():
    # carrier 0: rate 0.1, mass 0.1; feature 1 has its rate but a tenth of its mass, feature 2 its mass at half the rate
    profile = population([0.1, 0.1, 0.05], scale=[1.0, 0.1, 2.0])

    def equals(kind: str) -> set[int]:
        found = equals_of({HOOK: profile}, {HOOK: [0]}, kind=kind)
        return set(found.features[found.strata.inside].tolist())

    # the root mean square of feature 2 is 2 * sqrt(0.05), of carrier 0 sqrt(0.1): 0.15 decades apart
    assert {kind: equals(kind) for kind in ("rate", "mass", "norm", "count")} == {
        "rate": {0, 1},
        "mass": {0, 2},
        "norm": {0, 2},
        "count": {0, 1, 2},
    }


def test_a_carrier_without_an_equal_is_unmatched():
    profile = population([0.4, 0.01, 0.011, 0.012])
    draw = draw_controls({HOOK: profile}, {HOOK: [0]}, kind="mass", n_draws=1)[0]
    assert draw.unmatched_share == 1
    assert draw.controls[HOOK] == []


def test_others_are_taken_among_those_that_are_named_and_carriers_stay():
    profile = population([0.02] * 10)
    found = equals_of({HOOK: profile}, {HOOK: [0, 1]}, kind="count", among={HOOK: [5, 6, 7]})
    assert found.features.tolist() == [0, 1, 5, 6, 7]


def test_a_difference_within_one_layer_is_not_hidden_by_another():
    # in the first layer the carrier is heavier than its equal, in the second lighter: pooled they balance
    a, b = population([0.17, 0.1] * 20), population([0.1, 0.17] * 20)
    even = {"a": list(range(0, 40, 2)), "b": list(range(0, 40, 2))}
    found = equals_of({"a": a, "b": b}, even, kind="count")
    value = np.log10(np.concatenate([a.mass, b.mass]))
    assert abs(found.smd(value)) > 1


def test_equals_that_are_systematically_lighter_are_none(pocket_model, pocket_tokens, make_sae):
    # every carrier finds features within the caliper, and all of them are lighter
    profile = population([0.2] * 5 + [0.13] * 3)
    load = lh.joint_ablation(
        pocket_model,
        {HOOK: make_sae(d_sae=8)},
        {HOOK: [0, 1, 2, 3, 4]},
        {HOOK: profile},
        pocket_tokens,
        controls=("mass",),
        n_draws=3,
    )
    assert load.balance["unmatched_share"].tolist() == [0.0]
    assert load.balance["smd_log_mass"].iloc[0] > 0.25
    assert load.verdicts == {"mass": "not testable"}


@pytest.fixture(scope="module")
def measured(pocket_model, pocket_tokens, make_sae):
    sae = make_sae(d_sae=48, k=12, seed=4)
    return sae, lh.profile_saes(pocket_model, {HOOK: sae}, pocket_tokens, step=4096)[HOOK]


def test_load_is_the_ablation_effect_and_its_p_counts_the_draws(pocket_model, pocket_tokens, measured):
    sae, profile = measured
    carriers = {HOOK: np.argsort(-profile.mass)[:6].tolist()}
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
    assert count["delta_ce_carriers"].iloc[0] == pytest.approx(load.delta_ce)  # all of a layer are equals
    first = draw_controls({HOOK: profile}, carriers, kind="count", n_draws=6)[2].controls
    drawn = lh.ablation_effect(pocket_model, lh.FeatureAblation({HOOK: sae}, first), pocket_tokens)
    assert count["delta_ce"].iloc[2] == pytest.approx(drawn.delta_ce, abs=1e-6)
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


def test_without_equals_nothing_is_claimed(pocket_model, pocket_tokens, measured):
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
    # the carriers' rates and masses are 1.6 times those of their only equals
    profile = population([0.16] * 6 + [0.1] * 2 + [0.01] * 40)

    def found(**knobs):
        load = lh.joint_ablation(
            pocket_model,
            {HOOK: sae},
            {HOOK: [0, 1, 2, 3, 4, 5]},
            {HOOK: profile},
            pocket_tokens,
            controls=("mass",),
            n_draws=3,
            **knobs,
        )
        return load.verdicts["mass"], load.balance["unmatched_share"].iloc[0]

    assert found() == ("not testable", 0)  # the equals are lighter
    assert found(max_smd=float("inf"), max_p=1.0) == ("beyond", 0)
    assert found(max_smd=float("inf"), max_p=0.0) == ("within", 0)
    assert found(max_smd=float("inf"), caliper=0.1) == ("not testable", 1)
    assert found(max_smd=float("inf"), min_rate=0.15) == ("not testable", 1)  # nothing else is alive
    assert found(max_smd=float("inf"), block=4)[1] == pytest.approx(2 / 3)  # the first four stand alone


def test_total_mass_is_taken_out_of_the_cost(pocket_model, pocket_tokens, measured):
    sae, profile = measured
    carriers = {HOOK: np.argsort(-profile.mass)[:20:2].tolist()}
    knobs = {"controls": ("mass",), "n_draws": 8, "caliper": 3.0, "block": 40, "max_smd": float("inf")}
    load = lh.joint_ablation(pocket_model, {HOOK: sae}, carriers, {HOOK: profile}, pocket_tokens, **knobs)
    sets = draw_controls({HOOK: profile}, carriers, kind="mass", n_draws=8, caliper=3.0, block=40)
    mass = [profile.mass[d.controls[HOOK]].sum() for d in sets]
    own = profile.mass[sets[0].carriers[HOOK]].sum()
    table = load.controls
    expected = without_slope(table["delta_ce_carriers"][0], table["delta_ce"].to_numpy(), own, np.array(mass))
    np.testing.assert_allclose(table["adjusted"], expected.draws)
    assert load.balance["carriers"][0] == pytest.approx(expected.observed)
    assert load.p_values["mass"] == expected.p
    assert abs(expected.observed - table["delta_ce_carriers"][0]) > 1e-4


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
    with pytest.raises(InputError, match=r"controls=\['width'\]: name some of"):
        lh.joint_ablation(pocket_model, {HOOK: sae}, {HOOK: [1]}, {HOOK: profile}, pocket_tokens, controls=("width",))
    with pytest.raises(InputError, match="no SAE or no profile for 'elsewhere'"):
        lh.joint_ablation(pocket_model, {HOOK: sae}, {"elsewhere": [1]}, {HOOK: profile}, pocket_tokens)


@pytest.mark.parametrize(
    "measure", [lambda p: "heavy", lambda p: p.mass[:2], lambda p: -p.mass, lambda p: p.mass * np.nan]
)
def test_a_measure_of_ones_own_gives_a_number_for_each_feature(measure):
    mine = Control("mine", "as many features of mine", "mine", measure)
    with pytest.raises(InputError, match="control 'mine' must give one number for each of the 3 features"):
        mine.of_features(population([0.1, 0.2, 0.3]))
