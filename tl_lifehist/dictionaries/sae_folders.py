"""Folders of SAEs as people have them: SAELens' of every age, sparsify's and dictionary_learning's.

Each file and key that says something of how the SAE is to be used is honoured, or named in an error. The other two
libraries' folders go through the converter that SAELens' `load_from_disk` takes, and that is ours: SAELens' own for
sparsify transposes the decoder, rounds to bfloat16 and leaves the decoder's bias in the input, and its own for
dictionary_learning reads from the hub alone.
"""

from __future__ import annotations

import json
import pickle  # noqa: TID251 - only its error, which torch.load raises
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tl_lifehist.errors import InputError

SAELENS, SPARSIFY, LEARNED = "sae_weights.safetensors", "sae.safetensors", "ae.pt"
_CONFIG_OF = {SAELENS: "cfg.json", SPARSIFY: "cfg.json", LEARNED: "config.json"}
_SCALER, _WHITENING, _RUNNER = "activation_scaler.json", "activation_whitening.safetensors", "runner_cfg.json"
_SCALED = ("expected_average_only_in", "covariance_whitening")
_PARTS = {"mlp": "hook_mlp_out", "attn": "hook_attn_out", "self_attn": "hook_attn_out", "attention": "hook_attn_out"}

State = dict[str, Tensor]


@dataclass(frozen=True)
class Loaded:
    """What a folder holds, as SAELens takes it: configuration, weights, and the scale of the input if it is not folded
    into them.
    """

    config: dict[str, Any]
    state: State
    scale: float | None = None
    whitening: Mapping[str, Tensor] | None = None


def is_sae_folder(folder: Path) -> bool:
    """Whether a folder holds weights and configuration of an SAE of one of the kinds that are read."""
    return any((folder / weights).is_file() and (folder / config).is_file() for weights, config in _CONFIG_OF.items())


def read_folder(folder: Path) -> Loaded:
    """Read the folder of an SAE.

    Raises:
        InputError: files are missing or damaged, or they ask for something that no SAE here does.
    """
    for weights, config in _CONFIG_OF.items():
        if (folder / weights).is_file() and (folder / config).is_file():
            with readable(folder):
                return _READERS[weights](folder, _json(folder / config))
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    missing = next((c for w, c in _CONFIG_OF.items() if w in there), None)
    missing = missing or (SAELENS if "cfg.json" in there else "cfg.json")
    holds = f" (it holds {', '.join(there[:6])})" if there else ""
    raise InputError(
        f"{folder} holds no {missing}{holds}: give a folder written by "
        "SAELens' save_model or by SAEs.save, by sparsify or by dictionary_learning; of other kinds load the SAE with "
        "sae_lens.SAE.from_pretrained."
    )


