from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tl_lifehist.claims import Claim, against_null, claims_table, decide, sentence
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory import ablation_claims, claims
from tl_lifehist.lifehistory.config import Verdicts
from tl_lifehist.nulls import Null

RNG = np.random.default_rng(0)
DRAWS = np.arange(100.0)


def headline(p: float, name: str = "c") -> Claim:
    return Claim(name, "a claim", headline=True, p=p)


def test_a_claim_beside_draws_has_its_effect_and_the_nulls_spread():
    found = against_null(Claim("c", "a claim", headline=True), Null(200.0, DRAWS))
    assert (found.observed, found.null, found.effect) == (200.0, 49.5, 150.5)
    assert found.p == 1 / 101
    assert (found.low, found.high) == pytest.approx((150.5 - 47.025, 150.5 + 47.025))
    assert found.detectable == pytest.approx(2.486 * DRAWS.std(), rel=1e-3)
    assert against_null(Claim("c", "a claim", headline=True), Null(-50.0, DRAWS)).p == 1
    assert against_null(Claim("c", "a claim", headline=True), Null(-50.0, DRAWS), two_sided=True).p == 2 / 101


def test_what_is_not_a_headline_has_no_p_and_no_verdict():
    found = against_null(Claim("c", "a claim"), Null(200.0, DRAWS))
    assert np.isnan(found.p)
    assert found.verdict == "descriptive"
    assert np.isfinite([found.low, found.high]).all()


@pytest.mark.parametrize("null", [Null(1.0, np.zeros(0)), Null(float("nan"), DRAWS)])
def test_without_draws_or_a_value_nothing_is_tested(null: Null):
    assert against_null(Claim("c", "a claim", headline=True), null).verdict == "not testable"


def test_headline_claims_are_controlled_together():
    p = [0.001, 0.02, 0.03, 0.2]
    found = decide([headline(v, str(i)) for i, v in enumerate(p)])
    # Benjamini and Hochberg 1995: p times m over its rank, never falling
    assert [one.q for one in found] == pytest.approx([0.004, 0.04, 0.04, 0.2])
    assert [one.verdict for one in found] == ["beyond", "beyond", "beyond", "within"]
    more = decide([*(headline(v, str(i)) for i, v in enumerate(p)), *(headline(0.9, f"n{i}") for i in range(4))])
    assert [one.verdict for one in more][:3] == ["beyond", "within", "within"]


def test_what_cannot_be_tested_costs_the_others_nothing():
    silent = [Claim(f"s{i}", "a claim", headline=True).because("no carriers") for i in range(5)]
    found = decide([headline(0.04), *silent])
    assert (found[0].q, found[0].verdict) == (0.04, "beyond")
    assert {one.verdict for one in found[1:]} == {"not testable"}


def test_nine_headlines_are_refused():
    decide([headline(0.5, str(i)) for i in range(8)])
    with pytest.raises(InputError, match="at most 8 headline claims"):
        decide([headline(0.5, str(i)) for i in range(9)])


def test_how_often_a_test_errs_stands_beside_it():
    found = decide([headline(0.04), Claim("d", "described")], false_positives={"c": 0.06, "d": 0.5})
    assert found[0].false_positives == 0.06
    assert np.isnan(found[1].false_positives)


def test_a_sentence_says_what_was_found_or_what_would_have_been():
    words = ("It costs {effect} for {n}.", "it costs more")
    one = Claim("c", "a claim", headline=True, p=0.01, effect=1.5, low=1.0, high=2.0, unit="nats", n=7, detectable=0.8)
    beyond, within = decide([one])[0], decide([Claim(**{**one.__dict__, "p": 0.5})])[0]
    assert sentence(beyond, *words).sentence == "It costs 1.5 [1, 2] for 7."
    expected = "No sign that it costs more: 1.5 [1, 2] nats; 0.8 would be found four times out of five."
    assert sentence(within, *words).sentence == expected
    near = decide([Claim(**{**one.__dict__, "p": 0.04}), headline(0.9, "d")])[0]
    assert sentence(near, *words).sentence.startswith("Not certain that it costs more")
    silent = Claim("c", "a claim", headline=True, note="other").because("no carriers")
    assert sentence(silent, *words).sentence == "Whether it costs more cannot be tested here: no carriers."


def test_claims_of_one_id_are_refused():
    one = Claim("c", "a claim")
    assert claims_table([one])["claim"].tolist() == ["a claim"]
    with pytest.raises(InputError, match="these stand twice: c"):
        claims_table([one, one])


def events(fractions: list[list[float]], steps: tuple[int, ...] = (0, 10, 100, 1000)) -> dict[str, pd.DataFrame]:
    rows = [
        {
            "kind": kind,
            "hook_name": f"h{h}",
            "step_from": start,
            "step_to": end,
            "fraction": f,
            "per_step": 100 * f / (end - start),
            "per_log_step": 100 * f,
        }
        for h, of in enumerate(fractions)
        for start, end, f in zip(steps[:-1], steps[1:], of, strict=True)
        for kind in ("both", "death")
    ]
    return {"events": pd.DataFrame(rows)}


