"""Every published layout of checkpoints, on the emulated hub and copied to a local folder."""

from __future__ import annotations

import shutil
import zipfile

import pytest
import torch
from checkpoints.families import FAMILIES, build, composer_state

from tl_lifehist.checkpoints.composer import transformers_name
from tl_lifehist.checkpoints.revisions import find_places
from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError

COMPOSER, FOLDERS, FINAL = "almanach/moderncamembert-base-ckpts", "tiny/folders-only", "almanach/moderncamembert-base"
EUROBERT, PYTHIA, OLMO2 = FAMILIES["EuroBERT"][2], FAMILIES["GPT-NeoX"][2], FAMILIES["OLMo 2"][2]


@pytest.fixture
def from_hub(published):
    def open_series(repo, steps=None, **options):
        return CheckpointSeries.from_hub(repo, steps, cache_dir=published.cache, device="cpu", **options)

    return open_series


@torch.no_grad()
def assert_is(model, family, seed, ids):
    torch.testing.assert_close(model(ids), build(family, seed)(ids).logits, atol=1e-5, rtol=0)


def test_steps_are_read_from_every_way_of_naming_branches(from_hub):
    expected = {
        PYTHIA: (0, 1, 143000),
        "allenai/OLMo-1B-hf": (1000, 738020),
        "allenai/OLMo-1B-0724-hf": (0, 1454000),
        OLMO2: (1000,),
        EUROBERT: (10000, 480000),
        "stanford-crfm/alias-gpt2-small-x21": (0, 400000),
        COMPOSER: (1000, 3000),
        FOLDERS: (10, 20),
    }
    assert {repo: from_hub(repo).steps for repo in expected} == expected
    with pytest.raises(
        InputError, match=r"OLMo-1B-hf has no checkpoint of step 2000; the nearest steps are: 1000, 738"
    ):
        from_hub("allenai/OLMo-1B-hf", [2000])


def test_stages_and_ingredients_are_series_of_their_own(from_hub, ids):
    assert_is(from_hub(OLMO2, [1000]).load(1000), "OLMo 2", 0, ids)
    assert_is(from_hub(OLMO2, stage=2, ingredient=2).load(1000), "OLMo 2", 2, ids)
    with pytest.raises(InputError, match=r"two checkpoints of step 1000.*ingredient="):
        from_hub(OLMO2, stage=2)


def test_irregular_names_are_looked_up_and_their_tokens_listed(from_hub):
    table = from_hub("allenai/OLMo-1B-hf").plan()
    assert list(table["revision"]) == ["step1000-tokens4B", "step738020-tokens3094B"]
    assert list(table["tokens_billion"]) == [4, 3094]
    assert from_hub(PYTHIA).plan()["tokens_billion"].isna().all()


def test_main_is_a_step_only_where_that_is_known(published, from_hub, ids):
    branches = published.server.repos[PYTHIA]
    published.server.repos[PYTHIA] = {"main": branches["step143000"], "step0": branches["step0"]}
    series = from_hub(PYTHIA)
    assert series.steps == (0, 143000)
    assert_is(series.load(143000), "GPT-NeoX", 2, ids)
    published.server.repos[PYTHIA] = {"main": branches["step0"], **branches}
    assert_is(from_hub(PYTHIA).load(143000), "GPT-NeoX", 2, ids)  # where the step has its own branch, main stays out
    published.server.repos["EleutherAI/gpt-neo-tiny"] = {"main": branches["step143000"], "step0": branches["step0"]}
    assert from_hub("EleutherAI/gpt-neo-tiny").steps == (0,)
    assert "main" in published.server.repos[EUROBERT]
    last = from_hub(EUROBERT)
    assert_is(last.load(480000), "EuroBERT", 1, ids)  # the last step, and not the annealed model of main


