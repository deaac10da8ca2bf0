"""A tiny random model of every family, and how its repository on the hub is laid out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

VOCAB = 64
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
}
CAUSAL = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
MASKED = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}

# family -> model class, what its configuration says, repository, branches
FAMILIES: dict[str, tuple[str, dict[str, Any], str, tuple[str, ...]]] = {
    "GPT-NeoX": ("GPTNeoXForCausalLM", {**SIZES, **CAUSAL}, "EleutherAI/pythia-160m", ("step0", "step1", "step143000")),
    "OLMo": (
        "OlmoForCausalLM",
        {**SIZES, **CAUSAL, "tie_word_embeddings": True},
        "allenai/OLMo-1B-hf",
        ("step1000-tokens4B", "step738020-tokens3094B"),
    ),
    "OLMo 0724": (
        "OlmoForCausalLM",
        {**SIZES, **CAUSAL, "clip_qkv": 0.3},
        "allenai/OLMo-1B-0724-hf",
        ("step0-tokens0B", "step1454000-tokens3048B"),
    ),
    "OLMo 2": (
        "Olmo2ForCausalLM",
        {**SIZES, **CAUSAL},
        "allenai/OLMo-2-0425-1B",
        ("stage1-step1000-tokens3B", "stage2-ingredient1-step1000-tokens3B", "stage2-ingredient2-step1000-tokens3B"),
    ),
    "Llama": ("LlamaForCausalLM", {**SIZES, **CAUSAL, "num_key_value_heads": 2}, "tiny/llama", ("step4", "step8")),
    "GPT-2": (
        "GPT2LMHeadModel",
        {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 32, **CAUSAL},
        "stanford-crfm/alias-gpt2-small-x21",
        ("checkpoint-0", "checkpoint-400000"),
    ),
    "EuroBERT": (
        "EuroBertForMaskedLM",
        {**SIZES, **MASKED, "num_key_value_heads": 2, "mask_token_id": 3, "tie_word_embeddings": False},
        "EuroBERT/EuroBERT-210m",
        ("step10000", "step480000"),
    ),
    # Windows of two tokens either side in two layers of three, so that padding and windows meet.
    "ModernBERT": (
        "ModernBertForMaskedLM",
        {**SIZES, **MASKED, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 4, "decoder_bias": True},
        "almanach/moderncamembert-base",
        ("main",),
    ),
}
MASKED_FAMILIES = ("EuroBERT", "ModernBERT")


def build(family: str, seed: int) -> Any:
    """A random model of the family, as transformers trains it."""
    import transformers

    cls, settings, _, _ = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model_class = getattr(transformers, cls)
        model = model_class(model_class.config_class(**settings)).eval()
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:  # norms and biases start the same everywhere, and hide an adapter's mistake
                parameter.data += 0.1 * torch.randn_like(parameter)
            elif "emb" not in name:
                parameter.data *= 3
    model.set_attn_implementation("eager")
    return model


def publish(family: str, root: Path, tokenizer: Any) -> dict[str, Path]:
    """The family's branches as folders, each with its own model and with the tokenizer beside the weights."""
    _, _, _, branches = FAMILIES[family]
    for seed, branch in enumerate(branches):
        build(family, seed).save_pretrained(root / branch)
    if family == "EuroBERT":
        build(family, 99).save_pretrained(root / "main")  # annealed: another model
    folders = {folder.name: folder for folder in root.iterdir()}
    for folder in folders.values():
        tokenizer.save_pretrained(folder)
        if family == "EuroBERT":
            _as_eurobert_is(folder)
    return folders


def _as_eurobert_is(folder: Path) -> None:
    """Pickled weights, and code beside them that need not run."""
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Config", "AutoModelForMaskedLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('this ran')\n")


def composer_state(model: Any) -> dict[str, Any]:
    """What Composer saves of ModernBERT's training: the weights under the names of its own code, clocks and all."""
    import datetime

    import numpy as np

    renamed = {}
    for name, tensor in model.state_dict().items():
        for new, old in (("model.layers.", "model.bert.encoder.layers."), ("model.", "model.bert.")):
            if name.startswith(new):
                renamed[old + name.removeprefix(new)] = tensor
                break
        else:
            renamed[f"model.{name}"] = tensor
    state = {"model": renamed, "timestamp": {"total_wct": datetime.timedelta(seconds=3)}}
    return {"state": state, "rng": [{"numpy": np.random.RandomState(0).get_state()}]}


def publish_composer(root: Path) -> Path:
    """The main branch of a repository of Composer files without configuration or tokenizer."""
    root.mkdir()
    for step in (1000, 3000):
        torch.save(composer_state(build("ModernBERT", step)), root / f"ep0-ba{step}-rank0.pt")
    return root


def publish_folders(root: Path) -> Path:
    """The main branch of a repository of sub-folders, which hold weights and nothing else."""
    for step in (10, 20):
        inner = root / "pretrain" / f"ckpt-{step}" / "pt"
        build("ModernBERT", step).save_pretrained(inner)
        (inner / "config.json").unlink()
    shutil.copy(inner / "model.safetensors", root / "model.safetensors")  # of no step that is known
    return root
