from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from tl_lifehist.errors import InputError
from tl_lifehist.sufficiency.ranks import reordered, spearman
from tl_lifehist.sufficiency.trajectories import COLUMNS, trajectories

STEPS = (0, 1, 4, 16, 64, 256, 1024, 4096)
Value = Callable[[int, int, int], float]


def grid(
    mask: str,
    value: Value,
    *,
    n_steps: int = 8,
    n_layers: int = 6,
    methods: tuple[str, ...] = ("svd", "ica"),
    site: str = "hook_mlp_out",
    quantity: str = "relative_kl",
    seeds: tuple[int, ...] = (0,),
) -> pd.DataFrame:
    """An evaluation table with `value(step's number, layer, method's number)` in every cell."""
    rows = [
        {
            "step": STEPS[t],
            "hook_name": f"blocks.{layer}.{site}",
            "site": site,
            "layer": layer,
            "method": method,
            "mask": mask,
            "seed": seed,
            quantity: float(value(t, layer, m)),
        }
        for t in range(n_steps)
        for layer in range(n_layers)
        for m, method in enumerate(methods)
        for seed in seeds
    ]
    return pd.DataFrame(rows)


def one(table: pd.DataFrame, against: str, **chosen: str) -> dict[str, Any]:
    rows = table[table["against"] == against]
    for column, value in chosen.items():
        rows = rows[rows[column] == value]
    assert len(rows) == 1
    return rows.iloc[0].to_dict()


def noise(seed: int) -> Value:
    rng = np.random.default_rng(seed)
    values = rng.random((len(STEPS), 20, 4))
    return lambda t, layer, m: values[t, layer, m]


flat = lambda t, layer, m: 0.5  # noqa: E731


def test_within_strata_the_trends_show_that_pooling_hides():
    table = pd.concat([grid("downstream", lambda t, layer, m: -t + 100 * layer), grid("empty", flat)])
    found = trajectories(table, quantities=["relative_kl"], n_bootstrap=50)
    assert list(found) == COLUMNS
    assert len(found) == 2
    checkpoint, depth = one(found, "checkpoint"), one(found, "depth")
    assert (checkpoint["stratified"], depth["stratified"]) == (-1, 1)
    assert (checkpoint["n_cells"], checkpoint["n_strata"], checkpoint["n_constant"]) == (96, 12, 0)
    assert (depth["n_strata"], depth["n_constant"]) == (16, 0)
    assert checkpoint["stratified_low"] == checkpoint["stratified_high"] == -1
    # pooled, the layers drown the checkpoints: 1 / 6 of the spread of the ranks
    assert -0.3 < checkpoint["pooled"] < 0
    assert depth["pooled"] > 0.95


def test_pooled_and_stratified_agree_with_scipy():
    value = noise(0)
    table = grid("downstream", value, methods=("svd", "ica", "nmf"))
    found = one(trajectories(table, n_bootstrap=10), "checkpoint")
    assert found["pooled"] == pytest.approx(spearmanr(table["step"], table["relative_kl"]).statistic)
    strata = [spearmanr(g["step"], g["relative_kl"]).statistic for _, g in table.groupby(["layer", "method"])]
    assert found["stratified"] == pytest.approx(np.mean(strata))
    depth = one(trajectories(table, n_bootstrap=10), "depth")
    strata = [spearmanr(g["layer"], g["relative_kl"]).statistic for _, g in table.groupby(["step", "method"])]
    assert depth["stratified"] == pytest.approx(np.mean(strata))


def test_a_trend_of_the_mask_alone_is_claimed():
    trend = noise(1)
    masks = [
        grid("downstream", lambda t, layer, m: t + trend(t, layer, m)),
        grid("empty", noise(2)),
        grid("full", lambda t, layer, m: -t),
    ]
    found = one(trajectories(pd.concat(masks)), "checkpoint")
    assert found["pooled_low"] > 0
    assert found["p"] <= 0.01
    assert abs(found["empty"]) < 0.3
    assert found["full"] == -1
    assert found["claimed"]
    depth = one(trajectories(pd.concat(masks)), "depth")
    assert not depth["claimed"]
    assert depth["pooled_low"] < 0 < depth["pooled_high"]


