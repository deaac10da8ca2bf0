from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pandas as pd
import pytest
import torch
from declared import assert_as_declared
from small import HOOKS, small_study

import tl_lifehist as lh
from tl_lifehist.errors import InputError
from tl_lifehist.lifehistory import Carriers
from tl_lifehist.lifehistory.tables import TABLES
from tl_lifehist.runs import Run
from tl_lifehist.store import Store

pytestmark = pytest.mark.usefixtures("saelens")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return small_study().run(tmp_path_factory.mktemp("study") / "run")


def tables(run: Run) -> dict[str, pd.DataFrame]:
    return {name: run.table(name) for name in run.tables}


def assert_same_tables(a: Run, b: Run) -> None:
    left, right = tables(a), tables(b)
    assert left.keys() == right.keys()
    for name in left:
        pd.testing.assert_frame_equal(left[name], right[name], check_exact=True, obj=name)


def test_every_table_and_the_report_are_there(finished):
    assert_as_declared(finished, TABLES)
    assert not (finished.path / "report.html").exists()  # a study writes none by itself
    page = finished.report().read_text()
    assert "<html" in page
    assert "persistent carriers" in page


def test_every_claim_has_its_null_or_says_that_it_is_not_testable(finished):
    claims = finished.claims
    columns = ["id", "claim", "headline", "verdict", "sentence", "observed", "null", "effect", "low", "high", "unit"]
    assert list(claims.columns)[: len(columns)] == columns
    assert claims["id"].is_unique
    headlines = claims[claims["headline"]]
    assert 0 < len(headlines) <= 8
    assert set(headlines["verdict"]) <= {"beyond", "within", "not testable"}
    assert set(claims.loc[~claims["headline"], "verdict"]) == {"descriptive"}
    judged = headlines[headlines["verdict"] != "not testable"]
    told = ["observed", "null", "effect", "low", "high", "p", "q", "detectable", "false_positives"]
    assert judged[told].notna().all(axis=None)
    assert (headlines["sentence"].str.len() > 20).all()
    assert (claims[["unit", "of"]] != "").all(axis=None)
    assert (claims["n"] >= 0).all()


def test_both_levels_of_noise_stand_beside_each_transition(finished):
    rematch = finished.table("rematch")
    assert rematch.groupby("level")["step"].nunique().to_dict() == {"data": 3, "init": 3}
    deaths = finished.table("events").query("kind == 'death'")
    assert len(deaths) == 3 * len(HOOKS)
    assert (
        deaths[["match_rate", "floor_data", "floor_init", "persistence_low", "persistence_high"]].notna().all(axis=None)
    )
    assert set(finished.table("nulls")["null"]) == {"frozen", "unrelated"}


def test_tables_agree_with_each_other(finished):
    lineages, carriers, features = (finished.table(n) for n in ("lineages", "carriers", "features"))
    assert len(features) == len(lineages)
    assert set(carriers["lineage"]) == set(features.loc[features["carrier"], "lineage"])
    assert finished.claims.set_index("id")["observed"]["carriers.chance"] == len(carriers)
    assert set(finished.table("contexts")["hook_name"]) <= set(HOOKS)
    joint = finished.table("ablation_parts").set_index("part")["delta_ce"]["joint"]
    assert finished.table("load_summary")["delta_ce"].tolist() == pytest.approx(
        [joint] * len(finished.table("load_summary"))
    )


def test_the_folder_is_readable_without_the_package(finished):
    from sae_lens import SAE

    study = json.loads((finished.path / "study.json").read_text())
    assert study["seed"] == 0
    assert study["threads"] == 1
    assert set(study["fingerprints"]) == {"0", "128", "1024", "4096"}
    assert study["versions"]["torch"]
    sae = SAE.load_from_disk(finished.path / "stages/saes/step1024" / HOOKS[0])
    assert sae.W_dec.shape == (64, 96)
    assert list((finished.path / "stages").rglob("*.graphml"))
    assert lh.dictionaries.load_saes(finished.path / "stages" / "saes").steps == (0, 128, 1024, 4096)
    assert not list(finished.path.rglob(".partial-*"))


def test_two_processes_give_the_same_tables(finished, tmp_path):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        run = small_study().run(tmp_path / "run", executor=executor)
    assert_same_tables(finished, run)


def test_killed_and_started_again_it_ends_with_the_same_tables(finished, tmp_path):
    script, out = Path(__file__).with_name("small.py"), tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    stamps: dict[str, int] = {}
    for wanted in (9, 18, 28):  # kill once this many stages are there
        with subprocess.Popen([sys.executable, str(script), str(out)], env=environment) as process:
            try:
                while process.poll() is None and len(done(out)) < wanted:
                    time.sleep(0.02)
            finally:
                process.send_signal(signal.SIGKILL)
        assert all(done(out).get(name) == stamp for name, stamp in stamps.items())  # nothing was computed again
        stamps = done(out)
        assert not (out / "tables" / "claims.parquet").exists()
    run = small_study().run(out)
    assert all(done(out)[name] == stamp for name, stamp in stamps.items())
    assert_same_tables(finished, run)
    assert not list(out.rglob(".partial-*"))


