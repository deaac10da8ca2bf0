from __future__ import annotations

import json
import sys

import pytest
import torch

from tl_lifehist.checkpoints.boot import LoadOptions, boot_folder, load_tokenizer, quiet_transformers
from tl_lifehist.errors import InputError

CPU = LoadOptions(device="cpu")


def boot(folder, tokenizer=None, options=CPU):
    return boot_folder(folder, 1000, name="tiny", tokenizer=tokenizer, options=options)


@pytest.mark.parametrize("with_tokenizer", [True, False])
def test_logits_are_those_of_transformers(run_folder, tiny_model, tiny_tokenizer, ids, with_tokenizer):
    tokenizer = load_tokenizer(run_folder, CPU) if with_tokenizer else None
    model = boot(run_folder / "step1000", tokenizer)
    with torch.no_grad():
        torch.testing.assert_close(model(ids), tiny_model(1000)(ids).logits, atol=1e-6, rtol=0)
    assert (model.tokenizer is not None) == with_tokenizer
    assert model.cfg.model_name == "tiny"
    assert str(model.cfg.device) == "cpu"


@pytest.mark.parametrize("family", ["Olmo", "Olmo2", "Llama", "GPT2"])
def test_the_other_causal_families_boot_with_their_own_logits(tmp_path, ids, family):
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    own = {"n_positions": 32} if family == "GPT2" else {"intermediate_size": 48, "pad_token_id": None}
    config = getattr(transformers, f"{family}Config")(**sizes, **own, bos_token_id=0, eos_token_id=0)
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    with torch.random.fork_rng(devices=[]):
        source = getattr(transformers, family + head)(config).eval()
    source.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(boot(tmp_path)(ids), source(ids).logits, atol=1e-6, rtol=0)


def test_a_loaded_model_is_frozen_in_evaluation_and_hooked_once(run_folder, ids):
    state = torch.get_rng_state()
    model = boot(run_folder / "step0")
    assert torch.equal(state, torch.get_rng_state())
    assert not model.training
    assert not any(p.requires_grad for p in model.parameters())
    fired = []
    names = [f"blocks.{i}.{site}" for i in range(3) for site in ("hook_resid_pre", "hook_mlp_out", "hook_resid_post")]
    with torch.no_grad(), model.hooks(fwd_hooks=[(n, lambda value, hook: fired.append(value.shape)) for n in names]):
        model(ids)
    assert fired == [(2, 12, 32)] * 9


def test_half_precision_files_become_float32_unless_asked_otherwise(tmp_path, tiny_model):
    tiny_model(3).half().save_pretrained(tmp_path)
    assert {p.dtype for p in boot(tmp_path).parameters()} == {torch.float32}
    halves = boot(tmp_path, options=LoadOptions(device="cpu", dtype=torch.bfloat16))
    assert {p.dtype for p in halves.parameters()} == {torch.bfloat16}


def test_the_callers_tokenizer_is_left_alone(run_folder):
    tokenizer = load_tokenizer(run_folder, CPU)
    before = (tokenizer.pad_token, tokenizer.padding_side, tokenizer("w1 w2")["input_ids"])
    boot(run_folder / "step0", tokenizer)
    assert (tokenizer.pad_token, tokenizer.padding_side, tokenizer("w1 w2")["input_ids"]) == before
    assert before[2] == [1, 2]


def test_sharded_and_pickled_weights_load_too(tmp_path, tiny_model, ids):
    source = tiny_model(5)
    source.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    source.config.save_pretrained(tmp_path / "pickled")
    torch.save(source.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with torch.no_grad():
        for kind in ("shards", "pickled"):
            torch.testing.assert_close(boot(tmp_path / kind)(ids), source(ids).logits, atol=1e-6, rtol=0)


@pytest.mark.parametrize("variable", [None, True, False])  # HF_HUB_DISABLE_PROGRESS_BARS: unset, 1, 0
@pytest.mark.parametrize("bar", [True, False])
def test_progress_bars_are_silent_and_the_setting_comes_back(monkeypatch, variable, bar, capsys, run_folder):
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging

    monkeypatch.setattr(logging, "_tqdm_active", bar)
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    hub = sys.modules["huggingface_hub.utils.tqdm"]
    monkeypatch.setattr(hub, "HF_HUB_DISABLE_PROGRESS_BARS", variable)
    monkeypatch.setattr(hub, "progress_bar_states", {})
    before = are_progress_bars_disabled()
    boot(run_folder / "step0")
    assert logging.is_progress_bar_enabled() is bar
    assert are_progress_bars_disabled() is before
    with pytest.raises(ZeroDivisionError), quiet_transformers():
        1 / 0  # noqa: B018
    assert logging.is_progress_bar_enabled() is bar
    assert "Loading weights" not in capsys.readouterr().err


def test_missing_files_are_named_with_the_step_and_the_remedy(run_folder):
    folder = run_folder / "step1000"
    with pytest.raises(InputError, match=r"Step 1000: the folder .* is missing: fetch or write"):
        boot(run_folder / "step77")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"Step 1000: .* holds no weights.*leave the step out"):
        boot(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"Step 1000: .* has no config\.json"):
        boot(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, 0.5, -1])