@pytest.mark.parametrize(
    ("empty", "claimed"),
    [
        (lambda t, layer, m: t, False),  # the same trend, as a normaliser makes it
        (lambda t, layer, m: -t, True),
        (flat, True),  # does not vary: has no correlation
        (None, False),  # no control
    ],
)
def test_the_empty_mask_decides_what_is_claimed(empty: Value | None, claimed: bool):
    jitter = noise(3)
    table = grid("downstream", lambda t, layer, m: t + 3 * jitter(t, layer, m))
    if empty is not None:
        table = pd.concat([table, grid("empty", empty)])
    found = one(trajectories(table, n_bootstrap=400), "checkpoint")
    assert found["pooled_low"] > 0
    assert found["claimed"] == claimed
    assert np.isnan(found["empty"]) == (empty in (flat, None))


def test_an_empty_mask_inside_the_interval_forbids_the_claim_and_a_weak_one_does_not():
    jitter, other = noise(4), noise(5)
    table = grid("downstream", lambda t, layer, m: t + 6 * jitter(t, layer, m))
    same = pd.concat([table, grid("empty", lambda t, layer, m: t + 6.5 * other(t, layer, m))])
    found = one(trajectories(same), "checkpoint")
    assert found["pooled_low"] <= found["empty"] < found["pooled"]
    assert not found["claimed"]
    weak = pd.concat([table, grid("empty", lambda t, layer, m: t + 40 * other(t, layer, m))])
    found = one(trajectories(weak), "checkpoint")
    assert 0 < found["empty"] < found["pooled_low"]
    assert found["claimed"]


def test_a_trend_that_the_strata_reverse_is_not_claimed():
    """Falls with the checkpoint in each layer, but the deep layers were only measured late."""
    table = pd.concat(
        [grid("downstream", lambda t, layer, m: -t + 50 * layer, n_layers=4), grid("empty", flat, n_layers=4)]
    )
    table = table[[abs(2 * row.layer - STEPS.index(row.step)) <= 1 for row in table.itertuples()]]
    found = one(trajectories(table), "checkpoint")
    assert found["pooled_low"] > 0
    assert found["p"] < 0.05
    assert found["stratified"] < 0
    assert not found["claimed"]


@pytest.mark.parametrize(("n_steps", "claimed"), [(4, False), (5, True)])
def test_fewer_than_five_checkpoints_are_in_order_by_chance_too_often(n_steps: int, claimed: bool):
    table = pd.concat(
        [grid(mask, v, n_steps=n_steps) for mask, v in (("downstream", lambda t, *_: t), ("empty", flat))]
    )
    found = one(trajectories(table), "checkpoint")
    assert (found["pooled"], found["pooled_low"], found["pooled_high"]) == (1, 1, 1)
    assert found["p"] == pytest.approx({4: 2 / 24, 5: 2 / 120}[n_steps], abs=0.03)
    assert found["claimed"] == claimed


def test_layers_that_merely_differ_are_no_trend_with_depth():
    """One offset per layer, the same at every checkpoint: cells agree, but there are only six of them in truth."""
    wrong = {"interval": 0, "claimed": 0}
    for seed in range(40):
        offset, jitter = np.random.default_rng(seed).random(6), noise(seed + 100)
        table = pd.concat([grid("downstream", lambda t, l, m: offset[l] + 0.1 * jitter(t, l, m)), grid("empty", flat)])  # noqa: B023, E741
        found = one(trajectories(table, n_bootstrap=200), "depth")
        wrong["interval"] += found["pooled_low"] * found["pooled_high"] > 0
        wrong["claimed"] += found["claimed"]
    assert wrong["interval"] > 20
    assert wrong["claimed"] <= 6


def test_a_constant_stratum_is_left_out_and_counted():
    table = grid("downstream", lambda t, layer, m: 0.25 if layer < 2 else t)
    found = one(trajectories(table, n_bootstrap=20), "checkpoint")
    assert (found["stratified"], found["n_strata"], found["n_constant"]) == (1, 8, 4)
    constant = trajectories(grid("downstream", flat), n_bootstrap=20)
    for column in ("pooled", "pooled_low", "pooled_high", "stratified", "stratified_low", "stratified_high", "p"):
        assert constant[column].isna().all()
    assert constant["n_strata"].tolist() == [0, 0]
    assert constant["n_constant"].tolist() == [12, 16]
    assert not constant["claimed"].any()


def test_rounding_is_no_trajectory():
    rng = np.random.default_rng(0)
    table = grid("downstream", lambda t, layer, m: 1 - 1e-8 * t * rng.random())
    assert np.isnan(one(trajectories(table, n_bootstrap=5), "checkpoint")["pooled"])


