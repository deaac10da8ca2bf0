"""SAE folders of every age and library: read as what they are, or refused by the name of what is wrong."""

from __future__ import annotations

import copy
import json

import pytest
import torch

import tl_lifehist as lh
from tl_lifehist.errors import InputError

pytestmark = pytest.mark.usefixtures("saelens")

D, F, K = 12, 20, 4


@pytest.fixture
def x():
    return torch.randn(30, D, generator=torch.Generator().manual_seed(5)) * 3 + 1


def tensors(**shapes):
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(*shape, generator=generator) * 0.4 for name, shape in shapes.items()}


def weights():
    return tensors(W_enc=(D, F), b_enc=(F,), W_dec=(F, D), b_dec=(D,))


def write(folder, config, state, file="sae_weights.safetensors", config_file="cfg.json"):
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / config_file).write_text(json.dumps(config))
    if file.endswith(".pt"):
        torch.save(state, folder / file)
    else:
        save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / file)
    return folder


def top(values, k=K):
    kept = values.relu().topk(k, dim=-1)
    return torch.zeros_like(values).scatter(-1, kept.indices, kept.values)


OLD = {  # as SAELens 3 and 4 wrote them
    "architecture": "standard",
    "d_in": D,
    "d_sae": F,
    "dtype": "torch.float32",
    "device": "cuda",
    "hook_name": "blocks.2.hook_resid_pre",
    "hook_layer": 2,
    "activation_fn_str": "relu",
    "finetuning_scaling_factor": False,
    "normalize_activations": "none",
    "apply_b_dec_to_input": True,
    "sae_lens_training_version": "3.1.0",
}


def old(**changes):
    config = {**OLD, **changes}
    return {key: value for key, value in config.items() if value is not ...}


# ---------------------------------------------------------------------------------------------- SAELens, early versions


def test_a_folder_of_an_early_version_is_read(tmp_path, x):
    w = weights()
    sae = lh.load_sae(write(tmp_path / "a", old(), w))
    torch.testing.assert_close(sae.encode(x), ((x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]).relu())
    assert sae.cfg.metadata.hook_name == "blocks.2.hook_resid_pre"
    earliest = old(
        hook_name=..., hook_point="blocks.2.hook_resid_pre", d_sae=None, dtype=..., expansion_factor=2,
        normalize_activations=False,
    )  # fmt: skip
    assert lh.load_sae(write(tmp_path / "b", earliest, w)).cfg.metadata.hook_name == "blocks.2.hook_resid_pre"
    topk = old(activation_fn_str="topk", activation_fn_kwargs={"k": K})
    sae = lh.load_sae(write(tmp_path / "c", topk, w))
    torch.testing.assert_close(sae.encode(x), top((x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]))


def test_a_finetuned_sae_keeps_its_factors(tmp_path, x):
    w = weights()
    factor = torch.rand(F, generator=torch.Generator().manual_seed(1)) + 0.5
    sae = lh.load_sae(write(tmp_path / "a", old(finetuning_scaling_factor=True), {**w, "scaling_factor": factor}))
    codes = ((x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]).relu()
    torch.testing.assert_close(sae.encode(x), codes)
    torch.testing.assert_close(sae.decode(codes), (codes * factor) @ w["W_dec"] + w["b_dec"])
    ones = write(tmp_path / "b", old(finetuning_scaling_factor=...), {**w, "scaling_factor": torch.ones(F)})
    torch.testing.assert_close(lh.load_sae(ones).decode(codes), codes @ w["W_dec"] + w["b_dec"])
    with pytest.raises(InputError, match="holds a scaling_factor that its configuration does not use"):
        lh.load_sae(write(tmp_path / "c", old(finetuning_scaling_factor=...), {**w, "scaling_factor": factor}))


