"""What another package registers is found in a study's tables, its dry run, the command's help and the report."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pandas as pd
import pytest
import torch
from own_entries import ENTRIES, registered
from own_family import ToyAdapter
from small import small_study
from small_masks import small_masks
from typer.testing import CliRunner

import tl_lifehist as lh
from tl_lifehist.checkpoints.pocket import pocket_path
from tl_lifehist.cli import app
from tl_lifehist.dry_run import plan_study
from tl_lifehist.errors import InputError

SMALL: dict[str, Any] = {"training_tokens": 2000, "d_sae": 48, "k": 6, "n_draws": 3, "load_tokens": 250}


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    with registered():
        yield


def test_a_control_and_a_section_of_ones_own(tmp_path, saelens):
    series = lh.CheckpointSeries.pocket().subset([0, 512, 4096])
    testable = {"max_unmatched": 1.0, "max_smd": 99.0, "noise_steps": (4096,), "n_frozen": 2}
    study = small_study(series=series, controls=("mass", "entropy"), **testable, **SMALL)
    assert "load/entropy" in {one.stage.name for one in plan_study(study).stages}
    run = study.run(tmp_path / "run")
    assert "entropy" in set(run.table("load_summary")["kind"])
    claims = run.claims.set_index("id")["claim"]
    assert claims["load.entropy"] == "removing the carriers costs more than removing as many features of equal entropy"
    page = run.report().read_text()
    assert '<section id="mine">' in page
    assert "My text." in page
    assert "same entropy" in page


def test_a_decomposition_and_a_target_of_ones_own_here_and_in_workers(tmp_path):
    study = small_masks(methods=("svd", "halves"), targets=("reconstruction", "twice"), close_ups=())
    plan = plan_study(study)
    assert "Halves 1" in str(plan)  # what it takes beside an SVD, from its entry
    assert "halves" in plan.settings
    run = study.run(tmp_path / "run")
    evaluation = run.table("evaluation")
    assert {"svd", "halves"} == set(evaluation["method"])
    of = evaluation.set_index(["mask", "method", "step", "hook_name"])["nmse"]
    # directions at half their length span the same, and the other target is reconstruction by another name
    assert of["full"]["halves"].to_numpy() == pytest.approx(of["full"]["svd"].to_numpy(), rel=1e-4)
    assert of["twice"].to_numpy() == pytest.approx(of["reconstruction"].to_numpy(), rel=1e-6)
    page = run.report().read_text()
    assert "Halves" in page
    assert "twice over" in page
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        there = study.run(tmp_path / "there", executor=pool)
    pd.testing.assert_frame_equal(there.table("evaluation"), evaluation, check_exact=True)


def test_a_model_family_of_ones_own(tmp_path, pocket_series):
    for step in (0, 4096):
        folder = shutil.copytree(pocket_path() / f"step{step}", tmp_path / f"step{step}")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": ["ToyForCausalLM"]}))
    series = lh.CheckpointSeries.from_directory(tmp_path)
    model = series.load(4096)
    assert isinstance(model.adapter, ToyAdapter)
    tokens = lh.TokenSet.pocket("test")[:2]
    torch.testing.assert_close(model(tokens.ids), pocket_series.load(4096)(tokens.ids))


def test_the_help_names_them():
    shown = CliRunner().invoke(app, ["life-history", "--help"], env={"COLUMNS": "250"}).output
    assert "Added: entropy." in shown
    shown = CliRunner().invoke(app, ["sufficiency", "--help"], env={"COLUMNS": "250"}).output
    assert "Added: halves." in shown
    assert "Added: twice." in shown


def test_names_of_the_package_stay_its_own_and_what_was_added_can_go():
    for registry, name, entry in ENTRIES:
        shipped = next(iter(registry))
        with pytest.raises(InputError, match="comes with the package"):
            registry.register(shipped, entry)
        with pytest.raises(InputError, match="no name for a"):
            registry.register("two words", entry)
        assert name in registry.added
        registry.unregister(name)
        assert name not in registry
        with pytest.raises(InputError, match="is unknown: use one of"):
            registry[name]
        registry.register(name, entry)
