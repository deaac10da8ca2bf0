from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from planted import HOOK, latent, snapshot

from tl_lifehist.lifehistory import ablation_claims, claims
from tl_lifehist.lifehistory.lineages import trace_lineages

RNG = np.random.default_rng(0)


def test_a_claim_is_beyond_only_outside_its_null_on_the_named_side():
    draws = np.arange(100.0)
    assert claims.claim("c", 200.0, draws, 5, "")["verdict"] == "beyond"
    assert claims.claim("c", 50.0, draws, 5, "")["verdict"] == "within"
    assert claims.claim("c", -50.0, draws, 5, "")["verdict"] == "within"
    assert claims.claim("c", -50.0, draws, 5, "", two_sided=True)["verdict"] == "beyond"
    row = claims.claim("c", 200.0, draws, 5, "")
    assert (row["null"], row["p"]) == (49.5, 1 / 101)
    assert claims.claim("c", float("nan"), draws, 5, "")["verdict"] == "not testable"
    assert claims.claim("c", 1.0, np.array([]), 5, "")["verdict"] == "not testable"


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
    row = claims._early_rate(world(spans, (0, 10, 100, 1000)), RNG)
    assert row["observed"] == pytest.approx(row["null"]) == pytest.approx((8 / 10) / (16 / 990))
    assert row["verdict"] == "within"
    early = [(0, 4)] * 10 + [(0, 1)] * 60 + [(0, 2), (0, 3)]
    assert claims._early_rate(world(early, (0, 10, 100, 1000)), RNG)["verdict"] == "beyond"
    never = claims._early_rate(world([(0, 4)] * 5, (0, 10, 100, 1000)), RNG)
    assert never["verdict"] == "not testable"


def deaths(match_rate: float, floor: float) -> dict[str, pd.DataFrame]:
    row = {"kind": "death", "step_from": 0, "step_to": 8, "n_alive": 400, "match_rate": match_rate}
    return {"events": pd.DataFrame([row | {"floor_data": floor, "floor_init": floor / 2}])}


@pytest.mark.parametrize(
    ("rate", "floor", "verdict"), [(0.3, 0.8, "beyond"), (0.8, 0.8, "within"), (0.9, 0.8, "within")]
)
def test_features_change_only_beyond_the_noise_of_their_training(rate: float, floor: float, verdict: str):
    (row,) = claims._persistence(deaths(rate, floor), "data", RNG)
    assert row["verdict"] == verdict
    assert row["null"] == pytest.approx(1 - floor, abs=0.01)


def test_no_floor_no_alive_features_and_a_floor_of_zero_do_not_end_the_run():
    assert claims._persistence(deaths(0.5, float("nan")), "data", RNG)[0]["verdict"] == "not testable"
    nobody = deaths(0.5, 0.5)
    nobody["events"]["n_alive"] = 0
    assert claims._persistence(nobody, "data", RNG)[0]["verdict"] == "not testable"
    assert claims._persistence(deaths(0.0, 0.0), "data", RNG)[0]["verdict"] == "within"


def test_roles_are_compared_among_features_drawn_whatever_their_history():
    rows = [(f"h{i % 2}", role, cost, True) for role, cost in (("root", 5.0), ("leaf", 1.0)) for i in range(12)]
    single = pd.DataFrame(rows, columns=["hook_name", "role", "per_firing", "sampled"])
    single["per_firing"] += np.random.default_rng(3).random(len(single))
    assert ablation_claims.single_claim({"single": single}, RNG)["verdict"] == "beyond"
    # carriers added by hand must not decide it
    carriers = single.assign(sampled=False)
    same = single.assign(per_firing=np.random.default_rng(4).random(len(single)))
    row = ablation_claims.single_claim({"single": pd.concat([same, carriers])}, RNG)
    assert row["verdict"] == "within"
    assert row["n"] == 24


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
    row = claims._direction({"direction": table, "direction_noise": noise}, "data")
    assert row["null"] == pytest.approx(0.25)
    assert row["verdict"] == verdict
