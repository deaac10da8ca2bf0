"""A dry run refuses what a start of the run refuses, and texts that overlap are not taken without a word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import HOOKS, small_study
from small_masks import small_masks
from typer.testing import CliRunner

import tl_lifehist as lh
from tl_lifehist.cli import app
from tl_lifehist.dry_run import plan_study
from tl_lifehist.errors import InputError
from tl_lifehist.store import Store
from tl_lifehist.study import run_study

POCKET = lh.CheckpointSeries.pocket().subset([512, 4096])


@pytest.mark.parametrize("command", ["life-history", "sufficiency"])
def test_a_misspelt_site_is_refused_without_weights(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tl_lifehist.checkpoints.on_disk.boot_folder", None)  # a load would fail
    asked = [
        command,
        "--steps",
        "512,4096",
        "--layers",
        "1",
        "--sites",
        "hook_mlp_outt",
        "--out",
        str(tmp_path / "run"),
    ]
    shown = CliRunner().invoke(app, [*asked, "--dry-run"])
    assert shown.exit_code == 2
    assert "no hook point 'blocks.1.hook_mlp_outt'; the nearest names are: blocks.1.hook_mlp_out" in shown.output


def test_the_model_without_weights_has_the_hook_points_of_the_one_with_them():
    model, loaded = POCKET.unfilled(), POCKET.load(4096)
    assert set(model.hook_dict) == set(loaded.hook_dict)
    assert all(parameter.device.type == "meta" for parameter in model.parameters())


def folder_that_is_a_file(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "run").write_text("no folder")
    return {}


def another_vocabulary(tmp_path: Path) -> dict[str, Any]:
    ids = torch.randint(0, 1024, (8, 32), generator=torch.Generator().manual_seed(0))
    ids[0, 5] = 1024
    return {"test": lh.TokenSet(ids, torch.ones_like(ids, dtype=torch.bool), ids)}


def another_study(tmp_path: Path) -> dict[str, Any]:
    Store(tmp_path / "run").path.mkdir()
    Store(tmp_path / "run").write_record({"study": "sufficiency", "series": "pocket"})
    Store(tmp_path / "run").save("numbers", {}, "made up", {})
    return {}


def the_same_twice(tmp_path: Path) -> dict[str, Any]:
    model = POCKET.load(512)
    return {"series": lh.CheckpointSeries.from_models({0: model, 1: model})}


@pytest.mark.parametrize(
    ("prepared", "message"),
    [
        (folder_that_is_a_file, "is a file: give a folder for the run"),
        (another_vocabulary, "Token id 1024 is outside the model's vocabulary of 1024"),
        (another_study, "holds a run of another study"),
        (the_same_twice, "Checkpoints hold identical weights"),
    ],
)
def test_a_plan_refuses_what_the_run_refuses(prepared: Any, message: str, tmp_path: Path):
    study = small_study(**{"series": POCKET, **prepared(tmp_path)})
    with pytest.raises(InputError, match=message):
        plan_study(study, tmp_path / "run")
    if prepared is not another_vocabulary:  # which the run finds at its first pass
        with pytest.raises(InputError, match=message):
            run_study(study, tmp_path / "run")


def test_windows_in_two_splits_are_refused_or_named():
    test = lh.TokenSet.pocket("test")[::6]
    for train in (test, test[:], lh.TokenSet.pocket("test")):  # the same object, the same text, and one that holds it
        with pytest.raises(InputError, match="train and test must be different texts|test and train must be"):
            small_study(series=POCKET, train=train, test=test)
    with pytest.raises(InputError, match="must be different texts"):
        small_masks(calibration=test, test=test)
    some = lh.TokenSet(*(torch.cat([a[:20], b[:5]]) for a, b in zip(_parts("train"), _parts("test"), strict=True)))
    study = small_study(series=POCKET, train=some, test=lh.TokenSet.pocket("test")[:10])
    assert "5 of the 10 windows of test are also in train: use texts that share none." in study.warnings()


def _parts(split: str) -> tuple[torch.Tensor, ...]:
    tokens = lh.TokenSet.pocket(split)
    return tokens.ids, tokens.valid, tokens.labels


def test_too_few_documents_are_named_before_the_run():
    study = small_study(series=POCKET, test=lh.TokenSet.pocket("test")[:16])
    assert any("no interval over documents: the scored positions lie in 1 document" in s for s in study.warnings())


def test_a_section_given_as_a_setting_says_how_settings_are_given():
    with pytest.raises(InputError, match=r"'matching' is a section.*min_similarity=.*matching=Matching\(min_sim"):
        small_study(series=POCKET, matching={"min_similarity": 0.6})


def test_studies_and_saes_say_what_they_are(make_sae: Any):
    assert repr(small_masks(series=POCKET)).startswith("SufficiencyStudy(CheckpointSeries('pocket', 2 steps")
    assert HOOKS[0] in repr(small_study(series=POCKET))
    saes = lh.dictionaries.SAEs({(0, "a"): make_sae(), (8, "a"): make_sae()})
    assert repr(saes) == "SAEs(2 at steps 0, 8; a)"


def test_a_changed_start_that_fails_says_what_becomes_of_the_old_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    one = {"methods": ("svd",), "close_ups": ("svd",), "seeds": (0,), "targets": ("reconstruction",)}
    run = small_masks(series=POCKET, **one).run(tmp_path / "run")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise InputError("Something is wrong.")

    with monkeypatch.context() as patch:
        patch.setattr("tl_lifehist.study.execute", refuse)
        with pytest.raises(
            InputError, match=r"Something is wrong\. The tables that .* cannot be read until this start is"
        ):
            small_masks(series=POCKET, **one, level=0.01).run(tmp_path / "run")
        with pytest.raises(
            InputError, match="with the new settings to finish it, or with the earlier ones to read these"
        ):
            run.claims  # noqa: B018
    assert len(small_masks(series=POCKET, **one).run(tmp_path / "run").claims) > 0  # as the message says