def test_a_jumprelu_of_a_log_threshold_is_read(tmp_path, x):
    w = weights()
    sae = lh.load_sae(write(tmp_path / "a", old(architecture="jumprelu"), {**w, "log_threshold": torch.zeros(F)}))
    pre = (x - w["b_dec"]) @ w["W_enc"] + w["b_enc"]
    torch.testing.assert_close(sae.encode(x), pre * (pre > 1))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (old(activation_fn_str="tanh-relu"), "uses the activation function tanh-relu, and SAELens now computes relu"),
        (old(activation_fn_str="topk", activation_fn_kwargs={"k": 3, "signed": True}), "topk with {'signed': True}"),
        (old(architecture="topk", activation_fn_str=...), "does not say how many features are active"),
        (old(architecture="sparse_thing"), "is a 'sparse_thing', which this version of SAELens does not have"),
        (
            old(normalize_activations="expected_average_only_in"),
            "takes scaled activations .*activation_scaler.json with",
        ),
        (old(normalize_activations=True), "takes scaled activations"),
        (old(d_in=...), "could not be read"),
        (old(d_sae=7), "could not be read"),
        ([1], "holds no configuration"),
    ],
)
def test_what_would_be_computed_in_another_way_is_named(tmp_path, config, said):
    with pytest.raises(InputError, match=said):
        lh.load_sae(write(tmp_path / "a", config, weights()))


def test_damaged_folders_are_named(tmp_path):
    folder = write(tmp_path / "a", old(), weights())
    (folder / "sae_weights.safetensors").write_bytes((folder / "sae_weights.safetensors").read_bytes()[:300])
    with pytest.raises(InputError, match="could not be read"):
        lh.load_sae(folder)
    (folder / "cfg.json").write_text("{")
    with pytest.raises(InputError, match="could not be read"):
        lh.load_sae(folder)
    unknown = write(tmp_path / "b", old(), {**weights(), "W_skip": torch.zeros(D, D)})
    with pytest.raises(InputError, match="could not be read.*W_skip"):
        lh.load_sae(unknown)
    other = write(tmp_path / "c", old(), weights(), file="params.safetensors")
    with pytest.raises(InputError, match=r"holds no sae_weights\.safetensors \(it holds cfg\.json, params\.saf"):
        lh.load_sae(other)


# --------------------------------------------------------------------------------- SAELens, checkpoints of a training

KINDS = {
    "standard": {},
    "topk": {"k": 3},
    "batchtopk": {"k": 3},
    "matryoshka_batchtopk": {"k": 3, "matryoshka_widths": [8, F]},
    "gated": {},
    "jumprelu": {},
}