@contextmanager
def readable(folder: Path) -> Generator[None, None, None]:
    """Turn what a damaged or foreign folder raises into one sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except InputError:
        raise
    except (
        OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, EOFError, NotImplementedError,
        pickle.UnpicklingError, SafetensorError,
    ) as error:  # fmt: skip
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        said = " ".join(lines[:3])[:300].rstrip(".:")
        kind = "lacks the key " if isinstance(error, KeyError) else ""
        raise InputError(f"The SAE in {folder} could not be read ({kind}{said}): write it again.") from error


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no configuration: write the SAE again.")
    return found


# --------------------------------------------------------------------------------------------------------- SAELens


def _saelens(folder: Path, config: dict[str, Any]) -> Loaded:
    from safetensors.torch import load_file

    state = load_file(folder / SAELENS)
    config = dict(config)
    config["dtype"] = str(config.get("dtype") or "float32")
    if config.get("d_sae") is None:  # early configurations gave a multiple of the width instead
        config["d_sae"] = int(state["W_dec"].shape[0])
    _require_known_activation(folder, config)
    _place(folder, config)
    if "log_threshold" in state:  # as JumpReLU was trained
        state["threshold"] = state.pop("log_threshold").exp()
    factor = state.pop("scaling_factor", state.pop("finetuning_scaling_factor", None))
    if factor is not None and not torch.allclose(factor, torch.ones_like(factor)):
        if not config.get("finetuning_scaling_factor", False):
            raise InputError(
                f"{folder} holds a scaling_factor that its configuration does not use (finetuning_scaling_factor): set "
                "that to true in cfg.json if the SAE was finetuned, or take the factor out."
            )
        state["W_dec"] = state["W_dec"] * factor[:, None]  # it multiplied the codes before decoding
    config["finetuning_scaling_factor"] = False
    return Loaded(config, state, *_scale_of(folder, config))


def _require_known_activation(folder: Path, config: Mapping[str, Any]) -> None:
    """Versions before 6 named an activation function; the later ones read it only where it is top k."""
    named = config.get("activation_fn", config.get("activation_fn_str")) or "relu"
    more = config.get("activation_fn_kwargs") or {}
    other = {key: value for key, value in more.items() if key != "k" and not (key == "signed" and not value)}
    if named not in ("relu", "topk") or (named == "topk" and other):
        told = f"{named} with {other}" if named == "topk" else named
        raise InputError(
            f"The SAE in {folder} uses the activation function {told}, and SAELens now computes relu instead: load it "
            "with the version that trained it, or give another SAE."
        )
    kind = str(config.get("architecture") or "standard")
    if kind == "topk" and config.get("k") is None and more.get("k") is None:
        raise InputError(f"The configuration in {folder} does not say how many features are active: add k to cfg.json.")


def _place(folder: Path, config: dict[str, Any]) -> None:
    """Where it reads, from the settings of the run beside it where its own configuration does not say."""
    metadata = config.get("metadata")
    known = metadata if isinstance(metadata, dict) else config
    if known.get("hook_name") is None and known.get("hook_point") is None and (folder / _RUNNER).is_file():
        named = _json(folder / _RUNNER).get("hook_name")
        if named is not None:
            known["hook_name"] = named


def _scale_of(folder: Path, config: Mapping[str, Any]) -> tuple[float | None, Mapping[str, Tensor] | None]:
    """What the input is multiplied with, which a checkpoint of a training keeps beside the weights."""
    from safetensors.torch import load_file

    kind = config.get("normalize_activations")
    kind = "expected_average_only_in" if kind is True else kind  # as an early version said it
    found = _json(folder / _SCALER) if (folder / _SCALER).is_file() else {}
    scale = found.get("scaling_factor")
    whitening = load_file(folder / _WHITENING) if (folder / _WHITENING).is_file() else None
    if whitening is not None and not found.get("has_whitening", True):
        whitening = None
    if kind in _SCALED and (scale if kind == _SCALED[0] else whitening) is None:
        lacks = _SCALER if kind == _SCALED[0] else _WHITENING
        fold = "fold_activation_norm_scaling_factor" if kind == _SCALED[0] else "fold_activation_whitening"
        raise InputError(
            f"The SAE in {folder} takes scaled activations (normalize_activations={kind!r}) and {lacks} with the scale "
            f"is not beside it: put it there, or load it with sae_lens and call sae.{fold}(...) with what it was "
            "trained with."
        )
    if kind not in _SCALED and (scale is not None or whitening is not None):
        raise InputError(
            f"{folder} holds a scale of the input that its configuration does not use (normalize_activations={kind!r})"
            f": take {_SCALER} away if the scale is folded into the weights already."
        )
    return (scale, None) if kind == _SCALED[0] else (None, whitening)


# -------------------------------------------------------------------------------------------------------- sparsify


def _sparsify(folder: Path, config: dict[str, Any]) -> Loaded:
    """x - b_dec, a linear encoder, ReLU, the k largest, a linear decoder (sparsify's `SparseCoder`)."""
    from safetensors.torch import load_file

    for key, default in (("transcode", False), ("skip_connection", False), ("signed", False), ("activation", "topk")):
        if config.get(key, default) != default:
            raise InputError(
                f"The sparse coder in {folder} has {key}={config[key]!r}: it is a transcoder or chooses its features "
                "in another way than by the k largest, and is not read."
            )
    held = load_file(folder / SPARSIFY)
    weight = held["encoder.weight"]
    state = {
        "W_enc": weight.T.contiguous(),
        "b_enc": held.get("encoder.bias", weight.new_zeros(weight.shape[0])),
        "W_dec": held["W_dec"] if "W_dec" in held else held["decoder.weight"].T.contiguous(),
        "b_dec": held.get("b_dec", held.get("decoder.bias", weight.new_zeros(weight.shape[1]))),
    }
    made = _topk(state, int(config["k"]), str(weight.dtype).removeprefix("torch."))
    made["metadata"] |= {"hook_name": _hook_of_module(folder.name), "sparsify_hookpoint": folder.name}
    return Loaded(made, state)


def _hook_of_module(name: str) -> str | None:
    """`layers.3` -> `blocks.3.hook_resid_post`, `h.3.mlp` -> `blocks.3.hook_mlp_out`; the name itself of another part
    of a block, None of what is no module's name.
    """
    found = re.fullmatch(r"(?:\w+\.)*(?:layers|h|blocks)\.(\d+)(?:\.([\w.]+))?", name)
    if name.endswith("embed_tokens"):
        return "hook_embed"
    if found is None:
        return None
    site = "hook_resid_post" if found[2] is None else _PARTS.get(found[2], found[2])
    return f"blocks.{found[1]}.{site}"


# --------------------------------------------------------------------------------------------- dictionary_learning


def _learned(folder: Path, config: dict[str, Any]) -> Loaded:
    """The classes that dictionary_learning's `load_dictionary` knows."""
    trainer, buffer = config["trainer"], config.get("buffer") or {}
    kind = str(trainer["dict_class"])
    if kind not in _LEARNED:
        raise InputError(f"The dictionary in {folder} is a {kind}, which is not read; {', '.join(_LEARNED)} are.")
    if buffer.get("io", "out") not in ("out", "in"):
        raise InputError(f"The dictionary in {folder} maps one place to another (io={buffer['io']!r}): it is no SAE.")
    held = torch.load(folder / LEARNED, map_location="cpu", weights_only=True)
    made, state = _LEARNED[kind](held, trainer)
    made["metadata"] |= {
        "hook_name": _hook_of_submodule(trainer, str(buffer.get("io", "out"))),
        "model_name": trainer.get("lm_name"),
        "context_size": buffer.get("ctx_len"),
    }
    return Loaded(made, state)


def _hook_of_submodule(trainer: Mapping[str, Any], io: str) -> str | None:
    layer, name = trainer.get("layer"), str(trainer.get("submodule_name") or "resid_post")
    name = re.sub(r"(?:_layer)?_\d+$", "", name)
    sites = {"resid_post": "hook_resid_post", "resid": "hook_resid_post", "mlp": "hook_mlp_out"}
    sites |= {"mlp_out": "hook_mlp_out", "attn": "hook_attn_out", "attn_out": "hook_attn_out"}
    if layer is None or io == "in":  # what goes into a module has other names in other families
        return None if layer is None else f"blocks.{layer}.{name}.input"
    return f"blocks.{layer}.{sites.get(name, name)}"


def _linear(held: Mapping[str, Tensor], bias: str) -> State:
    state = {
        "W_enc": held["encoder.weight"].T.contiguous(),
        "W_dec": held["decoder.weight"].T.contiguous(),
        "b_dec": held[bias],
    }
    return state | ({"b_enc": held["encoder.bias"]} if "encoder.bias" in held else {})


def _plain(held: Mapping[str, Tensor], trainer: Mapping[str, Any]) -> tuple[dict[str, Any], State]:
    state = _linear(held, "bias")
    return _made("standard", state), state


def _gated(held: Mapping[str, Tensor], trainer: Mapping[str, Any]) -> tuple[dict[str, Any], State]:
    state = _linear(held, "decoder_bias")
    state |= {"r_mag": held["r_mag"], "b_gate": held["gate_bias"], "b_mag": held["mag_bias"]}
    return _made("gated", state), state


def _top(held: Mapping[str, Tensor], trainer: Mapping[str, Any]) -> tuple[dict[str, Any], State]:
    state = _linear(held, "b_dec")
    return _topk(state, int(trainer["k"]), "float32"), state


def _jump(held: Mapping[str, Tensor], trainer: Mapping[str, Any]) -> tuple[dict[str, Any], State]:
    names = ("W_enc", "b_enc", "W_dec", "b_dec")
    state = {name: held[name] for name in names} if "W_enc" in held else _linear(held, "b_dec")
    # one threshold for all, learned, of the batch top k kinds; -1, as before any was learned, lets every code through
    state["threshold"] = held["threshold"].float() * torch.ones(len(state["W_dec"]))
    return _made("jumprelu", state, subtract=trainer["dict_class"] != "JumpReluAutoEncoder"), state


_LEARNED: dict[str, Callable[[Mapping[str, Tensor], Mapping[str, Any]], tuple[dict[str, Any], State]]] = {
    "AutoEncoder": _plain,
    "GatedAutoEncoder": _gated,
    "AutoEncoderTopK": _top,
    "BatchTopKSAE": _jump,
    "MatryoshkaBatchTopKSAE": _jump,
    "JumpReluAutoEncoder": _jump,
}


def _made(kind: str, state: State, *, subtract: bool = True, dtype: str = "float32") -> dict[str, Any]:
    from sae_lens import __version__

    d_sae, d_in = map(int, state["W_dec"].shape)
    metadata = {"sae_lens_version": __version__, "sae_lens_training_version": None}
    sizes = {"architecture": kind, "d_in": d_in, "d_sae": d_sae, "dtype": dtype, "device": "cpu"}
    return {**sizes, "apply_b_dec_to_input": subtract, "normalize_activations": "none", "metadata": metadata}


def _topk(state: State, k: int, dtype: str) -> dict[str, Any]:
    return {**_made("topk", state, dtype=dtype), "k": k, "rescale_acts_by_decoder_norm": False}


_READERS: dict[str, Callable[[Path, dict[str, Any]], Loaded]] = {
    SAELENS: _saelens,
    SPARSIFY: _sparsify,
    LEARNED: _learned,
}
