from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory.forecast import (
    COLUMNS,
    NAME,
    _auc,
    onset_step,
    precision_at,
    predict_carriers,
    roc_auc,
    training_phase,
)
from tl_lifehist.lifehistory.lineages import trace_lineages
from tl_lifehist.lifehistory.profiles import FeatureProfiles

STEPS, HOOKS = (0, 10, 1000), ("h0", "h1")
N, WIDTH = 3000, 60
FEW = {"n_repeats": 2, "n_permutations": 20}


@dataclass
class Decoder:
    """A dictionary with the given decoder rows."""

    W_dec: torch.Tensor

    def encode(self, x):
        return x @ self.W_dec.T

    def decode(self, codes):
        return codes @ self.W_dec + 1.0


@dataclass
class Series:
    """`saes.at(step)` as `train_saes` gives it."""

    saes: dict

    def at(self, step):
        return self.saes[step]


def world(n_lasting: int = 20, seed: int = 0, *, telling: bool = True):
    """The first features of each layer stay the same; the others are new at every checkpoint.

    Where `telling`, the lasting ones fire on 10 % of the rows and the others on 3 %; else all fire at any rate.
    """
    rng = np.random.default_rng(seed)
    rate = np.where(np.arange(WIDTH) < n_lasting, 0.1, 0.03) if telling else rng.uniform(0.03, 0.1, WIDTH)

    def codes():
        return (rng.random((N, WIDTH)) + 0.5) * (rng.random((N, WIDTH)) < rate)

    profiles = {}
    for step in STEPS:
        for hook in HOOKS:
            acts = codes()
            if step > 10:
                acts[:, :n_lasting] = profiles[10, hook].acts.toarray()[:, :n_lasting]
            profiles[step, hook] = FeatureProfiles(step, hook, acts, residual_norm=2.0)
    lineages = trace_lineages(profiles)
    return profiles, lineages, lineages.carriers()


def test_a_separating_feature_gives_auc_one():
    profiles, lineages, carriers = world()
    assert len(carriers) == 40
    forecast = predict_carriers(profiles, lineages, carriers, **FEW)
    assert (forecast.onset, forecast.n, forecast.n_positive, forecast.reason) == (10, 120, 40, None)
    assert forecast.auc == 1
    assert forecast.auc_interval == (1, 1)
    assert forecast.average_precision == pytest.approx(1)
    assert forecast.enrichment == pytest.approx(3)
    assert forecast.recall_at_k == 1
    assert forecast.recall_top_decile == pytest.approx(12 / 40)
    table = forecast.table
    assert list(table.columns) == ["hook_name", "feature", "lineage", "label", "score"]
    assert table.loc[table["label"], "feature"].max() < 20
    assert table.loc[table["label"], "score"].min() > table.loc[~table["label"], "score"].max()
    baselines = forecast.baselines.set_index("predictor")
    assert baselines.loc["log firing rate", "auc"] == 1
    assert baselines.loc["leave one layer out", "auc"] == 1
    null = baselines.loc["label permutation"]
    assert null["low"] < 0.5 < null["high"] < 0.8
    assert "decoder geometry" not in baselines.index
    rows = forecast.to_dataframe()
    assert list(rows.columns) == ["predictor", *COLUMNS, "n", "n_positive", "gain_low", "gain_high"]
    assert rows.loc[0, "predictor"] == NAME
    assert len(rows) == len(baselines) + 1


def test_permuted_labels_give_one_half_within_the_interval():
    profiles, lineages, carriers = world()
    there = lineages.to_dataframe().query("step == 10")["lineage"].to_numpy()
    random = np.sort(np.random.default_rng(3).permutation(there)[:40])
    forecast = predict_carriers(profiles, lineages, replace(carriers, lineages=random), **FEW)
    assert forecast.n_positive == 40
    low, high = forecast.auc_interval
    assert low < 0.5 < high
    assert forecast.enrichment < 1.7


def test_decoder_geometry_separates_where_the_decoder_does_and_entropy_does_not():
    profiles, lineages, carriers = world(telling=False)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(WIDTH, 16))
    rows[:20] = rows[0] + 0.05 * rng.normal(size=(20, 16))
    saes = Series({10: {h: Decoder(torch.tensor(rows, dtype=torch.float32)) for h in HOOKS}})
    forecast = predict_carriers(profiles, lineages, carriers, saes=saes, **FEW)
    assert forecast.baselines.set_index("predictor").loc["decoder geometry", "auc"] == 1
    assert forecast.auc < 0.75