def done(out: Path) -> dict[str, int]:
    """Finished stages and when they were made."""
    return {name: Store(out).folder(name).stat().st_ctime_ns for name in Store(out).stages()}


def test_a_folder_of_another_study_or_series_is_refused(finished, tmp_path, pocket_series):
    other = lh.CheckpointSeries.from_models({s: pocket_series.load(s) for s in (0, 4096)}, name="mine")
    with pytest.raises(InputError, match="a run of another series, 'pocket' and not 'mine'"):
        small_study(series=other, noise_steps=(4096,)).run(finished.path)
    (tmp_path / "study.json").write_text(json.dumps({"study": "life-history", "config": {}}))
    with pytest.raises(InputError, match="earlier version of tl_lifehist"):
        small_study().run(tmp_path)


def test_identical_neighbours_are_refused_unless_allowed(tmp_path, pocket_series):
    model = pocket_series.load(512)
    series = lh.CheckpointSeries.from_models({0: pocket_series.load(0), 1: model, 2: model})
    with pytest.raises(InputError, match="identical weights"):
        small_study(series=series).run(tmp_path / "run")
    assert not (tmp_path / "run" / "stages").exists()


def test_bad_studies_are_named(pocket_series, tmp_path):
    models = lh.CheckpointSeries.from_models({0: pocket_series.load(0), 1: pocket_series.load(512)})
    with ThreadPoolExecutor(1) as executor, pytest.raises(InputError, match="cannot be sent to workers"):
        small_study(series=models).run(tmp_path / "a", executor=executor)
    with pytest.raises(InputError, match="at least two checkpoints"):
        small_study(series=pocket_series.subset([512]))
    with pytest.raises(InputError, match="noise_steps must be steps of the series"):
        small_study(noise_steps=[3])
    with pytest.raises(InputError, match="Give train="):
        lh.LifeHistoryStudy(models, HOOKS)
    with pytest.raises(InputError, match="no hook point 'nowhere'"):
        lh.LifeHistoryStudy(
            models, ["nowhere"], train=lh.TokenSet.pocket("train")[:40], test=lh.TokenSet.pocket("test")[:40]
        ).run(tmp_path / "b")
    with pytest.raises(InputError, match=r"no study.json"):
        lh.load_run(tmp_path / "nothing")


def test_parts_that_are_the_same_everywhere_are_refused_when_they_are_loaded(tmp_path, pocket_series):
    models = {step: pocket_series.load(step) for step in (0, 512, 4096)}
    with torch.no_grad():
        for model in models.values():
            for mine, first in zip(model.blocks[2].parameters(), models[0].blocks[2].parameters(), strict=True):
                mine.copy_(first)
    series = lh.CheckpointSeries.from_models(models)
    with pytest.raises(InputError, match=r"share the weights of block 2"):
        small_study(series=series, training_tokens=1000).run(tmp_path / "run")
    found = {name for name in done(tmp_path / "run") if name.startswith("saes/")}
    assert found == {"saes/step0"}  # the second is not begun


@pytest.mark.parametrize("init", ["previous", "independent"])
def test_without_carriers_or_a_tokenizer_the_study_ends_and_says_so(tmp_path, pocket_series, monkeypatch, init: str):
    from tl_lifehist.lifehistory import lineages

    found = lineages.Lineages.carriers
    monkeypatch.setattr(lineages.Lineages, "carriers", lambda self, **knobs: empty(found(self, **knobs)))
    series = lh.CheckpointSeries.from_models({step: pocket_series.load(step) for step in (0, 512, 4096)})
    run = small_study(series=series, training_tokens=1500, init=init).run(tmp_path / "run")
    claims = run.claims.set_index("id")
    assert len(run.table("carriers")) == 0
    for name in ("load.count", "load.mass", "recruitment.container", "forecast.beyond_rate"):
        assert claims["verdict"][name] == "not testable"
    assert "no carriers" in claims["sentence"]["load.mass"]
    assert claims["note"]["carriers.present_at_onset"] == "there are no carriers"
    assert "<html" in run.report().read_text()


def empty(found: Carriers) -> Carriers:
    share = dict.fromkeys(found.share_of_alive, 0.0)
    return Carriers(found.lineages[:0], found.min_snapshots, share, found._table.iloc[:0], found._hook_names)


def test_runs_are_loaded_and_compared(finished):
    run = lh.load_run(finished.path)
    both = lh.compare_runs(run, finished)
    assert len(both) == len(run.claims)
    assert (both["observed_a"].fillna(-1) == both["observed_b"].fillna(-1)).all()
    with pytest.raises(InputError, match="no table 'nonsense'; it holds: "):
        run.table("nonsense")