def test_composer_files_load_with_the_configuration_of_the_final_model(published, from_hub, ids):
    series = from_hub(COMPOSER)
    assert_is(series.load(3000), "ModernBERT", 3000, ids)
    assert series.tokenizer.mask_token_id == 3
    assert published.server.fetched("ep0-ba3000-rank0.pt") == 1
    assert published.server.fetched("ep0-ba1000-rank0.pt") == 0
    published.server.repos["me/copy"] = published.server.repos[COMPOSER]
    with pytest.raises(InputError, match=r"Step 1000: .* has no config\.json.*config_from="):
        from_hub("me/copy").load(1000)
    assert_is(from_hub("me/copy", config_from=FINAL).load(1000), "ModernBERT", 1000, ids)
    template = from_hub("me/copy", subfolder="ep0-ba{step}-rank0.pt", config_from=FINAL)
    assert template.steps == (1000, 3000)
    published.server.requests.clear()
    published.point_at(published.server.url, offline=True)
    again = from_hub(COMPOSER)
    assert again.steps == (3000,)
    assert_is(again.load(3000), "ModernBERT", 3000, ids)
    assert published.server.requests == []


def test_a_composer_file_of_numpy_1_loads(published, from_hub, tmp_path, ids):
    """Its random states name numpy's internals as they were called before numpy 2."""
    file = published.server.repos[COMPOSER]["main"] / "ep0-ba3000-rank0.pt"
    old = tmp_path / "old" / file.name
    old.parent.mkdir()
    with zipfile.ZipFile(file) as source, zipfile.ZipFile(old, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            content = source.read(entry)
            if entry.filename.endswith("data.pkl"):
                assert b"numpy._core.multiarray" in content
                content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
            target.writestr(entry, content)
    published.server.repos["me/old"] = {"main": old.parent}
    assert_is(from_hub("me/old", config_from=FINAL).load(3000), "ModernBERT", 3000, ids)


def test_folders_that_hold_weights_alone(from_hub, ids):
    assert_is(from_hub(FOLDERS, config_from=FINAL).load(20), "ModernBERT", 20, ids)
    named = from_hub(FOLDERS, [10], subfolder="pretrain/ckpt-{step}/pt", config_from=FINAL)
    assert_is(named.load(10), "ModernBERT", 10, ids)
    assert named.tokenizer.mask_token_id == 3


def test_the_same_layouts_in_a_local_folder(published, tmp_path, ids):
    final = published.server.repos[FINAL]["main"]
    for repo, inside in ((COMPOSER, ""), (FOLDERS, "pretrain")):
        root = shutil.copytree(published.server.repos[repo]["main"], tmp_path / repo)
        series = CheckpointSeries.from_directory(root / inside, config_from=final, device="cpu")
        step = series.steps[-1]
        assert_is(series.load(step), "ModernBERT", step, ids)
        assert series.tokenizer.mask_token_id == 3
        assert list(series.plan()["to_download"]) == [0, 0]
        assert series.is_portable
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(final / name, root / inside)
        assert_is(CheckpointSeries.from_directory(root / inside, device="cpu").load(step), "ModernBERT", step, ids)
    named = CheckpointSeries.from_directory(root, subfolder="pretrain/ckpt-{step}/pt", config_from=final, device="cpu")
    assert_is(named.load(10), "ModernBERT", 10, ids)
    with pytest.raises(InputError, match=r"holds nothing that looks like 'ckpt_\{step\}'"):
        CheckpointSeries.from_directory(root, subfolder="ckpt_{step}")


def test_a_composer_file_in_a_step_folder_is_found_too(published, tmp_path, ids):
    root = tmp_path / "mine"
    (root / "step7").mkdir(parents=True)
    torch.save(composer_state(build("ModernBERT", 5)), root / "step7" / "ep0-ba5-rank0.pt")
    final = published.server.repos[FINAL]["main"]
    series = CheckpointSeries.from_directory(root, config_from=final, device="cpu")
    assert series.steps == (7,)  # the folder's name, for it was not named as a place that is deeper
    assert_is(series.load(7), "ModernBERT", 5, ids)
    torch.save({}, root / "step7" / "ep0-ba6-rank0.pt")
    with pytest.raises(InputError, match=r"Step 7: .* holds several Composer files \(ep0-ba5-rank0\.pt, ep0-ba6"):
        series.load(7)


class Hostile:
    def __init__(self, victim):
        self.victim = victim

    def __reduce__(self):
        return (type(self.victim).touch, (self.victim,))


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("lacks", r"lack 1 of the model's parameters \(head\.norm\.weight\)"),
        ("extra", r"hold 1 that the model does not have \(model\.layers\.9\.attn\.Wo\.weight\)"),
        ("no model", r"holds no model at \['state'\]\['model'\]"),
        ("hostile", "could not be read"),
        ("cut", "could not be read"),
        ("nan", "logits are NaN or infinite"),
    ],
)
def test_faults_of_a_composer_file_are_told_in_a_sentence(published, tmp_path, fault, said):
    state, file, victim = composer_state(build("ModernBERT", 5)), tmp_path / "ep0-ba5-rank0.pt", tmp_path / "victim"
    weights = state["state"]["model"]
    if fault == "lacks":
        del weights["model.head.norm.weight"]
    elif fault == "extra":
        weights["model.bert.encoder.layers.9.attn.Wo.weight"] = torch.ones(2)
    elif fault == "no model":
        state = {"model": weights}
    elif fault == "hostile":
        state["rng"] = Hostile(victim)
    elif fault == "nan":
        weights["model.head.dense.weight"][0, 0] = torch.nan
    torch.save(state, file)
    if fault == "cut":
        file.write_bytes(file.read_bytes()[:-2000])
    series = CheckpointSeries.from_directory(tmp_path, config_from=published.server.repos[FINAL]["main"], device="cpu")
    with pytest.raises(InputError, match=rf"Step 5: .*{said}"):
        series.load(5)
    assert not victim.exists()