def test_truncated_weights_are_refused_before_anything_is_loaded(run_folder, kept):
    file = run_folder / "step1000" / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    with pytest.raises(InputError, match=r"Step 1000: .*model\.safetensors is truncated or damaged"):
        boot(file.parent)


def test_a_truncated_pickle_and_a_broken_config_are_refused(tmp_path, tiny_model):
    source = tiny_model(5)
    source.config.save_pretrained(tmp_path)
    torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
    whole = (tmp_path / "pytorch_model.bin").read_bytes()
    (tmp_path / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="Step 1000: the checkpoint in .* could not be read"):
        boot(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(whole)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="Step 1000: the checkpoint in .* could not be read"):
        boot(tmp_path)


def test_a_pickle_that_would_run_code_is_refused_and_not_run(tmp_path, tiny_model):
    victim = tmp_path / "victim"

    class Hostile:
        def __reduce__(self):
            return (type(victim).touch, (victim,))

    tiny_model(5).config.save_pretrained(tmp_path)
    torch.save({"gpt_neox.embed_in.weight": Hostile()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="could not be read"):
        boot(tmp_path)
    assert not victim.exists()


def test_weights_that_lack_a_parameter_are_refused_rather_than_filled_at_random(run_folder):
    from safetensors.torch import load_file, save_file

    file = run_folder / "step1000" / "model.safetensors"
    weights = load_file(file)
    lacking = next(name for name in weights if "layers.1.mlp" in name)
    save_file({k: v for k, v in weights.items() if k != lacking}, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"lack 1 of the model's parameters \({lacking}\)"):
        boot(file.parent)


def test_weights_of_another_shape_are_refused(run_folder):
    config = run_folder / "step1000" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "intermediate_size": 48}))
    with pytest.raises(InputError, match="Step 1000: the checkpoint in .* could not be read"):
        boot(config.parent)


def test_an_index_may_not_point_out_of_its_folder_or_to_missing_shards(tmp_path, tiny_model):
    tiny_model(5).save_pretrained(tmp_path, max_shard_size="40KB")
    index = tmp_path / "model.safetensors.index.json"
    shards = json.loads(index.read_text())
    next(tmp_path.glob("model-00001*")).unlink()
    with pytest.raises(InputError, match=r"Step 1000: the weight file .*model-00001.* is missing"):
        boot(tmp_path)
    shards["weight_map"] = dict.fromkeys(shards["weight_map"], "../elsewhere.safetensors")
    index.write_text(json.dumps(shards))
    with pytest.raises(InputError, match="points out of its folder"):
        boot(tmp_path)
    index.write_text("[]")
    with pytest.raises(InputError, match="is not an index of weight files"):
        boot(tmp_path)


def test_code_in_a_checkpoint_is_not_run_unless_asked_for(run_folder):
    folder = run_folder / "step1000"
    (folder / "mine.py").write_text("raise SystemExit('this ran')\n")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="could not be read"):
        boot(folder)


def test_an_architecture_without_hooks_is_refused_with_the_way_out(tmp_path):
    from transformers import BlenderbotConfig, BlenderbotForCausalLM

    sizes = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_attention_heads", "decoder_attention_heads"), 1)
    widths = dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_model"), 8)
    with torch.random.fork_rng(devices=[]):
        BlenderbotForCausalLM(BlenderbotConfig(vocab_size=11, **sizes, **widths)).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"TransformerLens cannot wrap .*from_loader") as refusal:
        boot(tmp_path)
    assert len(str(refusal.value)) < 400  # one sentence, not the library's list of all it knows


def test_a_folder_without_a_tokenizer_has_none_and_a_broken_one_is_an_error(run_folder):
    assert load_tokenizer(run_folder / "step0", CPU) is None
    (run_folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="The tokenizer in .* could not be loaded"):
        load_tokenizer(run_folder, CPU)
