"""Every family, from its name on the (emulated) hub to the tables of a study, and the parts that a study stands on."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import families
from checkpoints.conftest import Hub
from served import served
from typer.testing import CliRunner

import tl_lifehist as lh
from tl_lifehist.cli import app
from tl_lifehist.console import open_series, open_texts
from tl_lifehist.models import run_model
from tl_lifehist.suffix import ModelSuffix

# family -> repository, the branches of its two checkpoints
CHECKPOINTS = {
    "GPT-NeoX": ("EleutherAI/pythia-160m", ("step0", "step143000")),
    "OLMo": ("allenai/OLMo-1B-hf", ("step1000-tokens4B", "step738020-tokens3094B")),
    "OLMo 0724": ("allenai/OLMo-1B-0724-hf", ("step0-tokens0B", "step1454000-tokens3048B")),
    "OLMo 2": ("allenai/OLMo-2-0425-1B", ("stage1-step0-tokens0B", "stage1-step10000-tokens21B")),
    "Llama": ("tiny/llama", ("step4", "step8")),
    "GPT-2": ("stanford-crfm/alias-gpt2-small-x21", ("checkpoint-0", "checkpoint-400000")),
    "EuroBERT": ("EuroBERT/EuroBERT-210m", ("step10000", "step480000")),
    "ModernBERT": ("almanach/moderncamembert-base-ckpts", ()),  # files that Composer wrote
}
HOOKS = ("blocks.1.hook_mlp_out", "blocks.1.hook_resid_post", "blocks.2.hook_resid_post")
MASKED = families.MASKED_FAMILIES
QUICK: dict[str, Any] = {"methods": ("svd",), "targets": ("reconstruction",), "n_components": 4, "mask_steps": 2}


def tokenizer_for(family: str) -> Any:
    """One id a word. EuroBERT puts BOS and EOS around a text, ModernBERT [CLS] and [SEP], the others nothing."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    roles = {
        "EuroBERT": {"pad_token": "<p>", "bos_token": "<a>", "eos_token": "<b>", "mask_token": "<m>"},
        "ModernBERT": {"pad_token": "<p>", "cls_token": "<a>", "sep_token": "<b>", "mask_token": "<m>"},
    }.get(family, dict.fromkeys(("bos_token", "eos_token", "pad_token"), "<p>"))
    vocabulary = {word: i for i, word in enumerate(["<p>", "<a>", "<b>", "<m>", *(f"w{i}" for i in range(4, 64))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<m>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if family in MASKED:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<a> $A <b>", special_tokens=[("<a>", 1), ("<b>", 2)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """The repositories, two checkpoints each, as folders by branch."""
    root, repos = tmp_path_factory.mktemp("published"), {}
    for family, (repo, branches) in CHECKPOINTS.items():
        for seed, branch in enumerate(branches):
            families.build(family, seed).save_pretrained(root / family / branch)
            tokenizer_for(family).save_pretrained(root / family / branch)
        repos[repo] = {branch: root / family / branch for branch in branches}
    repos["almanach/moderncamembert-base-ckpts"] = {"main": families.publish_composer(root / "composer")}
    final = root / "final"
    families.build("ModernBERT", 0).save_pretrained(final)
    tokenizer_for("ModernBERT").save_pretrained(final)
    repos["almanach/moderncamembert-base"] = {"main": final}
    return repos


@pytest.fixture(scope="module")
def hub(folders: dict[str, dict[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with served(folders, tmp_path_factory.mktemp("cache")) as server:
        yield server


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents of random words, some more frequent than others."""
    words, draw = [f"w{i}" for i in range(4, 64)], random.Random(0)
    weights = [1 / (1 + i) for i in range(60)]
    documents = [" ".join(draw.choices(words, weights, k=70)) for _ in range(15)]
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n\n".join(documents))
    return path


@pytest.mark.parametrize("family", list(CHECKPOINTS))
def test_a_life_history_from_a_name_to_tables(hub, texts, tmp_path, family, saelens):
    """By the command."""
    sizes = "--layers 1 --d-sae 16 --k 4 --training-tokens 700 --n-draws 1 --load-tokens 60 --context-size 20"
    where = ["--model", CHECKPOINTS[family][0], "--texts", str(texts), "--out", str(tmp_path / "run")]
    switches = ["--workers", "0", "--quiet", *(["--masked"] if family in MASKED else [])]
    shown = CliRunner().invoke(app, ["life-history", *where, *sizes.split(), *switches])
    assert shown.exit_code == 0, shown.output
    found = lh.load_run(tmp_path / "run")
    expected = {"checkpoints", "events", "lineages", "carriers", "edges", "dag", "rematch", "forecast", "claims"}
    assert expected <= {*found.tables}
    assert len(found.claims) > 5
    assert set(found.claims["verdict"]) <= {"beyond", "within", "not testable", "descriptive"}
    assert found.study["steps"] == list(lh.CheckpointSeries.from_hub(CHECKPOINTS[family][0]).steps)
    assert set(found.table("lineages")["step"]) == set(found.study["steps"])
    assert (found.path / "report.html").stat().st_size > 10_000


def test_the_commands_find_a_stage_and_a_sub_folder(hub, folders, texts, tmp_path):
    early, late = folders["allenai/OLMo-2-0425-1B"].values()
    hub.repos["tiny/stages"] = {
        "stage1-step1000-tokens3B": early,
        "stage2-ingredient1-step1000-tokens3B": early,
        "stage2-ingredient2-step2000-tokens5B": late,
    }
    for step, folder in ((4, early), (8, late)):
        shutil.copytree(folder, tmp_path / "inside" / "runs" / str(step) / "hf")
        (tmp_path / "inside" / "runs" / str(step) / "hf" / "config.json").unlink()
    hub.repos["tiny/inside"] = {"main": tmp_path / "inside"}

    def listed(*arguments: str) -> str:
        shown = CliRunner().invoke(app, ["checkpoints", *arguments])
        assert shown.exit_code == 0, shown.output
        return shown.output

    assert "stage1-step1000" in listed("tiny/stages")
    second = listed("tiny/stages", "--stage", "2", "--ingredient", "2")
    assert "stage2-ingredient2-step2000" in second
    assert "1 checkpoints" not in second
    assert "ingredient1" not in second
    assert "2 checkpoints" in listed("tiny/inside", "--subfolder", "runs/{step}/hf")
    layout = ["--subfolder", "runs/{step}/hf", "--config-from", str(early)]
    sizes = ["--texts", str(texts), "--context-size", "20", "--n-components", "8"]
    shown = CliRunner().invoke(app, ["sufficiency", "--model", "tiny/inside", *layout, *sizes, "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "Model: 3 blocks of width 32" in shown.output
    options = {"subfolder": "runs/{step}/hf", "config_from": str(early)}
    kept, dropped = (open_series("tiny/inside", [], drop=drop, **options) for drop in (False, True))
    for series in (kept, dropped):
        series.load(8)
    assert int(kept.plan().loc[1, "to_download"]) > 0  # the second load dropped what both share


@pytest.mark.parametrize("family", list(CHECKPOINTS))
def test_masks_from_a_name_to_tables(hub, texts, tmp_path, family):
    """By the class, whose smallest sizes are smaller than the command's."""
    series = lh.CheckpointSeries.from_hub(CHECKPOINTS[family][0], device="cpu")
    splits = open_texts(series, texts, ("train", "calibration", "test"), context_size=20, masked=family in MASKED)
    study = lh.SufficiencyStudy(
        series,
        ("blocks.1.hook_mlp_out",),
        **dict(zip(("train", "calibration", "test"), splits, strict=True)),
        methods=("svd",),
        n_components=8,
        mask_steps=3,
        batch_size=4,
        translator_steps=3,
        sweep=(),
        seeds=(0,),
        n_random=1,
    )
    found = study.run(tmp_path / "run", progress=False)
    expected = {"checkpoints", "dictionaries", "components", "masks", "evaluation", "nulls", "transfer", "anisotropy"}
    assert expected | {"trajectories", "claims"} <= {*found.tables}
    evaluation = found.table("evaluation")
    assert set(evaluation["mask"]) == {"reconstruction", "fixed_head", "downstream", "transfer", "empty", "full"}
    assert (evaluation.loc[evaluation["mask"] == "empty", "lost_fraction"] == 1).all()
    assert evaluation[["kl", "nmse", "soft_mass", "fixed_head_kl", "transfer_kl"]].notna().all(axis=None)
    full = evaluation[evaluation["mask"] == "full"]
    assert (full["lost_fraction"] < 1).all()
    assert (full["nmse"] < 1).all()
    assert set(found.claims["verdict"]) <= {"beyond", "within", "not testable", "descriptive"}
    assert len(found.claims) > 5
    assert found.report().stat().st_size > 10_000


def tokens_for(family: str) -> dict[str, lh.TokenSet]:
    """The same kind of text with and without padding."""
    draw = torch.Generator().manual_seed(3)
    make = lh.TokenSet.for_masked_lm if family in MASKED else lh.TokenSet.from_texts
    room = 18 if family in MASKED else 19  # beside the special tokens
    sets = {}
    for name, lengths in (("whole", (room, 2 * room, room)), ("padded", (room + 4, 11, 2 * room - 5))):
        drawn = [" ".join(f"w{i}" for i in torch.randint(4, 64, (n,), generator=draw)) for n in lengths]
        more = {"mask_rate": 0.4} if family in MASKED else {}
        sets[name] = make(drawn, tokenizer_for(family), context_size=20, **more)
    assert sets["whole"].attention_mask is None
    assert sets["padded"].attention_mask is not None
    return sets


@torch.no_grad()
@pytest.mark.parametrize("family", list(CHECKPOINTS))
def test_the_part_above_a_hook_point_and_open_gates_leave_the_model_as_it_is(hub, family):
    series = lh.CheckpointSeries.from_hub(CHECKPOINTS[family][0], device="cpu")
    model = series.load(series.steps[-1])
    for kind, tokens in tokens_for(family).items():
        clean = run_model(model, tokens.ids, tokens.attention_mask)[tokens.scored]
        for hook_name in HOOKS:
            suffix = ModelSuffix(model, hook_name)
            prefix = suffix.run_prefix(tokens)
            torch.testing.assert_close(suffix.head(prefix.final), clean, atol=2e-5, rtol=0, msg=f"{kind} {hook_name}")
            rows = 0.3 * prefix.acts.flip(0) + 0.1

            def put(value, hook, rows=rows, valid=tokens.valid):
                changed = value.clone()
                changed[valid] = rows
                return changed

            with model.hooks(fwd_hooks=[(hook_name, put)]):
                hooked = run_model(model, tokens.ids, tokens.attention_mask)[tokens.scored]
            torch.testing.assert_close(
                suffix.head(suffix.run_suffix(prefix, rows)), hooked, atol=2e-5, rtol=0, msg=f"{kind} {hook_name}"
            )
            assert float((hooked - clean).abs().max()) > 1e-3
            complete = lh.decompose(prefix.acts, method="svd", n_components=32)
            for gate, changes in ((1.0, False), (0.0, True)):
                gated = lh.MaskedReconstruction(hook_name, complete, torch.full((32,), gate))
                with model.hooks(fwd_hooks=gated.fwd_hooks(valid=tokens.valid)):
                    logits = run_model(model, tokens.ids, tokens.attention_mask)[tokens.scored]
                assert (float((logits - clean).abs().max()) > 1e-4) == changes, (kind, hook_name, gate)


@pytest.fixture
def faulty(folders, hub, tmp_path) -> Any:
    """A repository whose second branch holds the first one's weights, or one block of them."""
    from safetensors.torch import load_file, save_file

    def publish(fault: str) -> lh.CheckpointSeries:
        good = folders["EleutherAI/pythia-160m"]
        root = tmp_path / fault
        branches = {"step0": good["step0"], "step1": Path(shutil.copytree(good["step143000"], root / "step1"))}
        weights = load_file(good["step0"] / "model.safetensors")
        own = load_file(root / "step1" / "model.safetensors")
        copied = {k: v for k, v in weights.items() if fault == "branch" or ".layers.1." in k}
        save_file({**own, **copied}, root / "step1" / "model.safetensors", metadata={"format": "pt"})
        hub.repos[f"faulty/{fault}"] = branches
        return lh.CheckpointSeries.from_hub(f"faulty/{fault}", device="cpu")

    return publish


@pytest.mark.parametrize(
    ("fault", "said"),
    [("branch", "Steps 0 and 1 are identical"), ("block", "Steps 0 and 1 share the weights of block 1")],
)
def test_a_copied_branch_and_a_copied_block_are_named_and_stop_both_studies(faulty, tmp_path, fault, said):
    series = faulty(fault)
    assert said in str(series.verify())
    draw = torch.Generator().manual_seed(0)
    drawn = [[" ".join(f"w{i}" for i in torch.randint(4, 64, (18,), generator=draw))] * 4 for _ in range(3)]
    train, calibration, test = (lh.TokenSet.from_texts(d, series.tokenizer, context_size=20) for d in drawn)
    studies = {
        "life": lh.LifeHistoryStudy(series, HOOKS[:1], train=train, test=test, d_sae=16, k=2, training_tokens=200),
        "masks": lh.SufficiencyStudy(
            series, HOOKS[:1], train=train, calibration=calibration, test=test, **QUICK, translator_steps=1
        ),
    }
    if find_spec("sae_lens") is None:  # as on transformer-lens 4
        studies.pop("life")
    for name, study in studies.items():
        with pytest.raises(lh.InputError, match=f"(?s)identical weights.*{said}.*allow_duplicates"):
            study.run(tmp_path / name)
        assert not (tmp_path / name / "tables").exists()


def test_a_shard_that_every_checkpoint_shares_stops_a_study_unless_it_is_allowed(hub, folders, texts, tmp_path):
    """As on some pythia-12b branches, whose first shard is the final model's."""
    from safetensors.torch import load_file, save_file

    first = folders["EleutherAI/pythia-160m"]["step0"]
    shard = {k: v for k, v in load_file(first / "model.safetensors").items() if ".layers.0." in k or "embed_in" in k}
    branches = {"step0": first}
    for step in (1, 2):
        branches[f"step{step}"] = tmp_path / f"step{step}"
        families.build("GPT-NeoX", 7 + step).save_pretrained(branches[f"step{step}"])
        tokenizer_for("GPT-NeoX").save_pretrained(branches[f"step{step}"])
        file = branches[f"step{step}"] / "model.safetensors"
        save_file({**load_file(file), **shard}, file, metadata={"format": "pt"})
    hub.repos["faulty/shard"] = branches
    series = lh.CheckpointSeries.from_hub("faulty/shard", device="cpu")
    splits = open_texts(series, texts, ("train", "calibration", "test"), context_size=20)
    named = dict(zip(("train", "calibration", "test"), splits, strict=True))
    study = lh.SufficiencyStudy(series, HOOKS[:1], **named, **QUICK, translator_steps=1)
    with pytest.raises(lh.InputError, match="(?s)share the weights of embedding, block 0.*allow_duplicates"):
        study.run(tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / "tables").exists()
    allowed = lh.SufficiencyStudy(series, HOOKS[:1], **named, **QUICK, translator_steps=1, allow_duplicates=True)
    run = allowed.run(tmp_path / "run", progress=False)
    assert "The same at every step: embedding, block 0" in run.study["integrity"]
    page = run.report().read_text()
    assert "The same at every step: embedding, block 0" in page[: page.index("<nav")]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_study_drops_each_checkpoint_when_nothing_needs_it_any_more(hub, texts, tmp_path, monkeypatch, workers):
    """Each fetched once, however many units load it at once."""
    from tl_lifehist.console import worker_pool

    monkeypatch.setenv("HF_ENDPOINT", hub.url)  # for the workers
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    repo = "tiny/llama"
    cache = tmp_path / "cache"
    series = lh.CheckpointSeries.from_hub(repo, keep=False, cache_dir=cache, device="cpu")
    splits = open_texts(series, texts, ("train", "calibration", "test"), context_size=20)
    study = lh.SufficiencyStudy(
        series,
        HOOKS,
        **dict(zip(("train", "calibration", "test"), splits, strict=True)),
        methods=("svd",),
        n_components=8,
        mask_steps=2,
        batch_size=4,
        translator_steps=2,
        sweep=(),
        seeds=(0,),
        n_random=1,
    )
    before = hub.fetched("model.safetensors")
    with worker_pool(workers) as executor:
        run = study.run(tmp_path / "run", executor=executor, progress=False)
    assert hub.fetched("model.safetensors") - before == len(series)
    assert len(run.table("evaluation")) > 0
    assert not list(cache.rglob("model.safetensors"))


def test_a_masked_model_is_scored_as_one_without_being_told(hub, texts):
    series = open_series("EuroBERT/EuroBERT-210m", [])
    (tokens,) = open_texts(series, texts, ("train",), context_size=20)
    mask = series.tokenizer.mask_token_id
    assert tokens.n_scored > 0
    assert (tokens.ids[tokens.scored] == mask).all()  # every position that is asked for is hidden
    (causal,) = open_texts(open_series("tiny/llama", []), texts, ("train",), context_size=20)
    assert not (causal.ids == mask).any()
