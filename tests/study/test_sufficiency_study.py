from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from declared import assert_as_declared
from safetensors.torch import load_file
from small_masks import HOOKS, small_masks
from typer.testing import CliRunner

import tl_lifehist as lh
from tl_lifehist.cli import app
from tl_lifehist.errors import InputError
from tl_lifehist.runs import Run
from tl_lifehist.stages import Inputs, Stage
from tl_lifehist.store import Store
from tl_lifehist.sufficiency.tables import TABLES

CELL = ["step", "hook_name", "method"]
TARGETS = ("reconstruction", "fixed_head", "downstream", "transfer")


@pytest.fixture(scope="module")
def life_history(tmp_path_factory):
    """A tiny life-history run, whose SAEs the masks are also drawn over; None where SAELens is not installed."""
    if importlib.util.find_spec("sae_lens") is None:
        return None
    study = lh.LifeHistoryStudy(
        lh.CheckpointSeries.pocket().subset([512, 4096]),
        ("blocks.1.hook_resid_post",),
        train=lh.TokenSet.pocket("train")[::30],
        test=lh.TokenSet.pocket("test")[::12],
        d_sae=64,
        k=8,
        training_tokens=2000,
        n_draws=3,
        load_tokens=200,
    )
    return study.run(tmp_path_factory.mktemp("life") / "run").path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, life_history):
    return small_masks(life_history=life_history).run(tmp_path_factory.mktemp("masks") / "run")


def assert_same_tables(a: Run, b: Run) -> None:
    assert a.tables == b.tables
    for name in a.tables:
        pd.testing.assert_frame_equal(a.table(name), b.table(name), check_exact=True, obj=name)


def test_every_table_and_the_report_are_there(finished, life_history):
    assert_as_declared(finished, TABLES, without=("carriers",) if life_history is None else ())
    assert not (finished.path / "report.html").exists()  # a study writes none by itself
    page = finished.report().read_text()
    assert "<html" in page
    assert "empty" in page


def test_every_cell_has_every_mask_and_its_nulls(finished):
    evaluation, nulls = finished.table("evaluation"), finished.table("nulls")
    assert len(evaluation.groupby(CELL)) == 2 * len(HOOKS) * 2
    for _, cell in evaluation.groupby(CELL):
        assert sorted(cell["mask"]) == sorted([*TARGETS, "empty", "full"])
    assert nulls.groupby(CELL)["kind"].value_counts().unstack().eq([1, 2, 1, 1]).all(axis=None)
    down = evaluation[evaluation["mask"] == "downstream"].set_index(CELL)["soft_mass"]
    gap = nulls.set_index(CELL)["soft_mass"] - down.reindex(nulls.set_index(CELL).index)
    assert gap.abs().max() < 1e-6


def test_the_frontier_is_swept_by_penalty(finished):
    frontier = finished.table("frontier")
    assert sorted(set(frontier["penalty_total"])) == [0.1, 1.0]
    assert (frontier["operating"] == (frontier["penalty_total"] == 0.1)).all()
    assert frontier["penalty"].to_numpy() == pytest.approx(frontier["penalty_total"].to_numpy() / 6)
    nulls = finished.table("nulls").query("kind == 'top_variance'").set_index(CELL)["lost_fraction"]
    swept = frontier[frontier["operating"]].set_index(CELL)["variance_lost_fraction"]
    assert swept.to_numpy() == pytest.approx(nulls.reindex(swept.index).to_numpy())


def test_the_empty_mask_is_the_unit_of_every_loss(finished):
    evaluation = finished.table("evaluation")
    empty = evaluation[evaluation["mask"] == "empty"]
    assert (empty["lost_fraction"] == 1).all()
    # about the train mean, on other text
    assert (empty["nmse"] == 1).all()
    checkpoints = finished.table("checkpoints").set_index(["step", "hook_name"])
    for row in empty.itertuples():
        assert row.kl == pytest.approx(checkpoints.loc[(row.step, row.hook_name), "empty_kl"], rel=1e-6)