def test_composer_names_become_those_of_transformers():
    own = set(build("ModernBERT", 0).state_dict())
    saved = composer_state(build("ModernBERT", 0))["state"]["model"]
    assert {transformers_name(name) for name in saved} == own
    assert not own & set(saved)


def test_places_are_found_among_files_and_two_for_one_step_are_refused():
    files = ["a/ckpt-3/pt/model.safetensors", "a/ckpt-3/pt/config.json", "step9/notes.md", "x/model.safetensors"]
    assert find_places(files) == {3: "a/ckpt-3/pt"}
    assert find_places(["stage1-step5/model.safetensors", "stage2-step5/ep0-ba7-rank0.pt"], stage=1) == {
        5: "stage1-step5"
    }
    assert find_places(["r/ep0-ba7-rank0.pt", "r/ep0-ba7-rank1.pt", "r/optimizer.pt"]) == {7: "r/ep0-ba7-rank0.pt"}
    with pytest.raises(
        InputError,
        match=r"step 3 of 2 training runs \(a, b\), a/ckpt-3/pt and b/step3.*pattern='a/ckpt-\{step\}/pt'",
    ):
        find_places([*files, "b/step3/pytorch_model.bin"])


def test_masks_and_frequencies_that_older_versions_stored_are_no_fault(tmp_path, ids):
    from safetensors.torch import load_file, save_file

    for family, stale in (("GPT-2", "transformer.h.0.attn.masked_bias"), ("Llama", "model.rotary_emb.inv_freq")):
        root = tmp_path / family
        build(family, 1).save_pretrained(root / "step1")
        file = root / "step1" / "model.safetensors"
        save_file({**load_file(file), stale: torch.ones(1)}, file, metadata={"format": "pt"})
        assert_is(CheckpointSeries.from_directory(root, device="cpu").load(1), family, 1, ids)