@pytest.mark.parametrize("normalize", ["none", "expected_average_only_in", "covariance_whitening"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_of_a_training_takes_raw_activations(tmp_path, x, kind, normalize):
    from sae_lens.config import LoggingConfig, SAETrainerConfig
    from sae_lens.registry import get_sae_training_class
    from sae_lens.training.sae_trainer import SAETrainer

    cls, config_cls = get_sae_training_class(kind)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sae = cls(config_cls(d_in=D, d_sae=F, normalize_activations=normalize, decoder_init_norm=0.7, **KINDS[kind]))
    sae.cfg.metadata.hook_name = "blocks.1.hook_resid_post"
    sae.b_dec.data += 0.3
    if "batch" in kind:
        sae.topk_threshold.fill_(0.4)
    setting = SAETrainerConfig(
        64, 16, lr=1e-3, lr_end=1e-3, logger=LoggingConfig(log_to_wandb=False), checkpoint_path=str(tmp_path)
    )
    trainer = SAETrainer(setting, sae, iter([x] * 9))
    if normalize == "expected_average_only_in":
        trainer.activation_scaler.estimate_scaling_factor(D, iter([x] * 2), 2)
    elif normalize == "covariance_whitening":
        trainer.activation_scaler.estimate_whitening(D, iter([x] * 2), 2)
    trainer.save_checkpoint("7")
    scaled = trainer.activation_scaler(x)
    codes = sae.encode(scaled)
    if "batch" in kind:  # as it is used once it is trained
        pre = ((scaled - sae.b_dec) @ sae.W_enc + sae.b_enc) * sae.W_dec.norm(dim=1)
        codes = pre * (pre > 0.4)
    expected = trainer.activation_scaler.unscale(sae.decode(codes))
    found = lh.load_sae(tmp_path / "7")
    assert found.cfg.normalize_activations == "none"
    assert found.cfg.metadata.hook_name == "blocks.1.hook_resid_post"
    torch.testing.assert_close(found.decode(found.encode(x)), expected.detach(), atol=1e-4, rtol=1e-3)
    assert not any(parameter.requires_grad for parameter in found.parameters())


def test_files_that_contradict_are_named_and_a_runner_tells_the_hook_point(tmp_path):
    folder = write(tmp_path / "a", old(hook_name=...), weights())
    (folder / "runner_cfg.json").write_text(json.dumps({"hook_name": "blocks.5.hook_mlp_out"}))
    assert lh.load_sae(folder).cfg.metadata.hook_name == "blocks.5.hook_mlp_out"
    (folder / "activation_scaler.json").write_text(json.dumps({"scaling_factor": None}))
    assert lh.load_sae(folder) is not None
    (folder / "activation_scaler.json").write_text(json.dumps({"scaling_factor": 2.0}))
    with pytest.raises(InputError, match="a scale of the input that its configuration does not use"):
        lh.load_sae(folder)


# ---------------------------------------------------------------------------------------------------------- sparsify


def sparsify(**changes):
    return {"activation": "topk", "expansion_factor": 32, "normalize_decoder": True, "num_latents": 0, "k": K,
            "multi_topk": False, "skip_connection": False, "transcode": False, "d_in": D, **changes}  # fmt: skip


@pytest.mark.parametrize("name", ["layers.3", "h.3.mlp", "blocks.1.hook_resid_post"])
def test_a_folder_of_sparsify_computes_what_sparsify_does(tmp_path, x, name):
    held = tensors(**{"encoder.weight": (F, D), "encoder.bias": (F,), "W_dec": (F, D), "b_dec": (D,)})
    sae = lh.load_sae(write(tmp_path / "run" / name, sparsify(), held, file="sae.safetensors"))
    codes = top((x - held["b_dec"]) @ held["encoder.weight"].T + held["encoder.bias"])
    torch.testing.assert_close(sae.encode(x), codes)
    torch.testing.assert_close(sae.decode(codes), codes @ held["W_dec"] + held["b_dec"])
    told = {"layers.3": "blocks.3.hook_resid_post", "h.3.mlp": "blocks.3.hook_mlp_out"}
    assert sae.cfg.metadata.hook_name == told.get(name, "blocks.1.hook_resid_post")


@pytest.mark.parametrize("change", [{"transcode": True}, {"skip_connection": True}, {"activation": "groupmax"}])
def test_transcoders_and_other_choices_of_sparsify_are_named(tmp_path, change):
    held = tensors(**{"encoder.weight": (F, D), "encoder.bias": (F,), "W_dec": (F, D), "b_dec": (D,)})
    folder = write(tmp_path / "layers.3", sparsify(**change), held, file="sae.safetensors")
    with pytest.raises(InputError, match=f"has {next(iter(change))}="):
        lh.load_sae(folder)


# ----------------------------------------------------------------------------------------------- dictionary_learning


def learned(kind, **changes):
    trainer = {"dict_class": kind, "activation_dim": D, "dict_size": F, "k": K, "layer": 3, "lm_name": "a/b"}
    buffer = {"ctx_len": 128, "io": changes.pop("io", "out")}
    return {"trainer": {**trainer, "submodule_name": "resid_post_layer_3", **changes}, "buffer": buffer}


def learn(folder, kind, held, **changes):
    return write(folder, learned(kind, **changes), held, file="ae.pt", config_file="config.json")


def test_every_class_of_dictionary_learning_computes_what_it_does_there(tmp_path, x):
    linear = tensors(**{"encoder.weight": (F, D), "encoder.bias": (F,), "decoder.weight": (D, F), "b_dec": (D,)})
    encoder, decoder = linear["encoder.weight"].T, linear["decoder.weight"].T
    pre = (x - linear["b_dec"]) @ encoder + linear["encoder.bias"]
    plain = {("bias" if name == "b_dec" else name): tensor for name, tensor in linear.items()}
    own = {"W_enc": encoder, "W_dec": decoder, "b_enc": linear["encoder.bias"], "b_dec": linear["b_dec"]}
    more = tensors(r_mag=(F,), gate_bias=(F,), mag_bias=(F,))
    gated = {"encoder.weight": encoder.T, "decoder.weight": decoder.T, "decoder_bias": linear["b_dec"], **more}
    bare = (x - linear["b_dec"]) @ encoder
    gates = ((bare + more["gate_bias"]) > 0) * (more["r_mag"].exp() * bare + more["mag_bias"]).relu()
    whole = x @ encoder + linear["encoder.bias"]
    threshold = torch.rand(F, generator=torch.Generator().manual_seed(3))
    k = {"k": torch.tensor(K), "threshold": torch.tensor(0.7)}
    cases = {
        "AutoEncoder": (plain, pre.relu()),
        "GatedAutoEncoder": (gated, gates),
        "AutoEncoderTopK": ({**linear, **k}, top(pre)),
        "BatchTopKSAE": ({**linear, **k}, pre * (pre > 0.7)),
        "MatryoshkaBatchTopKSAE": ({**own, **k, "group_sizes": torch.tensor([8, F - 8])}, pre * (pre > 0.7)),
        "JumpReluAutoEncoder": ({**own, "threshold": threshold}, whole * (whole > threshold)),
    }
    for kind, (held, codes) in cases.items():
        sae = lh.load_sae(learn(tmp_path / kind, kind, held))
        torch.testing.assert_close(sae.encode(x), codes, msg=lambda said, kind=kind: f"{kind}: {said}")
        torch.testing.assert_close(sae.decode(codes), codes @ decoder + linear["b_dec"])
        assert sae.cfg.metadata.hook_name == "blocks.3.hook_resid_post"


def test_what_a_dictionary_says_of_its_place_is_kept_and_other_classes_are_named(tmp_path):
    held = {
        **tensors(**{"encoder.weight": (F, D), "encoder.bias": (F,), "decoder.weight": (D, F)}),
        "bias": torch.ones(D),
    }
    sae = lh.load_sae(learn(tmp_path / "a", "AutoEncoder", held, submodule_name="mlp_out_layer_3"))
    assert sae.cfg.metadata.hook_name == "blocks.3.hook_mlp_out"
    assert lh.load_sae(learn(tmp_path / "b", "AutoEncoder", held, io="in")).cfg.metadata.hook_name.endswith(".input")
    with pytest.raises(InputError, match=r"maps one place to another \(io='in_and_out'\)"):
        lh.load_sae(learn(tmp_path / "c", "AutoEncoder", held, io="in_and_out"))
    with pytest.raises(InputError, match="is a CrossCoder, which is not read; AutoEncoder, Gated"):
        lh.load_sae(learn(tmp_path / "d", "CrossCoder", held))


def test_folders_of_all_kinds_stand_side_by_side_in_a_series(tmp_path, x):
    place = "blocks.3.hook_resid_post"
    held = {
        **tensors(**{"encoder.weight": (F, D), "encoder.bias": (F,), "decoder.weight": (D, F)}),
        "bias": torch.ones(D),
    }
    learn(tmp_path / "step0" / place, "AutoEncoder", held)
    write(tmp_path / "step9" / place, old(hook_name="blocks.4.hook_resid_pre"), weights())
    saes = lh.dictionaries.load_saes(tmp_path)
    assert saes.steps == (0, 9)
    again = copy.deepcopy(saes[0, place])
    assert lh.dictionaries.load_saes(lh.dictionaries.load_saes(tmp_path).save(tmp_path / "again")).steps == (0, 9)
    torch.testing.assert_close(again.encode(x), lh.load_sae(tmp_path / "again" / "step0" / place).encode(x))