def test_transfers_at_the_last_checkpoint(finished):
    transfer = finished.table("transfer")
    last = transfer[transfer["step"] == 4096]
    assert set(transfer["control"]) == {"aligned", "shuffled", "procrustes", "identity", "dictionary"}
    own = finished.table("evaluation").query("mask == 'full' and step == 4096").set_index(CELL)
    same = last.query("mask == 'full' and control == 'identity'").set_index(CELL)
    # with no map at all, the last checkpoint's reconstruction arrives as it is
    assert same["nmse"].to_numpy() == pytest.approx(own.loc[same.index, "nmse"].to_numpy(), rel=1e-4)
    assert same["kl"].to_numpy() == pytest.approx(own.loc[same.index, "kl"].to_numpy(), rel=1e-3)
    full = transfer.query("mask == 'full'").groupby("control")["nmse"].mean()
    assert full["aligned"] < full["shuffled"]


def test_figures_can_be_had_again_from_the_folder(finished):
    """The stored dictionary and gates, through the public function, give the stored figures."""
    study = small_masks()
    stored = finished.path / "stages/fits/step512" / HOOKS[0] / "dictionaries/svd.safetensors"
    dictionary = lh.dictionaries.load_decomposition(stored)
    row = finished.table("evaluation").query("step == 512 and method == 'svd' and mask == 'downstream'")
    row = row[row["hook_name"] == HOOKS[0]].iloc[0]
    gates = finished.table("masks").query("step == 512 and method == 'svd' and target == 'downstream' and seed == 0")
    gates = torch.tensor(gates[gates["hook_name"] == HOOKS[0]]["gate"].to_numpy())
    assert gates.mean() == pytest.approx(row["soft_mass"], rel=1e-6)
    model = study.series.load(512)
    again = lh.evaluate_mask(model, dictionary, gates, study.test, hook_name=HOOKS[0])
    assert again.kl == pytest.approx(row["kl"], rel=1e-4)
    assert again.accuracy_drop == pytest.approx(row["accuracy_drop"], abs=0.01)
    scores = lh.gate_scores(model, dictionary, study.test, hook_name=HOOKS[0])
    assert lh.enrichment(gates, scores.tau.double()) == pytest.approx(row["enrichment_tau"], rel=1e-3)


def test_claims_stand_beside_their_nulls(finished):
    claims = finished.claims
    assert set(claims["verdict"]) <= {"beyond", "within", "not testable", "descriptive"}
    judged = claims[claims["verdict"] != "not testable"]
    assert judged["null"].notna().all()
    # two checkpoints of one layer are too few for a sign test
    paired = claims[claims["id"].str.contains("cheaper_than")]
    assert len(paired) == 5 * len(HOOKS)
    assert (paired["verdict"] == "not testable").all()
    assert (paired["n"] == 2).all()


def test_carriers_in_masks(finished, life_history, saelens):
    table = finished.table("carriers")
    features = lh.load_run(life_history).table("features")
    assert set(table["step"]) <= {512, 4096}
    for row in table.itertuples():
        here = features[(features["step"] == row.step) & (features["hook_name"] == row.hook_name)]
        assert row.n_carriers == here["carrier"].sum()
        assert 0 < row.soft_mass <= 1
        assert row.enrichment > 0
    assert set(table.loc[table["step"] == 4096, "keep_error"]) == {True, False}


def test_other_test_text_changes_no_fit_and_other_calibration_text_no_dictionary(finished, tmp_path):
    test = lh.TokenSet.pocket("test")[7::60][:6]
    calibration = lh.TokenSet.pocket("calibration")[7::60][:6]
    one = {"hook_names": HOOKS[:1]}
    runs = {
        "test": small_masks(test=test, **one).run(tmp_path / "test"),
        "calibration": small_masks(calibration=calibration, **one).run(tmp_path / "calibration"),
    }
    unit = Path("stages/fits/step512") / HOOKS[0]
    for name in ("dictionaries/svd", "dictionaries/semi_nmf", "translator"):
        before = load_file(finished.path / unit / f"{name}.safetensors")
        for run in runs.values():
            after = load_file(run.path / unit / f"{name}.safetensors")
            assert all(torch.equal(before[key], after[key]) for key in before)
    stored = finished.table("masks")
    stored = stored[(stored["hook_name"] == HOOKS[0]) & (stored["step"] == 512)].reset_index(drop=True)
    same, other = (r.table("masks").query("step == 512").reset_index(drop=True) for r in runs.values())
    pd.testing.assert_frame_equal(same, stored, check_exact=True)
    assert not np.allclose(other["gate"], stored["gate"])


