from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError


class Hooked(nn.Module):
    """The least a model needs: hooks, hook_dict and a call."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.tokenizer = None
        self.weight = nn.Parameter(torch.full((3, 3), float(seed)) + torch.eye(3))

    hook_dict: dict = {}  # noqa: RUF012 - stands for a property

    def hooks(self, fwd_hooks=(), bwd_hooks=()):
        raise AssertionError("a series runs no model")


def load_hooked(step: int) -> Hooked:
    if step == 13:
        raise FileNotFoundError("13 is gone")
    return Hooked(step)


@pytest.fixture
def series(run_folder) -> CheckpointSeries:
    return CheckpointSeries.from_directory(run_folder, device="cpu")


def test_it_is_an_ordered_mapping_that_loads_only_what_is_asked_for():
    loaded = []
    series = CheckpointSeries.from_loader([1000, 0, 1, 1], lambda step: loaded.append(step) or Hooked(step))
    assert series.steps == (0, 1, 1000)
    assert (len(series), list(series), list(series.keys())) == (3, [0, 1, 1000], [0, 1, 1000])
    assert 1 in series
    assert 2 not in series
    assert "step1" not in series
    assert series.get(2) is None
    assert series == series
    assert series != series.subset([0])
    assert "3 steps 0 to 1000" in repr(series)
    assert len({series, series}) == 1
    assert loaded == []
    assert float(series[1000].weight.detach()[0, 1]) == 1000
    assert float(series.get(np.int64(1)).weight.detach()[0, 1]) == 1
    assert loaded == [1000, 1]
    assert [step for step, _ in series.items()] == [0, 1, 1000]
    assert loaded == [1000, 1, 0, 1, 1000]


def test_a_directory_becomes_models_as_trained(series, tiny_model, ids):
    assert series.steps == (0, 1, 1000)
    assert series.name == "run"
    with torch.no_grad():
        for step, model in series.items():
            torch.testing.assert_close(model(ids), tiny_model(step)(ids).logits, atol=1e-6, rtol=0)
    assert series[1] is not series[1]  # nothing is kept
    assert series.download_size() == series.discard(1) == 0
    assert series[1].tokenizer is not None


def test_a_directory_takes_other_names_and_ignores_what_is_no_checkpoint(run_folder, tmp_path):
    (run_folder / "step0").rename(run_folder / "checkpoint-7")
    for name in (".step5.partial", "logs", "step6.tmp"):
        (run_folder / name).mkdir()
    (run_folder / "step9").write_text("a file")
    assert CheckpointSeries.from_directory(str(run_folder)).steps == (1, 7, 1000)
    with pytest.raises(InputError, match=r"nowhere is not a folder that can be read \(No such file or directory\)"):
        CheckpointSeries.from_directory(tmp_path / "nowhere")
    with pytest.raises(InputError, match="hold no checkpoint: names such as step1000"):
        CheckpointSeries.from_directory(run_folder / "logs")
    (run_folder / "checkpoint-1").mkdir()
    with pytest.raises(InputError, match="two checkpoints of step 1, checkpoint-1 and step1"):
        CheckpointSeries.from_directory(run_folder)


def test_stages_of_a_directory_are_series_of_their_own(run_folder, tmp_path):
    for name in ("stage1-step10", "stage1-step2", "stage2-ingredient1-step2"):
        shutil.copytree(run_folder / "step0", tmp_path / "stages" / name)
    assert CheckpointSeries.from_directory(tmp_path / "stages").steps == (2, 10)
    assert CheckpointSeries.from_directory(tmp_path / "stages", stage=2, ingredient=1).steps == (2,)


def test_the_tokenizer_lies_beside_the_checkpoints_or_with_the_last_or_nowhere(run_folder):
    assert CheckpointSeries.from_directory(run_folder).tokenizer("w3 w4")["input_ids"] == [3, 4]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (run_folder / name).rename(run_folder / "step1000" / name)
    assert CheckpointSeries.from_directory(run_folder).tokenizer("w3 w4")["input_ids"] == [3, 4]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (run_folder / "step1000" / name).unlink()
    bare = CheckpointSeries.from_directory(run_folder, device="cpu")
    assert bare.tokenizer is None
    assert bare[0].tokenizer is None


def test_steps_that_are_not_there_or_no_steps_are_refused(series):
    with pytest.raises(InputError, match=r"run has no checkpoint of step 600; the nearest steps are: 0, 1, 1000\."):
        series[600]
    with pytest.raises(InputError, match="run has no checkpoint of step 2"):
        series.subset([0, 2])
    with pytest.raises(InputError, match="at least one step"):
        series.subset([])
    with pytest.raises(InputError, match="at least one step"):
        CheckpointSeries.from_models({})


def test_a_subset_keeps_the_source(series, tiny_model, ids):
    part = series.subset([1000, np.int64(1)])
    assert part.steps == (1, 1000)
    assert series.steps == (0, 1, 1000)
    with torch.no_grad():
        torch.testing.assert_close(part[1](ids), tiny_model(1)(ids).logits, atol=1e-6, rtol=0)


def test_models_in_memory_are_handed_over_as_they_are():
    models = {1: Hooked(1).train(), 0: Hooked(0).eval().double()}
    models[0].tokenizer, models[1].tokenizer = "the first", "the last"
    series = CheckpointSeries.from_models(models, name="mine")
    assert series.steps == (0, 1)
    assert series[1] is models[1]
    assert series[1].training
    assert not series[0].training
    assert all(p.requires_grad for model in models.values() for p in model.parameters())
    assert series[0].weight.dtype == torch.float64
    assert series.tokenizer == "the last"
    assert series.name == "mine"


def test_a_loaders_models_are_handed_over_as_they_are_and_need_hooks():
    kept = Hooked(4).train()
    series = CheckpointSeries.from_loader([4, 5], lambda step: kept if step == 4 else nn.Linear(1, 1), tokenizer="mine")
    assert series[4] is kept
    assert kept.training
    assert series.tokenizer == "mine"
    with pytest.raises(InputError, match="Step 5: Linear has no TransformerLens hooks: wrap it"):
        series[5]


def test_portable_is_what_can_be_pickled(series):
    assert series.is_portable
    assert series.tokenizer is not None  # loaded, and left behind by the pickle
    assert len(pickle.dumps(series)) < 2000
    assert CheckpointSeries.from_loader([0], load_hooked).is_portable
    assert not CheckpointSeries.from_loader([0], lambda step: Hooked()).is_portable
    in_memory = CheckpointSeries.from_models({0: Hooked()})
    assert not in_memory.is_portable
    with pytest.raises(InputError, match="models in memory cannot be sent to another process: run it without"):
        pickle.dumps(in_memory.subset([0]))


def test_another_process_loads_the_same_weights_from_another_folder(series, tmp_path):
    """Also: nothing slow is imported before a model is asked for."""
    (tmp_path / "series.pickle").write_bytes(pickle.dumps(series.subset([1])))
    script = (
        "import pickle, sys, warnings, tl_lifehist\n"
        "series = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert not {'transformers', 'transformer_lens', 'huggingface_hub'} & set(sys.modules), 'imported too early'\n"
        "from tl_lifehist.checkpoints.integrity import fingerprint\n"
        "print(fingerprint(series[1]), series.tokenizer('w3')['input_ids'])\n"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    run = [sys.executable, "-c", script, str(tmp_path / "series.pickle")]
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    from tl_lifehist.checkpoints.integrity import fingerprint

    assert done.stdout.strip() == f"{fingerprint(series[1])} [3]"


def test_verify_finds_duplicates_and_what_is_missing(run_folder):
    shutil.copytree(run_folder / "step1", run_folder / "step2")
    file = run_folder / "step1000" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:500])
    report = CheckpointSeries.from_directory(run_folder, device="cpu").verify()
    assert [(d.step_a, d.step_b, d.whole) for d in report.duplicates] == [(1, 2, True)]
    assert report.missing == (1000,)
    assert report.steps == (0, 1, 2, 1000)
    assert not report.ok
    assert "truncated or damaged" in str(report)


def test_verify_passes_a_sound_series_and_names_what_a_loader_misses(series):
    assert series.verify().ok
    report = CheckpointSeries.from_loader([3, 13], load_hooked).verify(progress=False)
    assert report.missing == (13,)
    assert report.reasons[13] == "13 is gone"
    assert not report.ok


def test_verify_does_not_hide_a_fault_of_the_loader():
    with pytest.raises(ZeroDivisionError):
        CheckpointSeries.from_loader([0], lambda step: 1 // step).verify()
