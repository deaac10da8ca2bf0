"""What is no checkpoint of a causal or masked model is named as what it is, and plain state dicts are read."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from tl_lifehist.checkpoints.series import CheckpointSeries
from tl_lifehist.errors import InputError


class Config:
    """What a trainer pickles beside its weights."""


def load(folder, step=1, **options):
    return CheckpointSeries.from_directory(folder, device="cpu", **options).load(step)


WRAPPED = {
    "ckpt_{}.pt": lambda state: state,
    "step-{:05d}.pth": lambda state: {"model_state_dict": state, "optimizer": {"state": {}}, "iteration": 3},
    "epoch=0-step={}.ckpt": lambda state: {"state_dict": {f"model.{k}": v for k, v in state.items()}, "epoch": 0},
    "model_step{}.bin": lambda state: {"model": {f"module._orig_mod.{k}": v for k, v in state.items()}},
    "{}/weights.pt": lambda state: state,
}


@torch.no_grad()
@pytest.mark.parametrize("form", WRAPPED)
def test_plain_state_dicts_are_read_with_the_configuration_of_another_folder(
    run_folder, tmp_path, form, tiny_model, ids
):
    for step in (1, 1000):
        path = tmp_path / "theirs" / form.format(step)
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(WRAPPED[form](tiny_model(step).state_dict()), path)
    if "/" in form:
        for step in (1, 1000):
            (tmp_path / "theirs" / str(step)).rename(tmp_path / "theirs" / f"step{step}")
    series = CheckpointSeries.from_directory(tmp_path / "theirs", config_from=run_folder / "step1", device="cpu")
    assert series.steps == (1, 1000)
    torch.testing.assert_close(series.load(1000)(ids), tiny_model(1000)(ids).logits, atol=1e-6, rtol=0)
    assert series.verify().ok
    with pytest.raises(InputError, match="has no config.json.*config_from="):
        load(tmp_path / "theirs")
    assert series.plan()["size"].gt(1000).all()


def test_a_state_dict_of_llama_keeps_its_own_names(tmp_path, ids):
    from checkpoints.families import build

    model = build("Llama", 0)
    model.config.save_pretrained(tmp_path)
    torch.save({f"module.{k}": v for k, v in model.state_dict().items()}, tmp_path / "step1.pt")
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path)(ids), model(ids).logits, atol=1e-5, rtol=0)


def test_safetensors_of_one_file_a_step_are_read_and_on_the_hub(hub, tmp_path, tiny_model, ids):
    from safetensors.torch import save_file

    folder = tmp_path / "theirs"
    for step in (1, 1000):
        tiny_model(step).config.save_pretrained(folder)
        save_file(tiny_model(step).state_dict(), folder / f"step_{step}.safetensors")
    hub.server.repos["tiny/files"] = {"main": folder}
    series = CheckpointSeries.from_hub("tiny/files", cache_dir=hub.cache, device="cpu")
    assert series.plan()["revision"].tolist() == ["step_1.safetensors", "step_1000.safetensors"]
    with torch.no_grad():
        torch.testing.assert_close(series.load(1)(ids), tiny_model(1)(ids).logits, atol=1e-6, rtol=0)


def test_a_file_of_objects_or_of_other_things_says_what_to_do(run_folder, tmp_path, tiny_model):
    (tmp_path / "theirs").mkdir()
    shutil.copy(run_folder / "step1" / "config.json", tmp_path / "theirs")
    path = tmp_path / "theirs" / "ckpt_1.pt"
    torch.save({"model": tiny_model(1).state_dict(), "args": Config()}, path)
    with pytest.raises(InputError, match=r"ckpt_1\.pt holds Python objects beside its weights.*model\.state_dict\(\)"):
        load(tmp_path / "theirs")
    torch.save({"epoch": 3}, path)
    with pytest.raises(InputError, match=r"ckpt_1\.pt holds no state dict of weights"):
        load(tmp_path / "theirs")
    torch.save({"a.weight": torch.zeros(2)}, path)
    with pytest.raises(InputError, match=r"lack 40 of the model's parameters"):
        load(tmp_path / "theirs")
    path.write_bytes(b"no pickle")
    with pytest.raises(InputError, match="could not be read"):
        load(tmp_path / "theirs")


def test_parts_of_a_sharded_trainer_are_named(run_folder, tmp_path):
    folder = tmp_path / "theirs" / "global_step1"
    folder.mkdir(parents=True)
    shutil.copy(run_folder / "step1" / "config.json", folder)
    (folder / "mp_rank_00_model_states.pt").write_bytes(b"")
    with pytest.raises(InputError, match=r"mp_rank_00_model_states\.pt are parts that DeepSpeed.*zero_to_fp32"):
        load(tmp_path / "theirs")
    (folder / "mp_rank_00_model_states.pt").unlink()
    for name in ("ema.pt", "raw.pt"):
        (folder / name).write_bytes(b"")
    with pytest.raises(InputError, match=r"it holds ema\.pt, raw\.pt: write the model there with save_pretrained"):
        load(tmp_path / "theirs")


def adapter(folder):
    folder.mkdir(parents=True)
    config = {"base_model_name_or_path": "EleutherAI/pythia-14m", "peft_type": "LORA", "r": 8}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(b"")
    return folder


def test_a_lora_adapter_is_named_with_its_base(hub, run_folder, tmp_path):
    named = r"holds an adapter of EleutherAI/pythia-14m and no model: merge the two.*merge_and_unload"
    adapter(tmp_path / "theirs" / "checkpoint-1")
    with pytest.raises(InputError, match=named):
        load(tmp_path / "theirs")
    hub.server.repos["tiny/lora"] = {"main": run_folder / "step1", "step1": tmp_path / "theirs" / "checkpoint-1"}
    with pytest.raises(InputError, match=named):
        CheckpointSeries.from_hub("tiny/lora", cache_dir=hub.cache, device="cpu").load(1)


def test_an_encoder_decoder_is_named(tmp_path):
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "step1")
    series = CheckpointSeries.from_directory(tmp_path, device="cpu")
    for ask in (lambda: series.load(1), lambda: series.shape):
        with pytest.raises(
            InputError, match="T5ForConditionalGeneration is an encoder-decoder model.*causal or a masked"
        ):
            ask()