def test_two_processes_give_the_same_tables(finished, tmp_path, life_history):
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as executor:
        run = small_masks(life_history=life_history).run(tmp_path / "run", executor=executor)
    assert_same_tables(finished, run)


def test_killed_and_started_again_it_ends_with_the_same_tables(finished, tmp_path, life_history):
    script, out = Path(__file__).with_name("small_masks.py"), tmp_path / "run"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    stamps: dict[str, int] = {}
    for wanted in (3, 7, 10):  # kill once this many stages are there
        with subprocess.Popen([sys.executable, str(script), str(out)], env=environment) as process:
            try:
                while process.poll() is None and len(done(out)) < wanted:
                    time.sleep(0.02)
            finally:
                process.send_signal(signal.SIGKILL)
        assert all(done(out).get(name) == stamp for name, stamp in stamps.items())  # nothing was computed again
        stamps = done(out)
        assert not (out / "tables" / "claims.parquet").exists()
    run = small_masks().run(out)
    assert all(done(out)[name] == stamp for name, stamp in stamps.items())
    assert set(finished.tables) - set(run.tables) == (set() if life_history is None else {"carriers"})
    for name in set(run.tables) - {"claims"}:
        pd.testing.assert_frame_equal(run.table(name), finished.table(name), check_exact=True, obj=name)
    assert not list(out.rglob(".partial-*"))


def done(out: Path) -> dict[str, int]:
    """Finished stages and when they were made."""
    return {name: Store(out).folder(name).stat().st_ctime_ns for name in Store(out).stages()}


def test_the_folder_says_what_it_holds(finished):
    study = json.loads((finished.path / "study.json").read_text())
    assert study["study"] == "sufficiency"
    assert study["config"]["masks"]["penalty_total"] == 0.1
    assert set(study["fingerprints"]) == {"512", "4096"}
    assert set(study["texts"]) == {"train", "calibration", "test"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("pca",)}, "methods"),
        ({"targets": ()}, "targets"),
        ({"mask_steps": 0}, "mask_steps=0"),
        ({"seeds": ()}, "name at least one, each once"),
        ({"penalty_total": 0.0}, "above 0"),
        ({"sweep": (0.1, -1.0)}, "above 0"),
        ({"close_ups": ("nmf",)}, "close_ups"),
        ({"penalty_totl": 1.0}, "nearest are: penalty_total"),
        ({"leave_out_massive": 0.7}, "leave_out_massive"),
        ({"hook_names": ("blocks.1.hook_mlp_out",) * 2}, "each only once"),
        ({"test": lh.TokenSet.pocket("calibration")[::60][:6]}, "must be different texts"),
    ],
)
def test_bad_studies_are_named(changes, message):
    with pytest.raises(InputError, match=message):
        small_masks(**changes)


def test_a_life_history_of_another_series_is_refused(tmp_path, life_history, pocket_series, saelens):
    series = lh.CheckpointSeries.from_models({512: pocket_series.load(512), 4096: pocket_series.load(4096)})
    with pytest.raises(InputError, match="no life-history run of the series"):
        small_masks(series=series, life_history=life_history).run(tmp_path / "run")
    with pytest.raises(InputError, match=r"study\.json"):
        small_masks(life_history=tmp_path).run(tmp_path / "other")


