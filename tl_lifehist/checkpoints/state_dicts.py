"""A plain state dict in one file, `torch.save(model.state_dict(), "ckpt_100.pt")`, or one that a trainer wrapped."""

from __future__ import annotations

import pickle  # noqa: TID251 - only its error, which torch.load raises
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tl_lifehist.errors import InputError

# Where trainers put the model's weights among their own; the innermost that holds tensors counts.
_UNDER = ("state_dict", "model_state_dict", "model", "module", "params", "weights")
# What wrappers put before each name: data parallel, torch.compile, Lightning's own attribute.
_BEFORE = ("module.", "_orig_mod.", "model.", "_forward_module.")


def read_state(path: Path, step: int, *, names: Collection[str]) -> dict[str, Tensor]:
    """The weights in a file, under the model's own names.

    Read with `weights_only=True`, so nothing in the file is run.

    Args:
        path: a pickled or a safetensors file.
        step: named in errors.
        names: the names of the model's parameters and buffers; prefixes that wrappers add are taken off where the names
            then agree.

    Raises:
        InputError: the file holds more than tensors and plain values, or no weights. What torch raises when it cannot
            be read.
    """
    state = _tensors(_read(path, step))
    if not state:
        raise InputError(
            f"Step {step}: {path} holds no state dict of weights: write torch.save(model.state_dict(), path), or use "
            "save_pretrained."
        )
    known = set(names)
    while True:
        shorter = [
            {name.removeprefix(before): tensor for name, tensor in state.items()}
            for before in _BEFORE
            if any(name.startswith(before) for name in state)
        ]
        best = max(shorter, key=lambda one: len(known & set(one)), default=state)
        # of Llama "model." is a part of the name, so that a prefix goes only where more names are then known
        if len(known & set(best)) <= len(known & set(state)) and not _wrapped_deeper(best, state, known):
            return state
        state = best


def _wrapped_deeper(shorter: Mapping[str, Any], state: Mapping[str, Any], known: set[str]) -> bool:
    return not known & set(state) and any(name.startswith(_BEFORE) for name in shorter)


def _read(path: Path, step: int) -> Any:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if not any(part in str(error) for part in ("allowed global", "Unsupported global", "Unsupported class")):
            raise
        raise InputError(
            f"Step {step}: {path} holds Python objects beside its weights, and these are not run: write the weights "
            "alone, torch.save(model.state_dict(), path), or read it in a loader of your own (from_loader)."
        ) from error


def _tensors(saved: Any) -> dict[str, Tensor]:
    if not isinstance(saved, Mapping):
        return {}
    own = {name: value for name, value in saved.items() if isinstance(name, str) and isinstance(value, Tensor)}
    inner = [_tensors(saved[key]) for key in _UNDER if key in saved and not isinstance(saved[key], Tensor)]
    return max([own, *inner], key=len)