def test_equal_shares_in_unequal_transitions_are_not_faster():
    even = [[0.3, 0.3 + e, 0.3 - e] for e in (0.01, 0.03, -0.02, 0.04)]
    row = claims._early(events(even), Verdicts())
    assert row.effect == pytest.approx(0, abs=1e-12)
    assert not row.p <= 0.05
    assert "mean rate per step" in row.note
    early = [[0.8 + e, 0.3, 0.2] for e in (0.01, 0.03, -0.02, 0.04)]
    row = claims._early(events(early), Verdicts())
    assert (row.observed, row.null) == pytest.approx((0.815, 0.25))
    assert row.p < 0.001
    assert (row.n, row.of) == (4, "hook points")
    assert claims._early(events(early[:2]), Verdicts()).verdict == "not testable"
    assert claims._early(events([[0.5]], steps=(0, 10)), Verdicts()).verdict == "not testable"


def deaths(rates: list[float], floors: list[float]) -> dict[str, pd.DataFrame]:
    row = {"kind": "death", "step_from": 0, "step_to": 8, "n_alive": 400}
    rows = [
        row | {"hook_name": f"h{i}", "match_rate": r, "floor_data": f, "floor_init": f / 2}
        for i, (r, f) in enumerate(zip(rates, floors, strict=True))
    ]
    return {"events": pd.DataFrame(rows)}


def test_features_change_only_beyond_the_noise_of_their_training():
    floors = [0.8, 0.82, 0.78, 0.81]
    changed, one = claims._change(deaths([0.3, 0.35, 0.25, 0.32], floors), "data")
    assert (changed.id, one.id) == ("features.change", "features.change.0_8")
    assert changed.p < 0.001
    assert (changed.observed, changed.null) == pytest.approx((0.695, 0.1975))
    assert changed.effect == pytest.approx(0.4975)
    assert (one.verdict, one.effect) == ("descriptive", pytest.approx(0.4975))
    # at the level that the run's own way to initialise has
    assert next(claims._change(deaths([0.3, 0.35, 0.25, 0.32], floors), "init")).null == pytest.approx(1 - 0.8025 / 2)
    same = next(claims._change(deaths([0.81, 0.8, 0.79, 0.82], floors), "data"))
    assert same.p > 0.05


def test_no_floor_no_alive_features_and_a_floor_of_zero_do_not_end_the_run():
    for table in (deaths([0.5], [float("nan")]), deaths([], [])):
        if len(table["events"]) == 0:
            table = {"events": deaths([0.5], [0.5])["events"].assign(n_alive=0)}
        (only,) = claims._change(table, "data")
        assert only.verdict == "not testable"
        assert "trained a second time" in only.note
    first, second = claims._change(deaths([0.0] * 3, [0.0] * 3), "data")
    assert first.verdict == "not testable"  # no spread
    assert "- to -" in second.note


def test_roles_are_compared_among_features_drawn_whatever_their_history():
    rows = [(f"h{i % 2}", role, cost, True) for role, cost in (("root", 5.0), ("leaf", 1.0)) for i in range(12)]
    single = pd.DataFrame(rows, columns=["hook_name", "role", "per_firing", "sampled"])
    single["per_firing"] += np.random.default_rng(3).random(len(single))
    found = ablation_claims.single_claim({"single": single}, RNG, Verdicts())
    assert found.low > 0.3
    assert "p 0.001" in found.note
    # carriers added by hand must not decide it
    carriers = single.assign(sampled=False)
    same = single.assign(per_firing=np.random.default_rng(4).random(len(single)))
    row = ablation_claims.single_claim({"single": pd.concat([same, carriers])}, RNG, Verdicts())
    assert row.low < 0 < row.high
    assert row.n == 24
    few = ablation_claims.single_claim({"single": single}, RNG, Verdicts(min_role_features=25))
    assert np.isnan(few.effect)


def directions(gaps: list[float], raw: float = 0.0) -> dict[str, pd.DataFrame]:
    columns = ["step", "hook_name", "s_fun", "s_dir", "s_dir_aligned", "n"]
    rows = [(1, f"h{i}", 0.8, 0.8 - g - raw, 0.8 - g, 20) for i, g in enumerate(gaps)]
    end = [(9, f"h{i}", 1.0, 1.0, 1.0, 30) for i in range(len(gaps))]
    noise = [(level, f"h{i}", 0.85, 0.0, 0.85 - f, 9) for level, f in (("data", 0.25), ("init", 0.6)) for i in range(4)]
    return {
        "direction": pd.DataFrame({"step": [1, 9]}),
        "direction_by_hook": pd.DataFrame(rows + end, columns=columns),
        "direction_noise": pd.DataFrame(noise, columns=["level", *columns[1:]]),
    }


def test_function_before_direction_is_judged_against_two_trainings_of_one_model():
    row = claims._direction(directions([0.6, 0.62, 0.58, 0.61]), "data", Verdicts())
    assert (row.observed, row.null) == pytest.approx((0.6025, 0.25))
    assert row.p < 0.01
    assert claims._direction(directions([0.2, 0.3, 0.22, 0.28]), "data", Verdicts()).p > 0.3
    # a turn of the whole basis is no change of direction
    turned = claims._direction(directions([0.2, 0.3, 0.22, 0.28], raw=0.5), "data", Verdicts())
    assert turned.p > 0.3
    assert "raw directions 0.75" in turned.note
    assert claims._direction(directions([0.6, 0.62, 0.58, 0.61]), "init", Verdicts()).p > 0.3
    few = claims._direction(directions([0.6] * 4), "data", Verdicts(min_lineages=81))
    assert few.verdict == "not testable"
