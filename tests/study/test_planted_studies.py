"""Both studies on a planted history, through their own code: what they find is what was planted."""

from __future__ import annotations

from typing import Any

import pytest
from small import FEW

import tl_lifehist as lh
from tl_lifehist.lifehistory import PlantedSuite, planted_suite
from tl_lifehist.runs import Run

pytestmark = pytest.mark.usefixtures("saelens")
WHO = ["hook_name", "step", "feature"]


def history_of(suite: PlantedSuite, **changes: Any) -> lh.LifeHistoryStudy:
    texts = {"train": suite.train, "test": suite.test}
    settings = {"n_draws": 19, "load_tokens": 1000, **FEW, **changes}
    return lh.LifeHistoryStudy(suite.series, suite.hook_names, saes=suite.saes, **texts, **settings)


@pytest.fixture(scope="module")
def suite() -> PlantedSuite:
    return planted_suite(seed=1, n_layers=2, n_features=48)


@pytest.fixture(scope="module")
def finished(suite, tmp_path_factory) -> Run:
    return history_of(suite, controls=("count",)).run(tmp_path_factory.mktemp("planted") / "run")


def test_a_life_history_finds_the_planted_lives(suite, finished):
    truth, found = suite.truth, finished.table("features")
    both = found.merge(truth.lineages, on=WHO, how="outer", validate="one_to_one")
    assert both[["lineage", "latent"]].notna().all(axis=None)
    assert both.groupby("lineage")["latent"].nunique().max() == 1
    assert both["lineage"].nunique() == len(truth.features)
    carriers = both.merge(truth.features, on=["hook_name", "latent"], suffixes=("", "_planted"))
    assert (carriers["carrier"] == carriers["carrier_planted"]).all()
    assert len(finished.table("carriers")) == truth.features["carrier"].sum() > 5


def test_a_life_history_measures_the_planted_load(suite, finished):
    step = suite.series.steps[-1]
    expected = suite.truth.ablation_cost(suite.truth.carriers(step), suite.test.head(1000), step=step)
    assert finished.table("load_summary")["delta_ce"].iloc[0] == pytest.approx(expected, rel=1e-4)


def test_a_sufficiency_study_runs_where_the_life_history_did(suite, finished, tmp_path):
    study = lh.SufficiencyStudy(
        suite.series.subset([128, 16384]),
        suite.hook_names[1:],
        train=suite.train,
        calibration=suite.calibration[:8],
        test=suite.test[:8],
        life_history=finished.path,
        methods=("svd",),
        n_components=12,
        mask_steps=10,
        batch_size=4,
        translator_steps=5,
        sweep=(1.0,),
        seeds=(0,),
        n_random=2,
        n_sets=50,
    )
    run = study.run(tmp_path / "run")
    found = run.table("checkpoints").set_index("step")
    # the planted models predict the better the longer they train, so that mean ablation has the more to take
    assert found["clean_ce"][16384] < found["clean_ce"][128] - 0.5
    assert found["empty_kl"][16384] > 1.5 * found["empty_kl"][128] > 0
    assert set(run.table("carriers")["hook_name"]) == set(suite.hook_names[1:])
