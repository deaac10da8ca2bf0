"""What a study would fetch, compute and store, and whether it then does."""

from __future__ import annotations

import pytest
from checkpoints import families
from served import served
from small import small_study
from small_masks import small_masks
from typer.testing import CliRunner

import tl_lifehist as lh
from tl_lifehist.cli import app
from tl_lifehist.dry_run import plan_study
from tl_lifehist.errors import InputError
from tl_lifehist.runs import Run

RUNNER = CliRunner()
HOOK = "blocks.0.hook_mlp_out"


def in_folder(run: Run) -> int:
    return sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())


@pytest.fixture
def counted(pocket_series):
    """Two checkpoints that count the positions their first block works on."""
    models = {step: pocket_series.load(step) for step in (512, 4096)}
    count = [0]

    def see(module, args, kwargs, result) -> None:
        value = args[0] if args else kwargs["hidden_states"]
        count[0] += value.shape[0] * value.shape[1]

    for model in models.values():
        model.blocks[0].attn.register_forward_hook(see, with_kwargs=True)
    return lh.CheckpointSeries.from_models(models), count


def test_the_plan_of_masks_is_what_the_run_then_takes(counted, tmp_path):
    series, count = counted
    texts = {"train": lh.TokenSet.pocket("train")[::400], "test": lh.TokenSet.pocket("test")[::90][:2]}
    one = {"methods": ("svd",), "close_ups": ("svd",), "seeds": (0,)}
    study = small_masks(series=series, hook_names=(HOOK,), mask_steps=15, **one, **texts)
    plan = plan_study(study, tmp_path / "run")
    assert count == [0]
    assert not (tmp_path / "run").exists()
    assert plan.work["stages"].sum() == len(plan.stages) == len(study.stages())
    assert set(plan.work["finished"]) == {0}
    assert plan.loads == 4  # the last one for its fits, for the other checkpoint and for its own masks
    run = study.run(tmp_path / "run")
    assert 0.8 * plan.work["positions"].sum() < count[0] <= 1.05 * plan.work["positions"].sum()
    run.report()
    assert in_folder(run) <= plan.to_store < 3 * in_folder(run) + 6e6
    done = plan_study(study, tmp_path / "run").work
    assert done["finished"].tolist() == done["stages"].tolist()
    assert plan.work["gradients"].sum() < plan.work["positions"].sum()


def test_the_plan_of_a_life_history_is_what_the_run_then_takes(counted, tmp_path, saelens):
    series, count = counted
    texts = {"train": lh.TokenSet.pocket("train")[::60], "test": lh.TokenSet.pocket("test")[::12]}
    few = {"training_tokens": 1500, "n_draws": 1, "load_tokens": 250, "noise_steps": (4096,)}
    study = small_study(series=series, **few, **texts)
    plan = plan_study(study, tmp_path / "run")
    assert count == [0]
    run = study.run(tmp_path / "run")
    planned, checks = plan.work["positions"].sum(), 2 * 12 * 128  # what is assumed of a model, on two sequences
    assert 0.4 * planned < count[0] <= planned + checks  # not every control exists
    run.report()
    assert in_folder(run) <= plan.to_store < 3 * in_folder(run) + 6e6
    done = plan_study(study, tmp_path / "run").work
    assert done["finished"].tolist() == done["stages"].tolist()
    n_saes = len(list(run.path.glob("stages/**/sae_weights.safetensors")))
    stored = plan.storage.set_index("what")
    assert stored.loc["training SAEs", "stages"] * len(study.hook_names) == n_saes
    previous = plan_study(small_study(series=series, init="previous"))
    assert previous.to_store > plan_study(small_study(series=series)).to_store


def test_more_of_everything_takes_more():
    small, large = (plan_study(small_masks(**changes)) for changes in ({}, {"mask_steps": 80, "n_components": 60}))
    assert large.operations > 2 * small.operations
    assert large.to_store > small.to_store
    assert plan_study(small_masks(targets=("reconstruction",))).work["gradients"].sum() < small.work["gradients"].sum()