def test_scores_of_another_model_come_from_its_own_onset():
    forecast = predict_carriers(*world(), **FEW)
    other, _, _ = world(n_lasting=30, seed=9)
    table = forecast.predict(other)
    assert list(table.columns) == ["hook_name", "feature", "score"]
    assert len(table) == 120
    broad = table["feature"] < 30
    assert roc_auc(broad.to_numpy(), table["score"].to_numpy()) == 1
    alone = forecast.predict({h: other[10, h] for h in HOOKS})
    np.testing.assert_array_equal(alone["score"], table["score"])
    assert len(forecast.predict({h: other[10, h] for h in HOOKS}, min_rate=0.06)) == 60


def test_under_ten_positives_or_negatives_the_figures_are_nan_and_it_says_why():
    profiles, lineages, carriers = world(n_lasting=4)
    forecast = predict_carriers(profiles, lineages, carriers, **FEW)
    assert np.isnan(forecast.auc)
    assert np.isnan(forecast.auc_interval).all()
    assert "only 8 become carriers" in str(forecast.reason)
    assert len(forecast.baselines) == 0
    assert len(forecast.to_dataframe()) == 1
    assert forecast.table["score"].isna().all()
    with pytest.raises(InputError, match="only 8 become carriers"):
        forecast.predict(profiles)
    everything = replace(carriers, lineages=np.arange(10_000))
    assert "only 0 do not become carriers" in str(predict_carriers(profiles, lineages, everything, **FEW).reason)


def test_an_onset_at_the_end_leaves_nothing_to_forecast():
    forecast = predict_carriers(*world(), onset=1000, **FEW)
    assert "last checkpoint" in str(forecast.reason)
    assert np.isnan(forecast.enrichment)


def test_a_layer_cannot_be_left_out_when_there_is_one():
    profiles, _, _ = world()
    one = {key: p for key, p in profiles.items() if key[1] == "h0"}
    lineages = trace_lineages(one)
    forecast = predict_carriers(one, lineages, lineages.carriers(), **FEW)
    assert forecast.auc == 1
    assert np.isnan(forecast.baselines.set_index("predictor").loc["leave one layer out", "auc"])


def test_the_forecast_repeats_with_its_seed_and_leaves_the_global_generator_alone():
    setting = world(telling=False)
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    a, b, c = (predict_carriers(*setting, seed=s, **FEW) for s in (1, 1, 2))
    assert a.to_dataframe().equals(b.to_dataframe())
    assert not a.table["score"].equals(c.table["score"])
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_an_onset_without_profiles_is_refused():
    with pytest.raises(InputError, match="onset 77"):
        predict_carriers(*world(), onset=77)


def test_missing_norms_are_named():
    profiles, lineages, carriers = world()
    bare = {key: replace(p, residual_norm=None) for key, p in profiles.items()}
    with pytest.raises(InputError, match="residual_norm"):
        predict_carriers(bare, lineages, carriers)


def test_step_1000_of_pythia_is_the_onset_and_closes_phase_one():
    pythia = [0, 1000, 10_000, 40_000, 80_000, 120_000, 143_000]
    assert onset_step(pythia) == 1000
    assert [training_phase(s, 143_000) for s in pythia] == ["I", "I", "II", "II", "III", "III", "III"]
    assert onset_step([0, 512, 4000]) == 512
    assert onset_step([0, 5]) == 5
    assert onset_step([0]) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=2, max_size=30), st.integers(0, 99))
def test_auc_counts_pairs_and_a_bootstrap_sample_counts_them_by_weight(rows, seed):
    labels, scores = np.array([r[0] for r in rows]), np.array([float(r[1]) for r in rows])
    level = np.unique(scores, return_inverse=True)[1]
    if labels.all() or not labels.any():
        assert np.isnan(roc_auc(labels, scores))
        assert np.isnan(_auc(labels, level, np.ones(len(rows))))
        return
    pairs = scores[labels][:, None] - scores[~labels][None, :]
    assert roc_auc(labels, scores) == pytest.approx(((pairs > 0) + (pairs == 0) / 2).mean())
    weights = np.random.default_rng(seed).integers(1, 4, len(rows)).astype(float)
    assert _auc(labels, level, weights) == pytest.approx(roc_auc_score(labels, scores, sample_weight=weights))


def test_precision_shares_ties_at_the_border():
    labels = np.array([True, True, False, False, True])
    assert precision_at(labels, np.array([5.0, 4, 3, 2, 1]), 2) == 1
    assert precision_at(labels, np.array([5.0, 4, 3, 2, 1]), 3) == pytest.approx(2 / 3)
    # one sure hit, and one place for three rows of which one is a hit
    assert precision_at(labels, np.array([5.0, 1, 1, 1, 0]), 2) == pytest.approx((1 + 1 / 3) / 2)
    assert precision_at(labels, np.ones(5), 2) == pytest.approx(3 / 5)
