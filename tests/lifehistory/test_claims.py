from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from planted import HOOK, latent, snapshot

from tl_lifehist.claims import Claim, against_draws, claims_table
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory import ablation_claims, claims
from tl_lifehist.lifehistory.config import Verdicts
from tl_lifehist.lifehistory.lineages import trace_lineages

RNG = np.random.default_rng(0)


def test_a_claim_is_beyond_only_outside_its_null_on_the_named_side():
    draws = np.arange(100.0)

    def verdict(observed: float, draws: np.ndarray = draws, **knobs: bool) -> str:
        return against_draws(Claim("c", "a claim", observed, n=5), draws, **knobs).verdict

    assert verdict(200.0) == "beyond"
    assert verdict(50.0) == verdict(-50.0) == "within"
    assert verdict(-50.0, two_sided=True) == "beyond"
    assert verdict(float("nan")) == verdict(1.0, np.array([])) == "not testable"
    found = against_draws(Claim("c", "a claim", 200.0), draws)
    assert (found.null, found.p) == (49.5, 1 / 101)


def test_claims_of_one_id_are_refused():
    one = Claim("c", "a claim", 1.0)
    assert claims_table([one])["claim"].tolist() == ["a claim"]
    with pytest.raises(InputError, match="these stand twice: c"):
        claims_table([one, one])


def world(spans: list[tuple[int, int]], steps: tuple[int, ...]):
    codes = latent(3000, len(spans), seed=1)
    profiles = {}
    for t, step in enumerate(steps):
        present = [i for i, (start, end) in enumerate(spans) if start <= t < end]
        profiles[step, HOOK], _ = snapshot(codes, present, step=step, width=len(spans), seed=t)
    return trace_lineages(profiles)


def test_equal_counts_in_unequal_transitions_are_not_faster():
    # one birth and one death in every transition: the rate ratio is the ratio of lengths, and says nothing
    spans = [(0, 4)] * 30 + [(0, t + 1) for t in range(3)] * 4 + [(t + 1, 4) for t in range(3)] * 4
    row = claims._early_rate(world(spans, (0, 10, 100, 1000)), RNG, Verdicts())
    assert row.observed == pytest.approx(row.null) == pytest.approx((8 / 10) / (16 / 990))
    assert row.verdict == "within"
    early = [(0, 4)] * 10 + [(0, 1)] * 60 + [(0, 2), (0, 3)]
    assert claims._early_rate(world(early, (0, 10, 100, 1000)), RNG, Verdicts()).verdict == "beyond"
    never = claims._early_rate(world([(0, 4)] * 5, (0, 10, 100, 1000)), RNG, Verdicts())
    assert never.verdict == "not testable"


def deaths(match_rate: float, floor: float) -> dict[str, pd.DataFrame]:
    row = {"kind": "death", "step_from": 0, "step_to": 8, "n_alive": 400, "match_rate": match_rate}
    return {"events": pd.DataFrame([row | {"floor_data": floor, "floor_init": floor / 2}])}


@pytest.mark.parametrize(
    ("rate", "floor", "verdict"), [(0.3, 0.8, "beyond"), (0.8, 0.8, "within"), (0.9, 0.8, "within")]
)
def test_features_change_only_beyond_the_noise_of_their_training(rate: float, floor: float, verdict: str):
    (row,) = claims._persistence(deaths(rate, floor), "data", RNG, Verdicts())
    assert row.verdict == verdict
    assert row.null == pytest.approx(1 - floor, abs=0.01)


def test_no_floor_no_alive_features_and_a_floor_of_zero_do_not_end_the_run():
    assert next(claims._persistence(deaths(0.5, float("nan")), "data", RNG, Verdicts())).verdict == "not testable"
    nobody = deaths(0.5, 0.5)
    nobody["events"]["n_alive"] = 0
    assert next(claims._persistence(nobody, "data", RNG, Verdicts())).verdict == "not testable"
    assert next(claims._persistence(deaths(0.0, 0.0), "data", RNG, Verdicts())).verdict == "within"


def test_roles_are_compared_among_features_drawn_whatever_their_history():
    rows = [(f"h{i % 2}", role, cost, True) for role, cost in (("root", 5.0), ("leaf", 1.0)) for i in range(12)]
    single = pd.DataFrame(rows, columns=["hook_name", "role", "per_firing", "sampled"])
    single["per_firing"] += np.random.default_rng(3).random(len(single))
    assert ablation_claims.single_claim({"single": single}, RNG, Verdicts()).verdict == "beyond"
    # carriers added by hand must not decide it
    carriers = single.assign(sampled=False)
    same = single.assign(per_firing=np.random.default_rng(4).random(len(single)))
    row = ablation_claims.single_claim({"single": pd.concat([same, carriers])}, RNG, Verdicts())
    assert row.verdict == "within"
    assert row.n == 24


@pytest.mark.parametrize(("gap", "verdict"), [(0.6, "beyond"), (0.1, "within")])
def test_function_before_direction_is_judged_against_two_trainings_of_one_model(gap: float, verdict: str):
    columns = [
        "step",
        "s_fun",
        "s_fun_low",
        "s_fun_high",
        "s_dir",
        "s_dir_low",
        "s_dir_high",
        "null_fun",
        "null_dir",
        "n",
    ]
    table = pd.DataFrame(
        [(1, 0.8, 0.79, 0.81, 0.8 - gap, 0.79 - gap, 0.81 - gap, 0, 0, 50), (9, *[1.0] * 6, 0, 0, 80)], columns=columns
    )
    noise = pd.DataFrame([("data", 0.85, 0.6, 90), ("init", 0.8, 0.2, 60)], columns=["level", "s_fun", "s_dir", "n"])
    row = claims._direction({"direction": table, "direction_noise": noise}, "data", Verdicts())
    assert row.null == pytest.approx(0.25)
    assert row.verdict == verdict
