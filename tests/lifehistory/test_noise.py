from __future__ import annotations

import numpy as np
import pytest
from planted import HOOK, latent, snapshot

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory import noise


def test_rematch_rate_is_the_share_that_both_trainings_found():
    codes = latent(3000, 10, seed=1)
    base, _ = snapshot(codes, list(range(10)), step=5, width=12, seed=0)
    data, _ = snapshot(codes, list(range(8)), step=5, width=12, seed=1)
    init, _ = snapshot(codes, list(range(5)), step=5, width=12, seed=2)
    table = noise.rematch_table({(5, HOOK): base}, {(5, "data1"): {HOOK: data}, (5, "init1"): {HOOK: init}})
    assert table["rate"].tolist() == [0.8, 0.5]
    assert table["level"].tolist() == ["data", "init"]
    assert noise.floors(table, HOOK, 1000) == {"data": 0.8, "init": 0.5}


def test_floors_come_from_the_nearest_checkpoint_in_log_steps():
    import pandas as pd

    rows = [(0, HOOK, "data", "data1", 1, 4, 0.25), (1000, HOOK, "data", "data1", 3, 4, 0.75)]
    table = pd.DataFrame(rows, columns=["step", "hook_name", "level", "replicate", "matched", "n_alive", "rate"])
    assert noise.floors(table, HOOK, 10)["data"] == 0.25
    assert noise.floors(table, HOOK, 100)["data"] == 0.75
    assert np.isnan(noise.floors(table, HOOK, 10)["init"])


def test_frequencies_follow_the_features_of_the_base():
    codes = latent(3000, 3, seed=2)
    base, place = snapshot(codes, [0, 1, 2], step=1, width=3, seed=0)
    others = [
        snapshot(codes, present, step=1, width=3, seed=s)[0] for s, present in enumerate(([0, 1, 2], [0, 1], [0]), 1)
    ]
    found = noise.rematch_frequencies(base, others)
    by_feature = dict(zip(np.flatnonzero(base.alive()).tolist(), found.sum(axis=1).tolist(), strict=True))
    assert by_feature == {place[0]: 3, place[1]: 2, place[2]: 1}
    stable = noise.seed_stable({HOOK: base}, [{HOOK: other} for other in others])
    assert stable == {HOOK: [place[0]]}


@pytest.mark.parametrize("tries", [3, 60])
def test_a_model_that_never_changes_keeps_stable_features_and_loses_unstable_ones(tries: int):
    always, never = np.ones((200, tries)), np.zeros((200, tries))
    knobs = {"n_snapshots": 6, "min_snapshots": 4, "seed": 1}
    assert noise.frozen_null({HOOK: always}, **knobs).mean > 196
    assert noise.frozen_null({HOOK: never}, **knobs).mean < 1
    # half of the features always, half never: a common rate of 0.5 would keep 200 * 0.5^3 = 25
    mixed = noise.frozen_null({HOOK: np.concatenate([always[:100], never[:100]])}, **knobs)
    assert mixed.low < 100 < mixed.high
    assert 85 < mixed.mean < 115


def test_three_trainings_suffice_for_the_number_that_stays():
    # 60 % of the features are re-matched with 0.98, 40 % with 0.2: 120 * 0.98^3 + 80 * 0.2^3 = 113.6 are carriers
    rng = np.random.default_rng(5)
    means = []
    for _ in range(10):
        q = np.where(np.arange(200) < 120, 0.98, 0.2)
        matched = (rng.random((200, 3)) < q[:, None]).astype(float)
        null = noise.frozen_null({HOOK: matched}, n_snapshots=6, min_snapshots=4, n_draws=200, seed=2)
        means.append(null.mean)
        assert null.low < 113.6 < null.high
    assert np.mean(means) == pytest.approx(113.6, rel=0.06)


def test_the_frozen_null_of_a_common_rate_is_the_binomial_one():
    matched = (np.random.default_rng(0).random((4000, 400)) < 0.5).astype(float)
    null = noise.frozen_null({HOOK: matched}, n_snapshots=3, min_snapshots=3, n_draws=200)
    assert null.mean == pytest.approx(4000 * 0.25, rel=0.03)


def test_one_further_training_is_too_few():
    with pytest.raises(InputError, match="at least two further trainings"):
        noise.frozen_null({HOOK: np.ones((5, 1))}, n_snapshots=3, min_snapshots=2)


def test_shuffled_rows_leave_no_carrier():
    codes = latent(3000, 20, seed=3)
    profiles = {(s, HOOK): snapshot(codes, list(range(20)), step=s, width=20, seed=s)[0] for s in (0, 10, 100)}
    assert noise.unrelated_null(profiles).draws.tolist() == [0, 0, 0]