def test_sites_and_masks_are_never_pooled():
    parts = [
        grid("downstream", lambda t, layer, m: t),
        grid("empty", lambda t, layer, m: t),
        grid("reconstruction", lambda t, layer, m: layer),
        grid("downstream", lambda t, layer, m: -t, site="hook_resid_post"),
        grid("empty", lambda t, layer, m: layer, site="hook_resid_post"),
    ]
    found = trajectories(pd.concat(parts), n_bootstrap=20)
    assert len(found) == 6
    mlp = one(found, "checkpoint", site="hook_mlp_out", mask="downstream")
    resid = one(found, "checkpoint", site="hook_resid_post", mask="downstream")
    assert (mlp["pooled"], mlp["empty"], mlp["n_cells"]) == (1, 1, 96)
    assert (resid["pooled"], resid["empty"]) == (-1, 0)
    assert one(found, "depth", mask="reconstruction")["pooled"] == 1


def test_seeds_are_averaged_first():
    """Single seeds fall with the checkpoint, and a jump makes their mean rise."""
    single = grid("downstream", lambda t, layer, m: t, seeds=(0, 1))
    single["relative_kl"] = np.where(single["seed"] == 0, -single["relative_kl"], 3 * single["relative_kl"])
    found = one(trajectories(single, n_bootstrap=20), "checkpoint")
    assert found["pooled"] == 1
    assert found["n_cells"] == 96
    single.loc[(single["seed"] == 1) & (single["step"] == 4096), "relative_kl"] = np.nan
    found = one(trajectories(single, n_bootstrap=20), "checkpoint")
    assert found["n_cells"] == 96
    assert found["pooled"] < 1


def test_unknown_values_leave_their_cells_out():
    table = grid("downstream", lambda t, layer, m: t)
    table.loc[table["layer"] == 3, "relative_kl"] = np.nan
    table.loc[table["layer"] == 4, "relative_kl"] = np.inf
    found = one(trajectories(table, n_bootstrap=20), "checkpoint")
    assert (found["pooled"], found["n_cells"], found["n_strata"]) == (1, 64, 8)


def test_one_layer_and_one_method_have_no_depth_and_no_interval_over_layers():
    table = pd.concat(
        [grid(mask, v, n_layers=1, methods=("svd",)) for mask, v in (("downstream", noise(8)), ("empty", flat))]
    )
    found = trajectories(table, n_bootstrap=50)
    checkpoint, depth = one(found, "checkpoint"), one(found, "depth")
    assert np.isfinite([checkpoint["pooled"], checkpoint["pooled_low"], checkpoint["pooled_high"]]).all()
    assert checkpoint["stratified"] == checkpoint["pooled"]
    assert np.isnan([checkpoint["stratified_low"], checkpoint["stratified_high"]]).all()
    assert np.isnan([depth["pooled"], depth["stratified"], depth["pooled_low"], depth["p"]]).all()
    assert (depth["n_cells"], depth["n_strata"], depth["n_constant"]) == (8, 0, 8)
    single = trajectories(grid("downstream", flat, n_steps=1, n_layers=1, methods=("svd",)), n_bootstrap=5)
    assert single["pooled"].isna().all()


def test_a_layer_without_a_number_has_no_depth():
    table = grid("downstream", lambda t, layer, m: t)
    table["layer"] = table["layer"].astype(float).where(table["layer"] > 0)
    found = trajectories(table, n_bootstrap=20)
    assert one(found, "checkpoint")["n_cells"] == 96
    assert one(found, "depth")["n_cells"] == 80


def test_the_normaliser_is_shown_beside_the_mask():
    """KL is the same at every checkpoint; the entropy falls, and relative KL rises with nothing behind it."""
    entropy = pd.DataFrame(
        [(STEPS[t], f"blocks.{i}.hook_mlp_out", 3.0 - 0.2 * t) for t in range(8) for i in range(6)],
        columns=["step", "hook_name", "clean_entropy"],
    )
    absolute = noise(9)
    masks = [grid(mask, absolute, quantity="kl") for mask in ("downstream", "empty")]
    table = pd.concat(masks).merge(entropy, on=["step", "hook_name"])
    table["relative_kl"] = (1 + 0.1 * table["kl"]) / table["clean_entropy"]
    for found in (
        trajectories(table, n_bootstrap=100),
        trajectories(table.drop(columns="clean_entropy"), checkpoints=entropy, n_bootstrap=100),
        trajectories(table.assign(clean_entropy=1.0), checkpoints=entropy, n_bootstrap=100),
    ):
        row = one(found, "checkpoint", quantity="relative_kl")
        assert row["pooled"] > 0.9
        assert row["clean_entropy"] == -1
        assert row["absolute_kl"] == one(found, "checkpoint", quantity="kl")["pooled"]
        assert abs(row["absolute_kl"]) < 0.3
        assert not row["claimed"]
        assert one(found, "depth", quantity="relative_kl")["clean_entropy"] == pytest.approx(0, abs=1e-12)
    without = trajectories(table.drop(columns="clean_entropy"), n_bootstrap=5)
    assert without["clean_entropy"].isna().all()