def test_massive_rows_can_be_left_out(finished, tmp_path):
    """As from separate passes: of the checkpoint's own rows, in every split."""
    one = {"hook_names": HOOKS[1:], "methods": ("svd",), "close_ups": ("svd",), "seeds": (0,)}
    study = small_masks(leave_out_massive=0.05, **one)
    run = study.run(tmp_path / "run")
    plain, chosen = (r.table("checkpoints").set_index(["step", "hook_name"]) for r in (finished, run))
    row = chosen.loc[(512, HOOKS[1])]
    all_rows = plain.loc[(512, HOOKS[1])]
    assert row["n_rows"] == all_rows["n_rows"] - round(0.05 * all_rows["n_rows"])
    assert row["top_row_share"] < all_rows["top_row_share"]
    model = study.series.load(512)
    train, test = (lh.sufficiency.without_massive(model, HOOKS[1], t, 0.05) for t in (study.train, study.test))
    assert row["n_scored"] == test.n_scored < all_rows["n_scored"]
    acts, final_acts = (
        lh.collect_activations(study.series.load(step), HOOKS[1], train, batch_size=7) for step in (512, 4096)
    )
    held = Store(run.path).results("fits/step512")
    stored = lh.sufficiency.Alignment.from_tensors(held[f"{HOOKS[1]}/alignments/aligned"])
    expected = lh.align_checkpoints(acts, final_acts, ridge=study.config.heads.ridge)
    assert torch.equal(stored.weight, expected.weight)
    final = lh.decompose(final_acts, method="svd", n_components=6)
    own = lh.decompose(acts, method="svd", n_components=6)
    stored = lh.sufficiency.Alignment.from_tensors(held[f"{HOOKS[1]}/dictionary_alignments/svd"])
    assert torch.equal(stored.weight, lh.sufficiency.align_dictionaries(own, final, acts, final_acts).weight)


def test_default_layers_and_steps():
    assert lh.sufficiency.default_layers(4) == [0, 1, 2, 3]
    assert lh.sufficiency.default_layers(12) == [0, 3, 6, 8, 11]
    assert lh.sufficiency.default_layers(1) == [0]
    steps = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, *range(1000, 144000, 1000))
    chosen = lh.sufficiency.default_steps(steps)
    assert len(chosen) == 8
    assert chosen[0] == 0
    assert chosen[-1] == 143000
    assert np.all(np.diff(np.log1p(chosen)) > 0.5)


def test_from_the_command_line(tmp_path):
    sizes = "--methods svd --targets downstream --n-components 4 --mask-steps 3 --batch-size 4 --seeds 0"
    texts = tmp_path / "texts.txt"
    from tl_lifehist.checkpoints.pocket import pocket_texts

    texts.write_text("\n\n".join(text.replace("\n\n", "\n")[:1500] for _, text in pocket_texts("test")[:15]))
    arguments = ["sufficiency", "--steps", "512,4096", "--layers", "2", "--sites", "hook_mlp_out", *sizes.split()]
    where = ["--texts", str(texts), "--out", str(tmp_path / "run"), "--workers", "0"]
    shown = CliRunner().invoke(app, [*arguments, *where])
    assert shown.exit_code == 0, shown.output
    assert "downstream mask: soft mass" in shown.output
    assert shown.output.strip().endswith("report.html")
    bad = CliRunner().invoke(app, ["sufficiency", "--methods", "pca", "--out", str(tmp_path / "x"), "--workers", "0"])
    assert bad.exit_code == 2
    assert "Traceback" not in bad.output


def test_a_target_without_a_reference_is_counted_and_the_others_go_on(tmp_path, pocket_series):
    """Predictions that no activation changes: mean ablation costs 0, so nothing can be relative to it (formula 9)."""
    models = {step: pocket_series.load(step) for step in (512, 4096)}
    for model in models.values():
        silent = [p for name, p in model.named_parameters() if "final_layer_norm" in name or "ln_final" in name]
        assert silent
        for parameter in silent:
            parameter.zero_()
    study = small_masks(
        series=lh.CheckpointSeries.from_models(models), hook_names=HOOKS[1:], relative_to="mean_ablation"
    )
    run = study.run(tmp_path / "run")
    scored = run.table("evaluation").groupby("mask")
    assert set(scored.groups) == {"empty", "full", *TARGETS}
    for target in ("fixed_head", "downstream"):
        assert scored.get_group(target)[["soft_mass", "lost_fraction"]].isna().all(axis=None)
    for target in ("reconstruction", "transfer"):
        assert scored.get_group(target)["soft_mass"].between(0, 1).all()
    assert scored.get_group("full")["lost_fraction"].isna().all()
    about_masks = run.claims[run.claims["id"].str.startswith("masks.")]
    assert len(about_masks) > 0
    assert (about_masks["verdict"] == "not testable").all()
    assert run.report().exists()