@pytest.mark.parametrize("command", ["life-history", "sufficiency"])
def test_nothing_is_loaded_and_nothing_written(tmp_path, monkeypatch, command):
    monkeypatch.setattr("tl_lifehist.checkpoints.on_disk.boot_folder", None)  # a load would fail
    out = tmp_path / "run"
    shown = RUNNER.invoke(app, [command, "--steps", "0,4096", "--out", str(out), "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "pocket: 2 checkpoints of 2.2 MB, 0 B to download." in shown.output
    assert "Model: 4 blocks of width 96" in shown.output
    assert "Nothing was done" in shown.output
    assert "report:" not in shown.output
    assert not out.exists()


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("life-history", ["--layers", "4"], "4 blocks, 0 to 3, and no hook point 'blocks.4.hook_resid_post'"),
        ("sufficiency", ["--layers", "1,7"], "4 blocks, 0 to 3, and no hook point 'blocks.7.hook_mlp_out'"),
        ("sufficiency", ["--n-components", "97"], "use at most 96"),
    ],
)
def test_what_the_model_cannot_give_is_said_before(tmp_path, command, arguments, message):
    shown = RUNNER.invoke(app, [command, *arguments, "--out", str(tmp_path / "run"), "--dry-run"])
    assert shown.exit_code == 2
    assert message in shown.output


@pytest.mark.parametrize("family", ["GPT-NeoX", "GPT-2", "EuroBERT", "ModernBERT"])
def test_of_the_hub_no_weights_are_fetched(tmp_path, masked_words, family):
    branches = {"main": tmp_path / "b"} if family == "ModernBERT" else {f"step{s}": tmp_path / f"b{s}" for s in (0, 9)}
    repo = "tiny/final" if family == "ModernBERT" else "tiny/model"
    for seed, folder in enumerate(branches.values()):
        families.build(family, seed).save_pretrained(folder)
        masked_words.save_pretrained(folder)
    repos = {repo: branches}
    letters = tmp_path / "letters.txt"
    letters.write_text("\n\n".join(" ".join("abcdefghijklmnopqrstuvwxyz"[i:] * 8) for i in range(10)))
    with served(repos, tmp_path / "cache") as hub:
        if family == "ModernBERT":
            hub.repos["almanach/moderncamembert-base"] = branches
            repo = "almanach/moderncamembert-base-ckpts"
            hub.repos[repo] = {"main": families.publish_composer(tmp_path / "composer")}
        series = lh.CheckpointSeries.from_hub(repo)
        shape = series.shape
        assert (shape.n_layers, shape.d_model, shape.d_vocab) == (3, 32, 64)
        shown = RUNNER.invoke(
            app,
            ["sufficiency", "--model", repo, "--texts", str(letters), "--context-size", "20", "--dry-run"],
            catch_exceptions=False,
        )
        assert shown.exit_code == 0, shown.output
        assert "blocks of width 32" in shown.output
        for ending in ("model.safetensors", "pytorch_model.bin", ".pt"):
            assert hub.fetched(ending) == 0
        plan = series.plan()
        assert (plan["size"] - plan["to_download"]).max() < 2000  # the configuration, no more
        assert f"{len(series)} checkpoints" in shown.output
        assert shape.n_parameters == sum(p.numel() for p in families.build(family, 0).parameters())


@pytest.fixture
def masked_words():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<p>": 0, "<m>": 1, **{chr(97 + i): 2 + i for i in range(26)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<m>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<p>", mask_token="<m>")


def test_a_folder_without_a_configuration_and_a_model_without_cfg_are_named(tmp_path):
    from torch import nn

    from tl_lifehist.checkpoints.boot import LoadOptions
    from tl_lifehist.checkpoints.shape import shape_of_folders, shape_of_model

    with pytest.raises(InputError, match=r"no config\.json.*config_from="):
        shape_of_folders([tmp_path], LoadOptions())
    (tmp_path / "config.json").write_text('{"model_type": "no such thing"}')
    with pytest.raises(InputError, match="could not be used"):
        shape_of_folders([tmp_path], LoadOptions())
    with pytest.raises(InputError, match="name the hook points"):
        shape_of_model(nn.Linear(2, 2))