def test_quantities_are_those_asked_for_or_those_there_are():
    table = grid("downstream", noise(1)).assign(soft_mass=lambda t: t["relative_kl"] ** 2, extra=1.0)
    assert trajectories(table, n_bootstrap=5)["quantity"].unique().tolist() == ["relative_kl", "soft_mass"]
    assert trajectories(table, quantities=["extra"], n_bootstrap=5)["quantity"].tolist() == ["extra", "extra"]
    assert trajectories(grid("empty", flat), n_bootstrap=5).empty
    assert list(trajectories(table[:0], n_bootstrap=5)) == COLUMNS


def test_what_is_wrong_is_said():
    table = grid("downstream", flat)
    with pytest.raises(InputError, match="no column 'relative_k'.*relative_kl"):
        trajectories(table, quantities=["relative_k"])
    with pytest.raises(InputError, match="no column 'site'"):
        trajectories(table.drop(columns="site"))
    with pytest.raises(InputError, match="checkpoints table has no column 'clean_entropy'"):
        trajectories(table, checkpoints=table)
    with pytest.raises(InputError, match="'note' holds no numbers"):
        trajectories(table.assign(note="a"), quantities=["note"])
    with pytest.raises(InputError, match="n_bootstrap=0"):
        trajectories(table, n_bootstrap=0)


def test_the_seed_decides_and_other_quantities_do_not():
    table = grid("downstream", noise(1)).assign(soft_mass=lambda t: 1 - t["relative_kl"] ** 3)
    first = trajectories(table, n_bootstrap=100, seed=3)
    pd.testing.assert_frame_equal(first, trajectories(table.sample(frac=1, random_state=0), n_bootstrap=100, seed=3))
    alone = trajectories(table, quantities=["soft_mass"], n_bootstrap=100, seed=3)
    pd.testing.assert_frame_equal(alone, first[first["quantity"] == "soft_mass"].reset_index(drop=True))
    other = trajectories(table, n_bootstrap=100, seed=4)
    assert not np.array_equal(first["pooled_low"], other["pooled_low"])
    assert np.array_equal(first["pooled"], other["pooled"])


def test_the_interval_covers_what_independent_units_would_show():
    """Eight checkpoints, six layers, independent noise: about 95 of 100 intervals hold 0."""
    held = 0
    for seed in range(100):
        found = one(trajectories(grid("downstream", noise(seed), methods=("svd",)), n_bootstrap=200), "checkpoint")
        held += found["pooled_low"] <= 0 <= found["pooled_high"]
    assert 87 <= held <= 100


def test_methods_of_one_activation_do_not_make_the_interval_narrower():
    value = noise(11)
    single = grid("downstream", lambda t, layer, m: value(t, layer, 0), methods=("svd",))
    fourfold = grid("downstream", lambda t, layer, m: value(t, layer, 0), methods=("svd", "ica", "nmf", "semi_nmf"))
    a, b = (one(trajectories(table), "checkpoint") for table in (single, fourfold))
    assert b["n_cells"] == 4 * a["n_cells"]
    assert b["pooled"] == pytest.approx(a["pooled"])
    assert (b["pooled_low"], b["pooled_high"]) == pytest.approx((a["pooled_low"], a["pooled_high"]))


small = hnp.arrays(np.float64, st.integers(2, 12), elements=st.integers(-4, 4).map(float))


@given(x=small, seed=st.integers(0, 1000))
def test_weighted_spearman_is_that_of_the_repeated_cells(x: np.ndarray, seed: int):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 5, len(x)).astype(float)
    weights = rng.integers(0, 4, (6, len(x))).astype(float)
    for found, times in zip(spearman(x, y, weights), weights.astype(int), strict=True):
        a, b = np.repeat(x, times), np.repeat(y, times)
        if len(np.unique(a)) < 2 or len(np.unique(b)) < 2:
            assert np.isnan(found)
        else:
            assert found == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)