def test_dictionaries_of_two_seeds_stand_beside_random_directions(tmp_path, pocket_series):
    study = small_masks(
        hook_names=HOOKS[1:], methods=("svd", "ica"), targets=("reconstruction",), seed=1, seeds=(2, 0, 1), close_ups=()
    )
    run = study.run(tmp_path / "run")
    for step in (512, 4096):
        table = Store(run.path).results(f"refits/step{step}")["stability"]
        pairs = table[["method", "seed_a", "seed_b"]].values.tolist()
        assert pairs == [["ica", 0, 1], ["ica", 0, 2], ["ica", 1, 2]]
        acts = lh.collect_activations(pocket_series.load(step), HOOKS[1], study.train)
        fitted = {s: lh.decompose(acts, method="ica", n_components=6, seed=s) for s in (0, 1, 2)}
        for row in table.itertuples():
            expected = lh.dictionaries.dictionary_overlap(fitted[row.seed_a], fitted[row.seed_b])
            assert row.dictionary_overlap == pytest.approx(expected)
            assert 0 < row.dictionary_null < 0.5


def test_seeds_that_draw_nothing_are_no_stability(tmp_path):
    study = small_masks(hook_names=HOOKS[:1], methods=("svd",), close_ups=("svd",), batch_size=6)
    assert len(study.calibration) == 6
    run = study.run(tmp_path / "run")
    assert not run.claims["id"].str.startswith("stability").any()
    assert "stability" not in run.tables or not len(run.table("stability"))


def test_masks_over_features_are_fitted_calibrated_and_measured_each_on_its_own_text(
    tmp_path, monkeypatch, make_sae, pocket_series
):
    from tl_lifehist.sufficiency.stages import feature_masks as module

    study = small_masks(penalty_total=0.3)
    sae = make_sae(d_in=96, d_sae=20, k=4, unit=True)
    fires = np.random.default_rng(0).random((400, 20)) < 0.3
    fires[:, 15:] = False  # five features that never fire
    profile = lh.FeatureProfiles(4096, HOOKS[1], sp.csc_array(fires * 1.0))
    monkeypatch.setattr(module, "stored_features", lambda *_: (sae, profile, [0, 3, 7]))
    monkeypatch.setattr(module, "alive_features", lambda *_: list(range(15)))
    seen: dict[str, list] = {"with_reference": [], "calibrate_on": [], "evaluate_mask": []}
    for name, calls in seen.items():
        real = getattr(module, name)

        def record(*args, real=real, calls=calls, **kwargs):
            calls.append(args)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, record)
    stage = Stage("feature_masks", module.feature_masks, texts=tuple(study.texts()), steps=(4096,))
    held: dict[Any, Any] = {("text", split): tokens for split, tokens in study.texts().items()}
    inputs = Inputs(stage, Store(tmp_path), pocket_series, {}, pocket_series.load, held, {})
    made = module.feature_masks(
        inputs,
        step=4096,
        sae_hooks=HOOKS[1:],
        life_history="",
        masks=study.config.masks,
        bridge=study.config.bridge,
        seed=0,
        folder="",
        pass_hooks=HOOKS,
    )
    ((_, acts),) = seen["with_reference"]
    assert torch.equal(acts, lh.collect_activations(pocket_series.load(4096), HOOKS[1], study.train))
    ((clean, tasks),) = seen["calibrate_on"]
    assert clean.tokens is study.calibration
    assert [task.penalty for task in tasks] == [pytest.approx(0.3 / 15)] * 2
    assert [task.keep_error for task in tasks] == [True, False]
    assert [call[3] for call in seen["evaluate_mask"]] == [study.test] * 2
    table = made["carriers"]
    assert table["n_alive"].tolist() == [15, 15]
    assert table["n_carriers"].tolist() == [3, 3]