@given(x=small, seed=st.integers(0, 1000))
def test_ranks_do_not_depend_on_scale_and_change_sign_with_it(x: np.ndarray, seed: int):
    y, one_each = np.random.default_rng(seed).random(len(x)), np.ones((1, len(x)))
    base = spearman(x, y, one_each)
    assert np.array_equal(spearman(x**3 + 5, np.exp(y), one_each), base, equal_nan=True)
    assert np.allclose(spearman(-x, y, one_each), -base, equal_nan=True)


@given(x=small, seed=st.integers(0, 1000))
def test_reordering_keeps_the_cells_of_a_level_together(x: np.ndarray, seed: int):
    """Every draw is the correlation for one of the orders of the levels, with its own mid-ranks."""
    from itertools import islice, permutations

    y = np.random.default_rng(seed).random(len(x))
    levels, index = np.unique(x, return_inverse=True)
    found = reordered(x, y, 30, np.random.default_rng(seed))
    if len(levels) == 1:
        assert np.isnan(found).all()
    elif len(levels) <= 4:
        orders = islice(permutations(range(len(levels))), 24)
        possible = np.array([spearmanr(np.array(order)[index], y).statistic for order in orders])
        assert (np.abs(found[:, None] - possible[None]).min(axis=1) < 1e-12).all()
    else:
        assert (np.abs(found) <= 1).all()


def test_a_thousand_draws_over_five_hundred_cells_take_under_a_second():
    table = grid("downstream", noise(1), n_layers=16, methods=("svd", "ica", "nmf", "semi_nmf"))
    assert len(table) == 512
    start = time.perf_counter()
    trajectories(table, n_bootstrap=1000)
    assert time.perf_counter() - start < 2  # both rows; a busy machine included


def test_a_falling_entropy_alone_makes_no_claim():
    """The cost in nats of closing a component never changes; only the entropy that it is relative to falls."""
    rng, rows = np.random.default_rng(0), []
    for i, step in enumerate([0, 1, 8, 64, 512, 1000, 4000, 16000]):
        entropy = 6 - 0.5 * i
        for layer in range(5):
            cost = rng.uniform(0.9, 1.1, 10) * 0.05
            gates = np.clip(1 - 0.01 * entropy / (2 * cost), 0, 1)  # the closed form at this penalty
            nats = (cost * (1 - gates) ** 2).sum()
            cell = {"step": step, "hook_name": f"blocks.{layer}.hook_mlp_out", "site": "hook_mlp_out", "layer": layer}
            cell |= {"method": "svd", "clean_entropy": entropy}
            for mask, mass, kl in (("downstream", gates.mean(), nats), ("empty", 0.0, cost.sum()), ("full", 1.0, 0.0)):
                rows.append(cell | {"mask": mask, "soft_mass": mass, "kl": kl, "relative_kl": kl / entropy})
    found = trajectories(pd.DataFrame(rows), quantities=["soft_mass", "relative_kl"])
    over_training = found[found["against"] == "checkpoint"].set_index("quantity")
    assert over_training.loc["soft_mass", "pooled"] > 0.9
    assert over_training.loc["relative_kl", "pooled"] < -0.9
    assert not found["claimed"].any()


@pytest.mark.parametrize(("absolute", "claimed"), [("constant", False), ("falls", True)])
def test_a_lost_fraction_that_only_its_normaliser_moves_is_not_claimed(absolute: str, claimed: bool):
    """The KL of mean ablation grows; what the mask itself loses, in nats, stays as it is or truly falls."""
    jitter, other = noise(6), noise(7)
    own = (
        (lambda t, layer, m: 0.1 + 0.01 * jitter(t, layer, m))
        if absolute == "constant"
        else (lambda t, layer, m: 9 - t)
    )

    def cells(mask: str, kl: Value, lost: Value) -> pd.DataFrame:
        table = grid(mask, lost).rename(columns={"relative_kl": "lost_fraction"})
        return table.assign(kl=grid(mask, kl)["relative_kl"], clean_entropy=grid(mask, other)["relative_kl"])

    grows: Value = (lambda t, layer, m: 1.0 + t) if absolute == "constant" else noise(8)
    table = pd.concat(
        [
            cells("downstream", own, lambda t, layer, m: own(t, layer, m) / grows(t, layer, m)),
            cells("empty", grows, flat),
        ]
    )
    found = one(trajectories(table, quantities=["lost_fraction"]), "checkpoint")
    assert found["pooled"] < -0.5
    assert found["p"] <= 0.05
    assert found["claimed"] == claimed
